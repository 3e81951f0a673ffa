"""What this machine offers and what is missing: the checks behind ``routesparse doctor``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from routesparse.engine import paths
from routesparse.engine.errors import RouteSparseError

LEAST_FREE_BYTES = 1 << 30
LEAST_MEMORY_BYTES = 4 << 30
REQUIRED = (
    *("torch", "transformers", "safetensors", "numpy", "scipy"),
    *("pyarrow", "duckdb", "streamlit", "plotly"),
)


@dataclass(frozen=True)
class Check:
    """One line of the report; a problem says what to do."""

    name: str
    status: Literal["ok", "note", "problem"]
    detail: str


def checks(model: str, deep: bool = False) -> Iterator[Check]:
    """All checks, cheap ones first; torch is imported half way. deep: the model against the oracle as well."""
    yield Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _packages()
    yield _name_clash()
    yield _memory()
    yield _home()
    yield from _or_problem("store", _store())
    if paths.queue() is not None:
        yield from _or_problem("queue", _queue())
    yield from _torch()
    yield from _or_problem("model", _model(model))
    yield from _or_problem("calibrations", _calibrations())
    if deep:
        yield from _or_problem("oracle", _deep(model))


def _or_problem(name: str, found: Iterator[Check]) -> Iterator[Check]:
    """An error of ours is a problem of this name."""
    try:
        yield from found
    except RouteSparseError as error:
        yield Check(name, "problem", str(error))


def _packages() -> Check:
    found, missing = [], []
    for name in ("routesparse", *REQUIRED, "triton"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            if name in REQUIRED:
                missing.append(name)
    if missing:
        fix = f"run in {paths.REPOSITORY}: .venv/bin/python .ci/lock.py install (how `make run` sets up)"
        return Check("packages", "problem", f"missing {', '.join(missing)}; {fix}")
    return Check("packages", "ok", ", ".join(found))


def _name_clash() -> Check:
    """transformers imports whatever is called `kernels` at the top level; ours must not be found there."""
    spec = importlib.util.find_spec("kernels")
    origin = None if spec is None else spec.origin
    if origin is not None and Path(origin).is_relative_to(paths.REPOSITORY):
        return Check("names", "problem", f"{origin} shadows the package `kernels`; delete that file")
    return Check("names", "ok", "our kernels folder does not shadow the package `kernels`")


def _memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{cores} cores, {memory.total / 2**30:.1f} GiB memory, {memory.available / 2**30:.1f} available"
    if memory.available < LEAST_MEMORY_BYTES:
        return Check("machine", "note", f"{text}; long prompts need more than {LEAST_MEMORY_BYTES >> 30} GiB")
    return Check("machine", "ok", text)


def _home() -> Check:
    home = paths.home()
    existing = next(path for path in (home, *home.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=existing):
            pass
        free = shutil.disk_usage(existing).free
    except OSError as error:
        fix = "set ROUTESPARSE_HOME to a writable folder"
        return Check("home", "problem", f"{home} is not writable ({error.strerror}); {fix}")
    if free < LEAST_FREE_BYTES:
        return Check("home", "problem", f"{home} has {free / 2**20:,.0f} MiB free; make room or move it")
    return Check("home", "ok", f"{home}, writable, {free / 2**30:.1f} GiB free")


def _store() -> Iterator[Check]:
    """Which store is used; one of many writers is opened, the file may be a dashboard's."""
    from routesparse.engine.store.opening import open_store

    if paths.store() is None:
        how = " with one writer" if paths.shared() is None else f"; bundles come by {paths.spool()}"
        yield Check("store", "ok", f"{paths.database()}, a DuckDB file{how}")
        return
    with contextlib.closing(open_store()) as store:
        runs = len(store.run_ids())
    yield Check("store", "ok", f"DuckLake on PostgreSQL, {runs} runs, shared folder {paths.shared()}")


def _queue() -> Iterator[Check]:
    """A queue of several hosts is opened; a file is made when somebody needs it."""
    from routesparse.engine.jobs.queue import JobQueue

    with contextlib.closing(JobQueue(paths.home())) as queue:
        jobs, workers = sum(queue.tally().values()), len(queue.workers())
    yield Check("queue", "ok", f"PostgreSQL, {jobs} jobs, {workers} live workers, folder {paths.shared()}")


