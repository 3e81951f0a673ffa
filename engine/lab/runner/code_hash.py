"""Which code decides a method's predictions, as a hash: rows of other rules or kernels must not mix.

    dense       the dense attention that everything is compared with
    ours        kernels/, engine/method/ and engine/decide/
    a rule      kernels/, what makes a plan of its choice, and its module with all that it imports of engine/lab/rivals/

Docstrings do not count. Neither does, for a GPU's rows, the CPU's attention (torch_*.py): no prediction on a GPU runs
it. Code that only times, records or shows is in none of them, so that its changes keep predictions; times then are of
several commits, which every row names.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from functools import lru_cache

from routesparse.engine import paths
from routesparse.engine.lab.studies.selection.methods import BASELINES as RIVALS
from routesparse.engine.lab.studies.selection.methods import Method
from routesparse.engine.provenance import without_docstrings

_DENSE = ("engine/method/attend.py",)
_OURS = ("kernels", "engine/method", "engine/decide", "engine/seeds.py")
_RULES = ("kernels", "engine/method/attend.py", "engine/method/segments.py", "engine/lab/rivals/rule.py")
_DECODING = "engine/lab/studies/selection/together.py"
CPU_ALONE = "torch_"  # how the names of such files in kernels/ begin


def code_hash(method: Method, on_gpu: bool) -> str:
    """Sixteen hex digits of the code that decides what a method answers, there or on a CPU."""
    return _hash(code_of(method, on_gpu))


def code_of(method: Method, on_gpu: bool) -> tuple[str, ...]:
    """The files of the repository that decide what a method answers; on a GPU without what a CPU alone runs."""
    if method.rule is None:
        return _files((*_OURS, _DECODING), on_gpu)
    if method.name == "dense":
        return _files((*_DENSE, _DECODING), on_gpu)
    module = method.rule.__module__ if inspect.isroutine(method.rule) else type(method.rule).__module__
    return _files((*_RULES, _DECODING, *_imported(module)), on_gpu)


@lru_cache(maxsize=64)
def _imported(module: str) -> tuple[str, ...]:
    """The files of a rule's module and of those of engine/lab/rivals/ that it imports, however deep."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = f"{'/'.join(name.split('.')[1:])}.py"
        if name in found or not (paths.REPOSITORY / file).is_file():
            continue
        found[name] = file
        for node in ast.walk(ast.parse((paths.REPOSITORY / file).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(RIVALS):
                waiting += [str(node.module), *(f"{node.module}.{one.name}" for one in node.names)]
    return tuple(found.values())


@lru_cache(maxsize=64)
def _files(parts: tuple[str, ...], on_gpu: bool) -> tuple[str, ...]:
    """Those that files and folders of the repository hold, each once."""
    root = paths.REPOSITORY
    found = {
        path.relative_to(root).as_posix()
        for part in parts
        for path in ([root / part] if part.endswith(".py") else (root / part).rglob("*.py"))
        if not (on_gpu and path.name.startswith(CPU_ALONE) and path.is_relative_to(root / "kernels"))
    }
    return tuple(sorted(found))


@lru_cache(maxsize=64)
def _hash(files: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for file in files:
        text = "\n".join(without_docstrings((paths.REPOSITORY / file).read_text("utf-8")))
        digest.update(f"{file}\0{text}\0".encode())
    return digest.hexdigest()[:16]
