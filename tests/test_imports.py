"""What a fresh interpreter loads and what it does not: without torch in the web process, without triton anywhere."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from tests.import_graph import ROOT, module_name, tree_of

# What the web process loads; each is checked once it exists.
READ_SIDE = (
    "app/**/*.py",
    "engine/__init__.py",
    "engine/errors.py",
    "engine/rows.py",
    "engine/certificate_rows.py",
    "engine/rounding.py",
    "engine/config.py",
    "engine/paths.py",
    "engine/method/router.py",
    "engine/store/*.py",
    "engine/export/*.py",
    "engine/results/*.py",
    "engine/jobs/*.py",
)


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
    tree = tree_of(file)
    return not any(isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) for node in tree.body)


def test_one_machine_loads_nothing_that_serves_several_hosts(tmp_path) -> None:
    """A store and a queue opened, a backup made and a command of the command line, all in files of a home."""
    code = (
        "import sys, pathlib\n"
        "from routesparse.engine import paths\n"
        "from routesparse.engine.cli.main import main\n"
        "from routesparse.engine.crew.crews import ONE\n"
        "from routesparse.engine.jobs.queue import JobQueue\n"
        "from routesparse.engine.operations.backup import back_up\n"
        "from routesparse.engine.store.opening import open_store\n"
        "open_store().close(); JobQueue(paths.home()).close(); ONE.crew(print)\n"
        f"back_up(paths.home(), pathlib.Path({str(tmp_path / 'backup')!r}))\n"
        "assert main(['store']) == 0\n"
        "loaded = [name for name in sys.modules if name.startswith('routesparse.engine.scale')]\n"
        "assert not loaded, loaded\n"
    )
    run_python(code, ROUTESPARSE_HOME=str(tmp_path / "home"))


def test_kernels_import_without_triton() -> None:
    """As on a Mac or on Windows; the torch backend works there."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from routesparse.kernels.attention import hopper_launch, row_order, triton_launch\n"
        "from routesparse.kernels.interface import RowPlan, sparse_attention\n"
        "x = torch.randn(1, 1, 100, 16)\n"
        "out, _ = sparse_attention(x, x, x, RowPlan.dense(1, 1, 100, 100))\n"
        "assert out.isfinite().all()\n"
    )
    run_python(code)
