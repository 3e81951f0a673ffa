"""README.md and data/results/GPU.md say what the result files say."""

from routesparse.engine import paths
from routesparse.engine.evaluation import report, report_gpu


def test_the_readme_and_the_gpu_page_are_what_the_report_writes(monkeypatch, tmp_path):
    readme, page = paths.REPOSITORY / "README.md", report_gpu.RESULTS / "GPU.md"
    written = {path: path.read_text() for path in (readme, page)}
    results = tmp_path / "results"
    results.mkdir()
    for path in report_gpu.RESULTS.iterdir():
        (results / path.name).symlink_to(path)
    (results / "GPU.md").unlink()
    (tmp_path / "README.md").write_text(written[readme])
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path)
    monkeypatch.setattr(report_gpu, "RESULTS", results)
    report.main(["--write"])
    assert (tmp_path / "README.md").read_text() == written[readme]
    assert (results / "GPU.md").read_text() == written[page]
