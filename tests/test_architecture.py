"""Who may import whom: directions and libraries, read from the syntax trees, and run for real.

Top-level imports of an importable module count double: they run on machines without a GPU or without torch.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("app", "engine", "kernels")
# What the web process loads; each is checked once it exists.
READ_SIDE = (
    "app/**/*.py",
    "engine/__init__.py",
    "engine/errors.py",
    "engine/rows.py",
    "engine/certificate_rows.py",
    "engine/certification/rounding.py",
    "engine/config.py",
    "engine/paths.py",
    "engine/method/router.py",
    "engine/store/*.py",
    "engine/export/*.py",
    "engine/results/*.py",
    "engine/jobs/*.py",
)


# Libraries that take long to import, or that not every machine has: functions may import them.
HEAVY = (
    "datasets",
    "duckdb",
    "huggingface_hub",
    "jieba",
    "kvpress",
    "pandas",
    "plotly",
    "psutil",
    "pyarrow",
    "ray",
    "rouge",
    "rouge_score",
    "safetensors",
    "scipy",
    "sklearn",
    "streamlit",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
    "vllm",
    "wonderwords",
)
MOST_LEVELS = 12  # in one of the three folders
# What is about one family by right: rivals, studies of one, and the four that the Triton kernels have branches for.
MAY_NAME_FAMILIES = (
    "engine/method/families/",
    "engine/baselines/",
    "engine/evaluation/",
    "kernels/families.py",
    "app/screens/home/pattern_icons.py",  # pictures of those that have one; a family without is shown by its letter
)

# What stands directly in a folder; everything else has a room.
GROUND = {
    "app": {"__init__", "__main__", "main"},
    "engine": {
        "__init__",
        "analyze",
        "certificate_rows",
        "config",
        "deep_check",
        "doctor",
        "errors",
        "fields",
        "paths",
        "plain_files",
        "progress",
        "prompts",
        "provenance",
        "rows",
        "seeds",
        "shared_folder",
        "verdict",
    },
}
# Who may import whom. A file stands in the longest entry that its path begins with; it imports its own room and those
# named here. Files directly in engine/ are the ground floor: configuration, errors, paths, rows.
_DECIDING = ("engine", "engine/device", "engine/method", "kernels")
_ROUTING = (
    *_DECIDING,
    "engine/audit",
    "engine/calibration",
    "engine/decide",
    "engine/models",
    "engine/profiles",
    "engine/record",
    "engine/runtime/refusals.py",
)
_RUNNING = (*_ROUTING, "engine/runtime", "engine/audit/dense_forward.py", "engine/stats", "engine/store")
_STUDYING = (
    *_RUNNING,
    "engine/analyze.py",
    "engine/baselines",
    "engine/bench",
    "engine/bulk",
    "engine/calibrate",
    "engine/certification",
    "engine/certification/rounding.py",
    "engine/crew",
    "engine/demo_model",
    "engine/export",
    "engine/jobs",
)
_READING = (
    "engine",
    "engine/calibration",
    "engine/certification/rounding.py",
    "engine/export",
    "engine/jobs",
    "engine/method",
    "engine/models",
    "engine/profiles",
    "engine/results",
    "engine/stats",
    "engine/store",
)
ROOMS: dict[str, tuple[str, ...]] = {
    "kernels": (),
    "engine": (),
    "engine/crew": ("engine", "engine/device"),
    "engine/device": ("engine", "kernels"),
    "engine/method": ("engine", "engine/device", "kernels"),
    "engine/stats": ("engine",),
    "engine/calibration": ("engine", "engine/method", "engine/stats"),
    "engine/record/masks.py": ("engine",),
    "engine/store": ("engine", "engine/record/masks.py"),
    "engine/certification/rounding.py": (),
    "engine/export": ("engine", "engine/certification/rounding.py", "engine/method", "engine/store"),
    "engine/results": ("engine", "engine/export", "engine/stats"),
    "engine/decide": (*_DECIDING, "engine/record/masks.py"),
    "engine/record": (
        *_DECIDING,
        "engine/calibration",
        "engine/decide",
        "engine/record/masks.py",
        "engine/store",
    ),
    "engine/audit": (*_DECIDING, "engine/decide"),
    "engine/profiles": (*_DECIDING, "engine/decide"),
    "engine/runtime/refusals.py": ("engine",),
    "engine/models": ("engine", "engine/runtime/refusals.py"),
    "engine/runtime": _ROUTING,
    "engine/audit/dense_forward.py": (*_ROUTING, "engine/runtime"),
    "engine/calibrate": (*_RUNNING, "engine/crew"),
    "engine/certification": (
        *_DECIDING,
        "engine/certification/rounding.py",
        "engine/runtime",
        "engine/store",
    ),
    "engine/baselines": _RUNNING,
    "engine/analyze.py": _RUNNING,
    "engine/deep_check.py": _RUNNING,
    "engine/doctor.py": (*_RUNNING, "engine/deep_check.py"),
    "engine/demo_model": ("engine", "engine/models", "engine/runtime"),
    "engine/bench": _RUNNING,
    "engine/jobs": ("engine", "engine/calibration", "engine/device", "engine/models", "engine/store"),
    "engine/bulk": (
        "engine",
        "engine/calibration",
        "engine/crew",
        "engine/device",
        "engine/jobs",
        "engine/models",
        "engine/profiles",
        "engine/store",
    ),
    "engine/evaluation": (*_STUDYING, "engine/results"),
    "engine/operations": ("engine", "engine/jobs", "engine/store"),
    "engine/cli": (
        *_STUDYING,
        "engine/doctor.py",
        "engine/evaluation",
        "engine/operations",
        "engine/results",
    ),
    "app/ui": _READING,
    "app/shell": (*_READING, "app/ui"),
    "app/unit": (*_READING, "app/shell", "app/ui"),
    "app/screens": (*_READING, "app/shell", "app/ui", "app/unit"),
    "app": (*_READING, "app/screens", "app/shell", "app/ui"),
}


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
        and any(f"{found.module}.".startswith(f"{name}.") for name in names)
    ]


def test_transformers_stays_in_the_interface_and_model_loading() -> None:
    # The decision recorder makes its models by transformers alone: it must run beside any version of this project.
    homes = (
        "engine/runtime/continuous.py",
        "engine/runtime/transformers.py",
        "engine/runtime/watching.py",
        "engine/models/load.py",
        "engine/evaluation/studies/decisions.py",
        "engine/evaluation/studies/selection/together.py",  # stacks the caches of prefills
    )
    assert not offenders("transformers", lambda f: f in homes or f.startswith("engine/demo_model/"))


def test_duckdb_stays_in_the_stores() -> None:
    """The one in a file, how that file is opened and compacted, and the one of many writers."""
    names = ("compact", "duckdb_file", "duckdb_store", "ducklake")
    assert not offenders("duckdb", lambda file: file in {f"engine/store/{name}.py" for name in names})


@pytest.mark.parametrize("library", ["streamlit", "plotly"])
def test_page_libraries_stay_in_app(library: str) -> None:
    assert not offenders(library, lambda file: file.startswith("app/"))


def test_only_heavy_libraries_are_imported_inside_functions() -> None:
    """What is cheap to import stands at the top, where a reader looks for it; our own modules are counted below."""
    light = [
        str(found)
        for found in IMPORTS
        if not found.top_level and found.library not in HEAVY and found.library != "routesparse"
    ]
    assert not light, listed("move these imports to the top of their files", light)


def edges(files: Iterable[str]) -> dict[str, set[str]]:
    """File -> our files that it imports, inside functions too; imports for type checkers only do not count."""
    chosen = set(files)
    names = {module_name(file): file for file in FILES}
    graph: dict[str, set[str]] = {file: set() for file in chosen}
    for found in IMPORTS:
        # ``from package import name`` is the file of that name where there is one, else the package's __init__.
        target = names.get(found.module) or names.get(found.module.rpartition(".")[0])
        if found.file in chosen and target in chosen and target != found.file:
            graph[found.file].add(target)
    return graph


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components (Tarjan 1972), a component after all that it imports; several files: a circle."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        number[file] = low[file] = len(number)
        stack.append(file)
        for target in sorted(graph[file]):
            if target not in number:
                visit(target)
            if target in stack:
                low[file] = min(low[file], low[target])
        if low[file] == number[file]:
            place = stack.index(file)
            found.append(stack[place:])
            del stack[place:]

    for file in sorted(graph):
        if file not in number:
            visit(file)
    return found


def circle_in(graph: dict[str, set[str]], component: list[str]) -> list[str]:
    """The shortest way from a component's first file back to itself, by breadth."""
    first = min(component)
    ways = [[first]]
    for way in ways:
        for target in sorted(graph[way[-1]] & set(component)):
            if target == first:
                return [*way, first]
            if all(target not in other for other in ways):
                ways.append([*way, target])
    raise AssertionError(f"{component} is no circle")


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """The longest chain of imports, from the file that nobody on it imports down; a circle counts as one file."""
    chain: dict[str, list[str]] = {}
    longest: list[str] = []
    for component in components(graph):
        below = {target for file in component for target in graph[file]} - set(component)
        best = max((chain[target] for target in sorted(below)), key=len, default=[])
        for file in component:
            chain[file] = [" + ".join(sorted(component)), *best]
        longest = max(longest, chain[component[0]], key=len)
    return longest


