"""The kernels that were checked on a GPU are the kernels that stand here. No GPU needed: hashes are compared."""

import json
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.provenance import kernels_sha256

RESULT = "data/results/correctness_gpu.json"
COMMAND = f"python -m routesparse.engine.lab.bench.correctness --out {RESULT}"


def test_every_kernel_was_checked_on_a_gpu_as_it_stands() -> None:
    found = json.loads((paths.REPOSITORY / RESULT).read_text("utf-8"))
    assert found["kernels_sha256"] == kernels_sha256(), (
        f"kernels/ changed since {RESULT} was measured on {found['device']} at commit {found['git_commit']}; "
        f"run this on such a GPU and commit the file: {COMMAND}"
    )
    assert [row["case"] for row in found["findings"] if not row["passed"]] == []


def test_the_hash_changes_with_names_and_code_but_not_with_words_and_line_ends(tmp_path: Path) -> None:
    folder = tmp_path / "kernels" / "attention"
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_bytes(b"a = 1\nb = 2\n")
    first = kernels_sha256(tmp_path / "kernels")
    (folder / "kernel.py").write_bytes(b"a = 1\r\nb = 2\r\n")
    (folder / "notes.txt").write_text("not code")
    assert kernels_sha256(tmp_path / "kernels") == first
    (folder / "kernel.py").write_bytes(b'"""Some\nwords."""\na = 1\nb = 2\n')
    assert kernels_sha256(tmp_path / "kernels") == first
    (folder / "kernel.py").write_bytes(b"def f():\n    'words'\n    return 'code'\n")
    said = kernels_sha256(tmp_path / "kernels")
    (folder / "kernel.py").write_bytes(b"def f():\n    'other words'\n    return 'code'\n")
    assert kernels_sha256(tmp_path / "kernels") == said
    (folder / "kernel.py").write_bytes(b"def f():\n    'words'\n    return 'other code'\n")
    assert kernels_sha256(tmp_path / "kernels") != said
    (folder / "kernel.py").write_bytes(b"a = 1\nb = 3\n")
    assert kernels_sha256(tmp_path / "kernels") != first
    (folder / "kernel.py").write_bytes(b"a = 1\nb = 2\n")
    (folder / "kernel.py").rename(folder / "launch.py")
    assert kernels_sha256(tmp_path / "kernels") != first
