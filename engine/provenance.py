"""Where numbers come from: versions of what computed them, and the commit of this repository."""

from __future__ import annotations

import ast
import datetime
import hashlib
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from routesparse.engine import paths

PACKAGES = ("torch", "transformers", "triton", "numpy")


def now() -> str:
    """The time, UTC, as ISO 8601 to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


@lru_cache(maxsize=1)
def git_commit() -> str | None:
    """The repository's commit, None outside a git checkout."""
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=paths.REPOSITORY, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None


def kernels_sha256(folder: Path | None = None) -> str:
    """Sixteen hex digits that change with any Python file of kernels/: its name below the folder, or its code.

    Docstrings and line ends do not count. bench/correctness.py writes it beside its findings, so that a test can tell
    whether these are about the kernels as they are. folder: the repository's kernels/ unless named.
    """
    folder = paths.REPOSITORY / "kernels" if folder is None else folder
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        text = "\n".join(without_docstrings(path.read_text("utf-8")))
        digest.update(f"{path.relative_to(folder).as_posix()}\0{text}\0".encode())
    return digest.hexdigest()[:16]


def without_docstrings(code: str) -> list[str]:
    """The lines of a Python file that are not part of a docstring."""
    lines = code.splitlines()
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, described) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            for line in range(docstring.lineno - 1, docstring.end_lineno or docstring.lineno):
                lines[line] = ""
    return [line for line in lines if line]