def test_no_file_is_in_an_import_circle() -> None:
    graph = edges(FILES)
    circles = [
        " -> ".join(circle_in(graph, component)) + f"  (one of the circles through {len(component)} files)"
        for component in components(graph)
        if len(component) > 1
    ]
    assert not circles, listed("files import each other in a circle", circles)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_chain_of_imports_is_longer_than_twelve_files(folder: str) -> None:
    chain = longest_chain(edges(file for file in FILES if file.startswith(f"{folder}/")))
    assert len(chain) <= MOST_LEVELS, listed(f"{len(chain)} files import one another in a row", chain)


def test_the_graph_is_read_as_it_is() -> None:
    """The chain and the circle of a graph drawn by hand."""
    drawn = {"top": {"a", "b"}, "a": {"b"}, "b": {"c"}, "c": {"a", "end"}, "end": set(), "alone": set()}
    assert [sorted(c) for c in components(drawn) if len(c) > 1] == [["a", "b", "c"]]
    assert circle_in(drawn, ["c", "a", "b"]) == ["a", "b", "c", "a"]
    assert longest_chain(drawn) == ["top", "a + b + c", "end"]
    functions = edges(["engine/__init__.py", "engine/config.py"])
    assert functions == {"engine/__init__.py": set(), "engine/config.py": set()}


