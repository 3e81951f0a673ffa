"""Where things live on disk, and the environment variables that say so.

ROUTESPARSE_HOME moves everything that runs write. ROUTESPARSE_SHARED is a folder that several hosts see: finished
bundles go into its spool. ROUTESPARSE_STORE names a store that several processes write to (scale/ducklake.py),
ROUTESPARSE_LAKE an object store for its rows, and ROUTESPARSE_QUEUE a job queue of several hosts (scale/queue.py).
"""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

from routesparse.engine.errors import InputError, shortened

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = REPOSITORY / "data"  # what ships: the demo model, samples, calibrations, profiles

# s3://bucket, which a Path makes s3:/bucket; file:/x; host:/x. A folder whose name ends in a colon is written ./so:/x.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.@-]+:/")


def local(path: str | Path) -> Path:
    """A path of this machine, with ``~`` and ``~user`` expanded.

    Errors: InputError for an address such as s3://bucket, of which a folder would be made, and for an unknown user.
    """
    if _ADDRESS.match(str(path)):
        raise InputError(
            f"{shortened(path)} is an address; name a file or folder of this machine, and copy it from or to there"
        )
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{shortened(path)}: no such user here; write the path in full") from None


def of_database(path: str | Path) -> Path:
    """A folder for a database's file, resolved. Errors: as ``local``, and for one that DuckDB can't open."""
    found = local(path).resolve()
    if "?" in str(found):
        raise InputError(f"{shortened(found)} has a '?', behind which DuckDB reads settings; name another")
    return found


def home() -> Path:
    """The folder that runs write into: $ROUTESPARSE_HOME, or var/ in the repository. Errors: as ``of_database``."""
    return of_database(os.environ.get("ROUTESPARSE_HOME") or REPOSITORY / "var")


def shared() -> Path | None:
    """The folder that all hosts of one store see: $ROUTESPARSE_SHARED, or None. Errors: as ``home``."""
    named = os.environ.get("ROUTESPARSE_SHARED")
    return of_database(named) if named else None


def spool() -> Path:
    """Finished run bundles; the web process ingests what appears here."""
    return (shared() or home()) / "spool"


def bundles() -> Path:
    """The bundles of stored runs: beside the database, or where all hosts see them."""
    return _store_folder() / "bundles"


def trash() -> Path:
    """The bundles of deleted runs."""
    return _store_folder() / "trash"


def store() -> str | None:
    """The address of a store with many writers: $ROUTESPARSE_STORE; None: the DuckDB file."""
    return os.environ.get("ROUTESPARSE_STORE") or None


def queue() -> str | None:
    """The address of a job queue of several hosts: $ROUTESPARSE_QUEUE; None: the SQLite file of the home."""
    return os.environ.get("ROUTESPARSE_QUEUE") or None


def workplace() -> Path:
    """The folder that all workers of the queue see, and what jobs need or make beside runs: the home, or the shared."""
    return (shared() if queue() else None) or home()


def lake() -> str | None:
    """Where the rows of a store with many writers lie: $ROUTESPARSE_LAKE; None: in the shared folder."""
    return os.environ.get("ROUTESPARSE_LAKE") or None


def _store_folder() -> Path:
    """Of the bundles of the store that this process uses."""
    return (shared() if store() else None) or home()


def database() -> Path:
    """The DuckDB file; only the web process opens it."""
    return home() / "routesparse.duckdb"


def overview(folder: Path) -> Path:
    """The numbers about a home's runs that the web process leaves for the metrics."""
    return folder / "overview.json"


def models() -> Path:
    """Model folders that the dashboard offers beside the bundled one: put or link them here. It opens no others."""
    return home() / "models"


def texts() -> Path:
    """Texts and benchmark files that evaluations make prompts of, unless ``--data`` names another folder."""
    return home() / "data"


def exports() -> Path:
    """Files that the dashboard made of runs to be saved; they go after a day, and with their run."""
    return home() / "exports"


def profiles() -> Path:
    """Latency profiles measured here, by the device's name in theirs; shipped ones are in data/profiles."""
    return workplace() / "profiles"


def calibrations() -> Path:
    """Calibrations made here; shipped ones are in data/calibrations."""
    return workplace() / "calibrations"


def write_json(path: Path, values: dict[str, Any]) -> Path:
    """Write a JSON file whole or not at all, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: others may write the same file at this moment.
    partial = path.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}.json.partial")
    try:
        partial.write_text(json.dumps(values, indent=1) + "\n")
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return path
