"""The processes that faults are injected into: ``python actors.py worker|web '{"home": ...}'``.

The worker is the real one with a synthetic analysis: a prompt's label may ask it to raise ("raise MemoryError 2": in
layer 2) or to have no memory left ("raise memory 2"). The web process is the dashboard's owner of the store
(app/shell/access.py) without its pages; after every look into the spool it writes what a page would read into
``home/status.json``.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.errors import NumericsError, StoreError
from routesparse.engine.jobs.signals import GRACE_S
from routesparse.engine.jobs.worker import run_worker
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.tables import FACT_TABLES

FACTORY = Path(__file__).resolve().parents[1] / "engine" / "store" / "factory.py"
LAYERS = 4
SPARE_BYTES = 512 << 20  # of addresses: what the next job's threads reserve, too
CURES = ("with some space", "PostgreSQL can't be reached")  # of what need not be mended by hand
ERRORS = {
    "RuntimeError": RuntimeError("a message that quotes the prompt: swordfish"),
    "MemoryError": MemoryError(),
    "NumericsError": NumericsError("layer 2: NaN or Inf in the attention scores; nothing was recorded"),
    "OSError": OSError(errno.ENOSPC, "No space left on device"),
    "ZeroDivisionError": ZeroDivisionError("swordfish"),
}


def set_clock(home: Path) -> None:
    """Let ``home/clock``, a number of seconds, say by how much this process's wall clock was set."""
    told, file = time.time, home / "clock"

    def shifted() -> float:
        try:
            return told() + float(file.read_text())
        except FileNotFoundError:
            return told()

    time.time = shifted


def fill_memory() -> None:
    """Take memory until there is none. What was taken is given back when the error is forgotten, the limit stays."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + SPARE_BYTES, resource.RLIM_INFINITY))
    blocks = []
    while True:
        blocks.append(bytearray(1 << 22))


def worker(home: Path, layer_s: float = 0.05, lease_s: float = 1.0, **options: Any) -> int:
    """Run jobs whose four layers take ``layer_s`` each, and note each attempt in ``home/ran.txt``."""
    spec = importlib.util.spec_from_file_location("store_factory", FACTORY)
    factory = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(factory)

    def analyze(request, prompt, run_id, report):
        with open(home / "ran.txt", "a") as ran:
            ran.write(run_id + "\n")
        _, _, wish = request.label.partition("raise ")
        for layer in range(LAYERS):
            report("route", layer, LAYERS)
            time.sleep(layer_s)
            if wish and int(wish.split()[1]) == layer:
                if wish.startswith("memory"):
                    fill_memory()
                raise ERRORS[wish.split()[0]]
        return factory.make_record(
            run_id, name=request.label, layers=2, heads=2, segments=1, tokens=2048, probe_columns=16
        )

    return run_worker(home, analyze, poll_s=0.05, lease_s=lease_s, beat_s=0.1, grace_s=GRACE_S, **options)


def web(home: Path) -> int:
    """Take bundles in until the process ends."""
    from routesparse.app.shell import access

    paths.DATA = home / "no-samples"
    access._SPOOL_SECONDS = 0.0
    while True:  # as a page that says so and is loaded again
        try:
            opened = access.Access()
            break
        except StoreError as error:
            if not any(cure in str(error) for cure in CURES):
                raise
            with suppress(OSError):
                tell(home, {"runs": [], "partial": {}, "rejected": {}, "trouble": str(error)})
            time.sleep(0.2)
    partial: dict[str, str] = {}
    checked: set[str] = set()
    written = None
    runs: set[str] = set()
    while True:
        trouble = None
        try:
            opened.look_into_spool()
            runs = opened.store.run_ids()
            for run_id in runs - checked:
                partial |= _lacking(opened.store, paths.bundles() / run_id)
                checked.add(run_id)
            twice = "SELECT run_id FROM stored GROUP BY run_id HAVING count(*) > 1"
            partial |= {run_id: "stored twice" for (run_id,) in opened.store.rows(twice)}
        except StoreError as error:
            trouble = str(error)
        rejected = {each.name: each.reason for each in opened.rejections()}
        waiting = [each.reason for each in opened.waiting()]
        found = {"partial": partial, "rejected": rejected, "trouble": trouble or next(iter(waiting), None)}
        if written != (found, runs):
            with suppress(OSError):  # a full disk: the next look tries again
                tell(home, {"runs": sorted(runs), **found})
                written = (found | {"partial": dict(partial)}, set(runs))
        time.sleep(0.1)


def tell(home: Path, status: dict[str, Any]) -> None:
    """Write what a page would read, whole. Errors: OSError."""
    file = home / ".status.partial"
    file.write_text(json.dumps(status))
    file.replace(home / "status.json")


def _lacking(store: OwnerView, bundle: Path) -> dict[str, str]:
    """The run and what is wrong, where the store has other rows of it than its bundle."""
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    for file, about in files.items():
        table = {"probe": "probe_meta"}.get(file.removesuffix(".parquet"), file.removesuffix(".parquet"))
        if table not in ("run", *FACT_TABLES):
            continue  # read from the bundle's own file
        sql = f"SELECT count(*) FROM {table} WHERE run_key = (SELECT run_key FROM run WHERE run_id = ?)"
        ((rows,),) = store.rows(sql, [bundle.name])
        if rows != about["rows"]:
            return {bundle.name: f"{rows} rows of {table}, the bundle has {about['rows']}"}
    return {}


if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    home = Path(options.pop("home"))
    os.environ["ROUTESPARSE_HOME"] = str(home)
    set_clock(home)
    sys.exit({"worker": worker, "web": web}[sys.argv[1]](home, **options))
