"""A restored backup's parts brought to what several hosts share: runs into the lake, waiting bundles into the spool.

What was brought stays where a later step fails, and the same command goes on from there.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from routesparse.engine.errors import InputError
from routesparse.engine.operations.places import Places
from routesparse.engine.scale.ducklake import LakeStore
from routesparse.engine.scale.moving import copy_folder, copy_store
from routesparse.engine.store.bundle import REJECTED
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.opening import open_lake

_STORE = "routesparse.duckdb"


def hand_over(partial: Path, at: Places) -> None:
    """Move runs and waiting bundles out of a home that is not in its place yet.

    Errors: InputError for a lake that holds other runs; StoreError; OSError.
    """
    if at.lake is not None:
        if (partial / _STORE).exists():
            with closing(Store(partial / _STORE)) as kept, closing(open_lake(at.lake)) as lake:
                _check_alone(kept, lake, partial)
                copy_store(kept, lake)
                _hand_on(kept, partial / "bundles", at.spool)
        for name in ("bundles", "trash"):
            shutil.rmtree(partial / name, ignore_errors=True)
        for file in partial.glob(f"{_STORE}*"):
            file.unlink()
    if at.shared is not None:
        at.spool.mkdir(parents=True, exist_ok=True)
        _move_visible(partial / "spool", at.spool)
        _move_visible(partial / "spool" / REJECTED, at.spool / REJECTED)


def _hand_on(kept: Store, bundles: Path, spool: Path) -> None:
    """Bundles that the backup caught between spool and rows go into the spool; deleted ones are in the trash too."""
    listed = kept.run_ids()
    for path in sorted(bundles.glob("[!.]*")):
        if path.name not in listed and not (kept.trash / path.name).exists():
            copy_folder(path, spool / path.name)


def _check_alone(kept: Store, lake: LakeStore, partial: Path) -> None:
    """Errors: InputError for a lake with runs that the backup lacks: it would be neither this one nor that."""
    sql = "SELECT run_id FROM stored JOIN ingested_bundle USING (bundle_id, run_id) WHERE origin <> 'sample'"
    # Bundles without rows a dashboard may have taken in since this was tried before.
    waiting = {path.name for name in ("bundles", "spool") for path in (partial / name).glob("[!.]*")}
    known = kept.run_ids() | {path.name for path in kept.trash.iterdir()} | waiting
    there = {run for (run,) in lake.rows(sql)} | {path.name for path in lake.trash.iterdir()}
    if others := sorted(there - known):
        raise InputError(
            f"the lake holds {len(others)} runs that the backup lacks ({others[0]}, for instance); nothing was "
            "restored. Restore into a new database and shared folder and, where it is set, another "
            "ROUTESPARSE_LAKE; or unset ROUTESPARSE_STORE, restore into a file, "
            "and add its runs with `routesparse store --to lake`"
        )


def _move_visible(source: Path, target: Path) -> None:
    """Bundles, and the notes beside rejected ones; what is there already stays."""
    for path in sorted(source.glob("[!.]*")):
        if path.name == REJECTED:
            continue
        target.mkdir(exist_ok=True)
        if path.is_dir():
            copy_folder(path, target / path.name)
            shutil.rmtree(path)
        elif not (target / path.name).exists():
            shutil.move(path, target / path.name)
