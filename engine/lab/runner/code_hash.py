"""Which code decides a method's predictions, as a hash: rows of other rules or kernels must not mix.

    dense       the dense attention that everything is compared with
    ours        kernels/, engine/method/ and engine/decide/
    a rule      kernels/, what makes a plan of its choice, and its module with all that it imports of engine/lab/rivals/

Docstrings do not count. Neither does, for a GPU's rows, the CPU's attention (torch_*.py): no prediction on a GPU runs
it. Code that only times, records or shows is in none of them, so that its
changes keep predictions; times then are of several commits, which every row names.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from functools import lru_cache
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.lab.studies.selection.methods import Method
from routesparse.engine.provenance import without_docstrings

_BASELINES = "routesparse.engine.lab.rivals"
_DENSE = ("engine/method/attend.py",)
_OURS = ("kernels", "engine/method", "engine/decide", "engine/seeds.py")
_RULES = ("kernels", "engine/method/attend.py", "engine/method/segments.py", "engine/lab/rivals/rule.py")
_DECODING = ("engine/lab/studies/selection/together.py",)
CPU_ALONE = "torch_"  # how the names of such files in kernels/ begin


def code_hash(method: Method, on_gpu: bool) -> str:
    """Sixteen hex digits of the code that decides what a method answers, there or on a CPU."""
    if method.rule is None:
        return _hash((*_OURS, *_DECODING), on_gpu)
    kind = method.rule if inspect.isroutine(method.rule) else type(method.rule)
    module = inspect.getmodule(kind)
    if method.name == "dense" or module is None or module.__file__ is None:
        return _hash((*_DENSE, *_DECODING), on_gpu)
    return _hash((*_RULES, *_DECODING, *_imported(Path(module.__file__).resolve())), on_gpu)


@lru_cache(maxsize=64)
def _imported(module: Path) -> tuple[str, ...]:
    """A rule's module and those of engine/lab/rivals/ that it imports, however deep."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        waiting += [
            file
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_BASELINES)
            for file in _files(node)
        ]
    root = paths.REPOSITORY.resolve()
    return tuple(sorted(path.relative_to(root).as_posix() for path in found if path.is_relative_to(root)))


def _files(node: ast.ImportFrom) -> list[Path]:
    """The file of `from a.b import c`, and that of a.b.c where c is a module."""
    folder = paths.REPOSITORY.resolve().joinpath(*(node.module or "").split(".")[1:])
    wanted = [folder.with_suffix(".py"), *(folder / f"{name.name}.py" for name in node.names)]
    return [path for path in wanted if path.exists()]


@lru_cache(maxsize=64)
def _hash(parts: tuple[str, ...], on_gpu: bool) -> str:
    """Of files and folders of the repository, each file once; with ``on_gpu`` without what a CPU alone runs."""
    root, digest = paths.REPOSITORY, hashlib.sha256()
    files = {
        path
        for part in parts
        for path in ([root / part] if part.endswith(".py") else (root / part).rglob("*.py"))
        if not (on_gpu and path.name.startswith(CPU_ALONE) and path.is_relative_to(root / "kernels"))
    }
    for path in sorted(files, key=lambda path: path.relative_to(root).as_posix()):
        text = "\n".join(without_docstrings(path.read_text("utf-8")))
        digest.update(f"{path.relative_to(root).as_posix()}\0{text}\0".encode())
    return digest.hexdigest()[:16]
