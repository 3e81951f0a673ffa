"""Who may import whom: directions and libraries, read from the syntax trees; test_imports.py runs them for real.

Top-level imports of an importable module count double: they run on machines without a GPU or without torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

import pytest

from tests.import_graph import (
    FILES,
    FOLDERS,
    IMPORTS,
    ROOT,
    circle_in,
    components,
    edges,
    longest_chain,
    module_name,
    tree_of,
)

# Libraries that take long to import, or that not every machine has: functions may import them.
HEAVY = (
    *("datasets", "duckdb", "gguf", "huggingface_hub", "jieba", "kvpress", "opentelemetry", "pandas"),
    *("plotly", "psutil", "psycopg", "pyarrow", "pydantic", "pydantic_core", "ray", "rouge", "rouge_score"),
    *("safetensors", "scipy", "sklearn", "streamlit", "tokenizers", "torch", "transformers", "triton"),
    *("vllm", "wonderwords"),
)
MOST_LEVELS = 12  # of files in a folder without what runs whole prompts
CORE = ("app/", "kernels/", "engine/method/", "engine/decide/", "engine/device/", "engine/record/")
FACE = "engine/__init__.py"  # names what the engine hands out, and imports it when somebody asks
# What is about one family by right: rivals, and studies of one.
MAY_NAME_FAMILIES = ("engine/method/families/", "engine/lab/")

# What stands directly in a folder; everything else has a room.
GROUND = {
    "app": {"__init__", "__main__", "main"},
    "engine": {
        *("__init__", "analyze", "certificate_rows", "config", "errors", "paths", "probe_masks"),
        *("progress", "provenance", "rounding", "rows", "schema", "seeds", "shared_folder", "terminal"),
        "verdict",
    },
}
# Who may import whom: a room imports rooms of the layers above it in this list. A file stands in the longest entry that
# its path begins with. Files directly in engine/, files/ and prompts/ are the ground floor.
LAYERS = (
    ("kernels", "engine"),
    ("engine/device", "engine/store", "engine/stats", "engine/lab/generators"),
    ("engine/operations/places.py", "engine/jobs/database.py"),
    ("engine/crew", "engine/method", "engine/models"),
    ("engine/scale", "engine/calibration", "engine/export", "engine/decide"),
    # What several hosts share is opened in these files alone; engine/scale stands between them and what they open.
    ("engine/crew/crews.py", "engine/jobs/opening.py", "engine/store/opening.py"),
    ("engine/results", "engine/record", "engine/audit", "engine/profiles", "app/ui"),
    ("engine/runtime", "engine/bulk", "app/shell"),
    ("engine/calibrate", "engine/certification", "engine/analyze.py", "engine/jobs", "app/unit"),
    ("engine/doctor", "engine/operations", "engine/lab/rivals", "engine/lab/bench", "app/screens"),
    ("engine/lab", "app"),
    ("engine/cli",),
)
# Of the ground floor by what they say: what the fields of rows.py and certificate_rows.py are annotated with.
ANNOTATIONS = ("engine/store/ranges.py", "engine/store/rules.py")
LAYER = {room: place for place, rooms in enumerate(LAYERS) for room in rooms}
# Of engine/, the dashboard reads; it runs nothing.
READ_BY_PAGES = {
    *("engine/calibration", "engine/export", "engine/jobs", "engine/method", "engine/models"),
    *("engine/profiles", "engine/results", "engine/stats", "engine/store"),
}
READ_BY_PAGES |= {"engine", "engine/store/opening.py"}


def test_imports_point_from_app_to_engine_to_kernels() -> None:
    order = {f"routesparse.{folder}": rank for rank, folder in enumerate(FOLDERS)}
    for found in IMPORTS:
        target = ".".join(found.module.split(".")[:2])
        if target in order:
            assert order[target] >= FOLDERS.index(found.file.split("/")[0]), str(found)


def test_our_own_code_is_imported_as_routesparse() -> None:
    """``import engine`` works only from the repository's root and would load everything twice."""
    assert not [str(found) for found in IMPORTS if found.library in FOLDERS]


HOMES = {
    "triton": ("kernels/",),
    "transformers": (
        *("engine/runtime/transformers.py", "engine/runtime/watching.py"),
        *("engine/models/load.py", "engine/models/gguf_server.py"),
        "engine/calibrate/fisher.py",  # gradients want transformers' own attention, which the routed one has not
        *("engine/lab/studies/selection/together.py", "engine/lab/studies/parallel.py"),
    ),
    # The store in a file, how that file is opened and compacted, and the one of many writers.
    "duckdb": ("engine/store/duckdb_file.py", "engine/store/duckdb_store.py", "engine/scale/ducklake.py"),
    "psycopg": ("engine/scale/queue.py",),
    "torch": ("engine/", "kernels/"),
    "streamlit": ("app/",),
    "plotly": ("app/",),
}