def _torch() -> Iterator[Check]:
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            size = f"{found.total_memory / 2**30:.0f} GiB"
            yield Check("device", "ok", f"cuda:{index} {found.name}, {size}, bfloat16")
        yield compiler()
    else:
        from routesparse.engine.device.names import device_name

        name = device_name(torch.device("cpu"))
        yield Check("device", "ok", f"{name}, {torch.get_num_threads()} threads, float32 (no GPU found)")


def compiler() -> Check:
    """What Triton needs on a GPU: it compiles a module against Python's headers before the first kernel."""
    found = os.environ.get("CC")
    if found is None:
        found = shutil.which("gcc") or shutil.which("clang")
    if found is None or shutil.which(found) is None:
        asked = "gcc or clang" if found is None else f"CC={found}"
        return Check("compiler", "problem", f"{asked} is not there; Triton needs a C compiler: install gcc")
    # Triton too takes the distribution's headers, not Debian's /usr/local.
    scheme = sysconfig.get_default_scheme()
    include = sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme)
    header = Path(include) / "Python.h"
    if not header.exists():
        fix = "install Python's headers (on Debian python3-dev)"
        return Check("compiler", "problem", f"{header} is missing, which Triton compiles against; {fix}")
    return Check("compiler", "ok", f"{found}, {header}")


def _model(name: str) -> Iterator[Check]:
    """The model loads, and a latency profile fits it."""
    from routesparse.engine.models.load import load_model

    model = load_model(name)
    text = f"{name}: {model.layers} layers, {model.heads} heads, up to {model.max_tokens:,} tokens"
    yield Check("model", "ok", f"{text}, revision {model.revision}")
    yield _profile(model.heads // model.kv_heads, model.head_dim, model.device, model.dtype)


def _profile(groups: int, head_dim: int, device: str, dtype: str) -> Check:
    import torch

    from routesparse.engine.device.names import device_name
    from routesparse.engine.method.latency import LatencyProfile
    from routesparse.engine.profiles.files import folders

    wanted = (device_name(torch.device(device)), dtype, head_dim, groups)
    threads = torch.get_num_threads() if device == "cpu" else 0
    broken = []
    for file in (file for folder in folders() for file in folder.glob("*.json")):
        try:
            found = LatencyProfile.load(file)
        except RouteSparseError as error:
            broken.append(str(error))
            continue
        if (found.device, found.dtype, found.head_dim, found.groups) == wanted and found.threads == threads:
            return Check("profile", "ok", f"{found.name}, median error {found.errors_text()}")
    if broken:
        return Check("profile", "problem", broken[0])
    return Check("profile", "note", "none fits yet: the first run measures one, or run `routesparse profile`")


def _calibrations() -> Iterator[Check]:
    from routesparse.engine.calibration.artifact import load_calibration

    files = sorted((paths.DATA / "calibrations").glob("*.json"))
    for file in files:
        load_calibration(str(file))
    names = ", ".join(file.stem for file in files)
    yield Check("calibrations", "ok", names or "none bundled; the in-prompt certificate needs none")


def _deep(name: str) -> Iterator[Check]:
    """A few layers of the model, routed on this device, against float64 attention on the same keys."""
    from routesparse.engine.doctor.deep import check_model
    from routesparse.engine.models.load import load_model

    found, windowed = check_model(load_model(name))
    for check in found:
        text = (
            f"layer {check.layer}, {check.tokens:,} tokens: error {check.error:.1e} ({check.limit:.0e} is rounding), "
            f"{check.density:.2f} of the keys read, {check.routed_ms:.0f} ms with deciding, "
            f"dense {check.dense_ms:.0f} ms"
        )
        if not check.right:
            text += "; do not trust runs of this model here, and report this line"
        yield Check("oracle", "ok" if check.right else "problem", text)
    if windowed:
        layers = ", ".join(map(str, windowed))
        yield Check("oracle", "note", f"layers with a sliding window are never routed or checked: {layers}")
    if found and all(check.routed_ms > check.dense_ms for check in found):
        yield Check("oracle", "note", "so short, dense attention is faster and taken; longer prompts gain")
