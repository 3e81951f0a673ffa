"""README.md's numbers and the pages in data/results say what the result files say."""

import pytest

from routesparse.engine import paths
from routesparse.engine.evaluation import report, result_files

PAGES = ("CPU.md", "GPU.md", "TRUST.md")


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
