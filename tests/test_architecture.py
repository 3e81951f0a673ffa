"""Who may import whom: directions and libraries, read from the syntax trees, and run for real.

Top-level imports of an importable module count double: they run on machines without a GPU or without torch.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("app", "engine", "kernels")
# What the web process loads; each is checked once it exists.
READ_SIDE = (
    "app/*.py",
    "app/**/*.py",
    "engine/__init__.py",
    "engine/errors.py",
    "engine/rows.py",
    "engine/config.py",
    "engine/paths.py",
    "engine/method/router.py",
    "engine/store/*.py",
    "engine/jobs/*.py",
)


@dataclass(frozen=True)
class Import:
    """One import statement of one of our files."""

    file: str  # relative to the repository, with slashes
    line: int
    module: str  # dotted, relative imports resolved
    top_level: bool  # runs when the file is imported

    @property
    def library(self) -> str:
        return self.module.split(".")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def module_name(file: str) -> str:
    """engine/store/bundle.py as routesparse.engine.store.bundle."""
    return "routesparse." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(file: str) -> Iterator[Import]:
    package = module_name(file) if file.endswith("__init__.py") else module_name(file).rpartition(".")[0]

    def visit(node: ast.AST, top_level: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(file, child.lineno, alias.name, top_level)
            elif isinstance(child, ast.ImportFrom):
                parents = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*parents, child.module or ""]).rstrip(".") if child.level else child.module
                for alias in child.names:
                    yield Import(file, child.lineno, f"{base}.{alias.name}", top_level)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, top_level and not inside)

    yield from visit(ast.parse((ROOT / file).read_text("utf-8")), True)


FILES = sorted(
    path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
)
IMPORTS = [found for file in FILES for found in imports_of(file)]


def offenders(library: str, allowed) -> list[str]:
    return [str(found) for found in IMPORTS if found.library == library and not allowed(found.file)]


def test_app_imports_no_kernels_and_no_numeric_libraries() -> None:
    forbidden = {"torch", "triton", "transformers", "duckdb"}
    assert not [
        str(found)
        for found in IMPORTS
        if found.file.startswith("app/")
        and (found.library in forbidden or found.module.startswith("routesparse.kernels"))
    ]


def test_imports_point_from_app_to_engine_to_kernels() -> None:
    order = {f"routesparse.{folder}": rank for rank, folder in enumerate(FOLDERS)}
    for found in IMPORTS:
        target = ".".join(found.module.split(".")[:2])
        if target in order:
            assert order[target] >= FOLDERS.index(found.file.split("/")[0]), str(found)


def test_our_own_code_is_imported_as_routesparse() -> None:
    """``import engine`` works only from the repository's root and would load everything twice."""
    assert not [str(found) for found in IMPORTS if found.library in FOLDERS]


def test_triton_stays_in_kernels() -> None:
    assert not offenders("triton", lambda file: file.startswith("kernels/"))


def test_modules_that_load_triton_are_imported_inside_functions_only() -> None:
    """So everything imports on a machine without Triton."""
    device_code = {found.file for found in IMPORTS if found.library == "triton" and found.top_level}
    names = {module_name(file) for file in device_code}
    assert not [
        str(found)
        for found in IMPORTS
        if found.top_level
        and found.file not in device_code
        and any(found.module.startswith(name) for name in names)
    ]


def test_transformers_stays_in_the_interface_and_model_loading() -> None:
    homes = ("engine/runtime/transformers.py", "engine/models/load.py")
    assert not offenders("transformers", lambda f: f in homes or f.startswith("engine/demo_model/"))


def test_duckdb_stays_in_one_module_of_the_store() -> None:
    files = {found.file for found in IMPORTS if found.library == "duckdb"}
    assert len(files) <= 1 and all(file.startswith("engine/store/") for file in files), files


@pytest.mark.parametrize("library", ["streamlit", "plotly"])
def test_page_libraries_stay_in_app(library: str) -> None:
    assert not offenders(library, lambda file: file.startswith("app/"))


def test_no_module_is_in_an_import_circle() -> None:
    """Top-level imports only; a function may import what its module cannot."""
    names = {module_name(file): file for file in FILES}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for found in IMPORTS:
        for target in (found.module, found.module.rpartition(".")[0]):
            if found.top_level and target in names and target != module_name(found.file):
                # A package's own __init__ runs first anyway; only its re-exports could close a circle.
                graph[module_name(found.file)].add(target)
                break
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for target in sorted(graph[name]):
                walk(target, (*path, name))
            done.add(name)

    for name in sorted(graph):
        walk(name, ())


def run_python(code: str, **environment: str) -> str:
    """Output of a fresh interpreter, started in the repository's root."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_transformers_does_not_run_our_kernels_folder() -> None:
    """transformers probes for a PyPI package called ``kernels``; ours must not answer to that name."""
    pytest.importorskip("transformers")
    assert not (ROOT / "kernels" / "__init__.py").exists()
    code = (
        "import sys, transformers.models.llama.modeling_llama\n"
        "ours = [m.__file__ for m in list(sys.modules.values())\n"
        f"        if str(getattr(m, '__file__', None) or '').startswith({str(ROOT / 'kernels')!r})]\n"
        "assert not ours, ours\n"
    )
    run_python(code, PYTHONPATH=str(ROOT))


def test_the_web_process_imports_neither_torch_nor_triton() -> None:
    """Every module of the read side is imported by one fresh interpreter."""
    found = sorted({path.relative_to(ROOT).as_posix() for glob in READ_SIDE for path in ROOT.glob(glob)})
    # Pages run Streamlit code when imported; their imports are covered by the syntax tree above.
    modules = [module_name(file) for file in found if is_importable(file)]
    assert "routesparse.engine" in modules
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'torch', 'triton', 'transformers'} & set(sys.modules)\n"
        "    assert not heavy, f'{name} imports {sorted(heavy)}'\n"
    )
    run_python(code)


def is_importable(file: str) -> bool:
    """Whether importing the file only defines things: no page code at its top level."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return not any(isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) for node in tree.body)


def test_kernels_import_without_triton() -> None:
    """As on a Mac or on Windows; the torch backend works there."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from routesparse.kernels import triton_backend\n"
        "from routesparse.kernels.interface import RowPlan, sparse_attention\n"
        "x = torch.randn(1, 1, 100, 16)\n"
        "out, _ = sparse_attention(x, x, x, RowPlan.dense(1, 1, 100, 100))\n"
        "assert out.isfinite().all()\n"
    )
    run_python(code)
