"""README.md's numbers and the pages in data/results say what the result files say."""

import json

import pytest

from routesparse.engine import paths
from routesparse.engine.evaluation import report, report_cpu, report_gpu, result_files

PAGES = ("CPU.md", "GPU.md", "TRUST.md", "CERTIFY.md", "DETECTION.md")


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
    assert other and all(any(f"(at {commit})" in line for line in report_gpu.prefill()) for commit in other)


@pytest.mark.parametrize("seed", [report_cpu.DEVELOPMENT_SEED, report_cpu.DEVELOPMENT_SEED + 1])
def test_needles_that_the_method_was_changed_for_are_called_so(copied, monkeypatch, seed):
    result = result_files.read("needles.json")
    monkeypatch.setattr(result_files, "RESULTS", copied)
    replace(copied, "needles.json", {**result, "seed": seed})
    told = "\n".join(report_cpu.needles())
    assert ("not an independent test" in told) == (seed == report_cpu.DEVELOPMENT_SEED)
    assert ("drawn for this table" in told) == (seed != report_cpu.DEVELOPMENT_SEED)