@pytest.mark.parametrize("library", HOMES)
def test_a_library_stays_where_it_is_at_home(library: str) -> None:
    wrong = [one for one in IMPORTS if one.library == library and not one.file.startswith(HOMES[library])]
    assert not wrong, listed(f"imports of {library}", map(str, wrong))


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


def test_what_serves_several_hosts_is_imported_where_it_is_opened() -> None:
    """A dashboard or a command of one machine loads none of engine/scale (test_imports.py runs one)."""
    openers = (
        "store/opening",
        "jobs/opening",
        "crew/crews",
        "operations/backup",
        "operations/retention",
        "cli/operations",
    )
    assert not [
        str(found)
        for found in IMPORTS
        if found.module.startswith("routesparse.engine.scale")
        and not found.file.startswith("engine/scale/")
        and (found.top_level or found.file not in {f"engine/{name}.py" for name in openers})
    ]


def test_only_heavy_libraries_are_imported_inside_functions() -> None:
    """What is cheap to import stands at the top, where a reader looks for it; our own modules are counted below."""
    light = [
        str(found)
        for found in IMPORTS
        if not found.top_level and found.library not in HEAVY and found.library != "routesparse"
    ]
    assert not light, listed("move these imports to the top of their files", light)


def test_no_file_is_in_an_import_circle() -> None:
    graph = edges(FILES)
    circles = [
        " -> ".join(circle_in(graph, component)) + f"  (one of the circles through {len(component)} files)"
        for component in components(graph)
        if len(component) > 1
    ]
    assert not circles, listed("files import each other in a circle", circles)


@pytest.mark.parametrize("folder", ["app/", "kernels/", "engine/"])
def test_no_chain_of_imports_is_longer_than_twelve_files(folder: str) -> None:
    chain = longest_chain(edges(file for file in FILES if file.startswith(folder) and file.startswith(CORE)))
    assert len(chain) <= MOST_LEVELS, listed(f"{len(chain)} files import one another in a row", chain)


def test_the_graph_is_read_as_it_is() -> None:
    """The chain and the circle of a graph drawn by hand."""
    drawn = {"top": {"a", "b"}, "a": {"b"}, "b": {"c"}, "c": {"a", "end"}, "end": set(), "alone": set()}
    assert [sorted(c) for c in components(drawn) if len(c) > 1] == [["a", "b", "c"]]
    assert circle_in(drawn, ["c", "a", "b"]) == ["a", "b", "c", "a"]
    assert longest_chain(drawn) == ["top", "a + b + c", "end"]
    functions = edges([FACE, "engine/config.py"])
    assert functions == {FACE: {"engine/config.py"}, "engine/config.py": set()}


def room_of(file: str) -> str | None:
    """The room that a file stands in: the longest entry of LAYERS that its path begins with; None: in none."""
    if file in ANNOTATIONS:
        return "engine"
    folder, *inner = file.removesuffix(".py").split("/")
    if len(inner) == 1 and inner[0] not in GROUND.get(folder, inner):
        return None
    return max((room for room in LAYER if file == room or file.startswith(f"{room}/")), key=len, default=None)


def test_every_file_stands_in_a_room_and_imports_rooms_of_layers_above_it() -> None:
    wrong = []
    for file, targets in edges(FILES).items():
        room = room_of(file)
        assert room is not None, f"{file} stands in no room of LAYERS"
        for target in sorted(targets) if file != FACE else ():
            other = room_of(target)
            # A page imports nothing of another page.
            same = other == room and (room != "app/screens" or file.split("/")[2] == target.split("/")[2])
            above = LAYER[other] < LAYER[room]
            if room.startswith("app") and not other.startswith("app"):
                above = other in READ_BY_PAGES
            if not same and not above:
                wrong.append(f"{file} ({room}) imports {target} ({other})")
    assert not wrong, listed("imports against the table LAYERS", wrong)


def test_only_commands_import_the_lab_and_only_inside_functions() -> None:
    """The product runs without studies, rivals, suites and benches; the lab leans on the product."""
    wrong = [
        str(found)
        for found in IMPORTS
        if f"{found.module}.".startswith("routesparse.engine.lab.")
        and not found.file.startswith("engine/lab/")
        and (found.top_level or not found.file.startswith("engine/cli/"))
    ]
    assert not wrong, listed("imports of engine/lab from outside of it", wrong)


def test_the_method_never_asks_which_device_it_runs_on() -> None:
    """One definition for every device: what differs on a GPU is dispatched in kernels/."""
    wrong = []
    for file in FILES:
        if room_of(file) != "engine/method":
            continue
        for node in ast.walk(tree_of(file)):
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
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not wrong, listed("families named outside their own files; ask the registry instead", wrong)


def listed(what: str, items: Iterable[str]) -> str:
    """A failure's text: a line per item."""
    return "\n  ".join([f"{what}:", *items])
