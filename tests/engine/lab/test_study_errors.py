"""``python -m`` of a study ends like the command line: one line for an error of ours, and an exit code. No GPU."""

import json

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.selection import table

NAMED = {"method": "m", "setting": 1, "task": "t", "length": 9, "index": 0, "seed": 1, "extras": True}


def test_an_error_of_ours_ends_a_study_in_one_line(tmp_path, capsys):
    path = tmp_path / "rows\x1b[2J.jsonl"
    path.write_text("no JSON}\n")
    with pytest.raises(SystemExit) as ended:
        study.run(lambda: table.main([str(path)]))
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
