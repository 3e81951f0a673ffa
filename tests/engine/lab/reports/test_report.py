"""README.md's numbers and the pages in data/results say what the result files say."""

import json

import pytest

from routesparse.engine import paths
from routesparse.engine.lab.reports import (
    report,
    report_certify,
    report_gpu,
    report_gpu_tables,
    result_files,
)

PAGES = ["CPU.md", "GPU.md", "TRUST.md", "CERTIFY.md"]


@pytest.fixture
def copied(monkeypatch, tmp_path):
    """A repository of README.md and the result files alone, its pages and numbers still to be written."""
    readme = (paths.REPOSITORY / "README.md").read_text()
    before, rest = readme.split(report.BEGIN)
    _, after = rest.split(report.END)
    (tmp_path / "README.md").write_text(f"{before}{report.BEGIN}\n{report.END}{after}")
    for path in result_files.RESULTS.glob("*.json"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path)
    return tmp_path


def test_the_readme_and_the_pages_are_what_the_report_writes(copied, monkeypatch):
    expected = {"README.md": (paths.DATA.parent / "README.md").read_text()}
    expected |= {name: (result_files.RESULTS / name).read_text() for name in PAGES}
    monkeypatch.setattr(result_files, "RESULTS", copied)
    report.main(["--write"])
    assert {name: (copied / name).read_text() for name in expected} == expected


def test_without_write_the_numbers_are_printed_and_nothing_changes(copied, monkeypatch, capsys):
    monkeypatch.setattr(result_files, "RESULTS", copied)
    untouched = (copied / "README.md").read_text()
    report.main([])
    assert "dense / routed" in capsys.readouterr().out
    assert (copied / "README.md").read_text() == untouched
    assert not list(copied.glob("[CGT]*.md"))


def replace(folder, name, result):
    (folder / name).unlink()
    (folder / name).write_text(json.dumps(result))


def test_the_headline_tells_the_8b_shape_by_plans_that_a_router_chose(copied, monkeypatch):
    """Not by forced ones, however fast; and every row of another commit names it."""
    name = "end_to_end_h200.json"
    result = result_files.read(name)
    monkeypatch.setattr(result_files, "RESULTS", copied)
    for row in result["rows"]:
        if row["what"] == "recorded" and row["n_tokens"] == 131_072:
            row.update(speedup_over_cudnn=1.87, density=0.42)
    replace(copied, name, result)
    assert "this model's plans (42 %) were 1.87 times as fast" in report_gpu.headline()[2]
    other = {row["git_commit"] for row in result["rows"] if "git_commit" in row}
    assert other and all(
        any(f"(at {commit})" in line for line in report_gpu_tables.prefill()) for commit in other
    )


ABOUT = {
    **{"device": "D", "threads": 2, "dtype": "bfloat16", "versions": {"torch": "2.11.0"}, "seed": 5},
    **{"git_commit": "0123456789", "command": "python -m x", "slack_tokens": 8, "prompts_per_cell": 30},
}


@pytest.mark.parametrize(("ms", "told"), [(1.4, "met up to 32 rows a head"), (1.6, "not met")])
def test_the_goal_of_certifys_cost_is_judged_by_the_figures(ms, told):
    row = {"tokens": 131_072, "heads": 32, "dense_ms": 40.0, "certify_p20_ms": ms, "certify_p80_ms": ms}
    rows = [
        {**row, "rows": n, "certify_ms": ms * n / 32, "with_named_ms": 3, "with_plan_ms": 4} for n in (32, 64)
    ]
    rows = [one for one in rows if told != "not met" or one["rows"] >= 32]
    lines = report_certify.cost(
        {**ABOUT, "rows": rows, "kv_heads": 8, "size": 128, "density": 0.2, "named": "last:64"}
    )
    assert f"the goal of 1.5 ms a layer is {told}" in lines[0] and len(lines) == 4 + len(rows)
    assert "seed 5, commit" in lines[0] and "are single medians, whose spread was not kept" in lines[0]
