"""``python -m`` of a study ends like the command line: one line for an error of ours, and an exit code. No GPU."""

import json

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.lab import study
from routesparse.engine.lab.studies import tuning_table
from routesparse.engine.lab.studies.selection import table

NAMED = {"method": "m", "setting": 1, "task": "t", "length": 9, "index": 0, "seed": 1, "extras": True}


@pytest.mark.parametrize(
    "line", ["null", "5", '"failed"', "[1]", "{}", "[" * 9_000, '{"domain": "a\x1b[2J"}']
)
def test_a_row_of_another_kind_ends_a_study_in_one_line(tmp_path, capsys, line):
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(SystemExit) as ended:
        study.run(lambda: tuning_table.main([str(path), str(path), "--out", str(tmp_path / "page.md")]))
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.startswith("error: line 1 of ") and told.count("\n") == 1
    assert "\x1b" not in told


@pytest.mark.parametrize("change", [{"setting": "x"}, {"method": []}, {"extras": 1}, {"index": None}])
def test_a_row_whose_name_is_of_another_kind_is_refused_by_its_field(tmp_path, change):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(NAMED | change) + "\n")
    with pytest.raises(InputError, match=rf"rows\.jsonl, a row's {next(iter(change))} is "):
        table.read_rows([path])


@pytest.mark.parametrize(("failed", "code"), [(None, 0), (0, 0), (3, 1)])
def test_measurements_that_failed_are_in_the_exit_code(failed, code):
    with pytest.raises(SystemExit) as ended:
        study.run(lambda: failed)
    assert ended.value.code == code