def room_of(file: str) -> str | None:
    """The room that a file stands in: the longest entry of ROOMS that its path begins with; None: in none."""
    folder, *inner = file.removesuffix(".py").split("/")
    if len(inner) == 1 and inner[0] not in GROUND.get(folder, inner):
        return None
    return max((room for room in ROOMS if file == room or file.startswith(f"{room}/")), key=len, default=None)


def test_every_file_stands_in_a_room() -> None:
    homeless = [file for file in FILES if room_of(file) is None]
    assert not homeless, listed("these files stand in no room of the table ROOMS", homeless)


def test_a_room_imports_only_what_the_table_allows() -> None:
    wrong = []
    for file, targets in edges(FILES).items():
        room = room_of(file)
        if room is None:
            continue
        for target in sorted(targets):
            other = room_of(target)
            same = other == room and not room.endswith("/screens")
            # A page imports nothing of another page.
            same |= other == room and file.split("/")[:3] == target.split("/")[:3]
            if other is not None and not same and other not in ROOMS[room]:
                wrong.append(f"{file} ({room}) imports {target} ({other})")
    assert not wrong, listed("imports against the table ROOMS", wrong)


def test_the_table_of_rooms_has_no_circle() -> None:
    """What a room may import, it may not be imported by: the table itself is one-way."""
    unknown = {other for allowed in ROOMS.values() for other in allowed} - set(ROOMS)
    assert not unknown
    assert [
        c for c in components({room: set(allowed) for room, allowed in ROOMS.items()}) if len(c) > 1
    ] == []


def test_the_method_never_asks_which_device_it_runs_on() -> None:
    """One definition for every device: what differs on a GPU is dispatched in kernels/."""
    wrong = []
    for file in FILES:
        if room_of(file) != "engine/method":
            continue
        for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
            text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if text.endswith((".is_cuda", "device.type", "torch.cuda", "is_available")):
                wrong.append(f"{file}:{node.lineno} reads {text}")
    assert not wrong, listed("branches on the device in engine/method", wrong)


def test_a_family_is_named_in_its_own_file_only() -> None:
    """A stranger adds a family by one file: no list, letter, colour or branch elsewhere knows families by name."""
    files = (ROOT / "engine/method/families").glob("*.py")
    names = {path.stem for path in files if not path.stem.startswith("_")}
    assert {"a_shape", "vertical_slash", "block_sparse"} <= names
    wrong = [
        f"{file}:{node.lineno} says {node.value!r}"
        for file in FILES
        if not file.startswith(MAY_NAME_FAMILIES)
        for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not wrong, listed("families named outside their own files; ask the registry instead", wrong)


def listed(what: str, items: Iterable[str]) -> str:
    """A failure's text: a line per item."""
    return "\n  ".join([f"{what}:", *items])


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
        "from routesparse.kernels.attention import hopper_launch, row_order, triton_launch\n"
        "from routesparse.kernels.interface import RowPlan, sparse_attention\n"
        "x = torch.randn(1, 1, 100, 16)\n"
        "out, _ = sparse_attention(x, x, x, RowPlan.dense(1, 1, 100, 100))\n"
        "assert out.isfinite().all()\n"
    )
    run_python(code)
