"""Everything of one store copied into another: from the file of one machine to the lake of many, and back.

The source stays as it is. What the target holds already stays, too; a run under the same id with other contents, one
that is deleted in only one of them, or other labels of the same run end the copy before anything is written. A label
of a run that has none in the target is copied. Rows are copied, not made anew from bundles: a run whose bundle somebody
deleted by hand is kept. It goes on where it was cut off when it is called again.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.operations.places import Places
from routesparse.engine.progress import Progress, no_progress
from routesparse.engine.scale.ducklake import LakeStore
from routesparse.engine.store import bundle
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.tables import FACT_TABLES, HEADS, OF_CERTIFICATES

_AT_ONCE = 16  # runs a transaction
_OF_RUNS = (*HEADS, *FACT_TABLES, *OF_CERTIFICATES, "run_summary")
# Tables without run_key, and what makes a row of theirs the same in both stores.
_STORE = "routesparse.duckdb"
_NAMED = 5  # of what differs, in a message
_LABEL = "run_id, owner, name, notes, tags, pinned"
_BESIDE = {"ingested_bundle": ("bundle_id",), "run_label": ("run_id", "owner"), "trashed_run": ("run_id",)}


class Readable(Protocol):
    """A store, or what a lake held at one moment (ducklake.py)."""

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def table(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table: ...


@dataclass(frozen=True)
class Copied:
    """What was copied, and what was there."""

    runs: int
    already_there: int
    trashed: int
    without_bundle: tuple[str, ...]  # runs whose rows alone there are


def copy_store(source: Store, target: Store, progress: Progress = no_progress) -> Copied:
    """Copy all runs and certificates with their bundles, labels and trash, and compare. Nobody may write meanwhile.

    Errors: StoreError, also where the stores differ in a run, a label or a deletion, or the target then lacks a row.
    """
    wanted, there = _stored(source), _stored(target)
    clash = sorted(run for run in wanted.keys() & there.keys() if wanted[run][1] != there[run][1])
    if clash:
        raise StoreError(
            f"run {clash[0]} is in both stores with other contents ({len(clash)} of them); nothing was copied. Delete "
            "it in one of them"
        )
    _check_same(source, target)
    new = [run for run in wanted if run not in there]
    lost = []
    for first in range(0, len(new), _AT_ONCE):
        progress("store", first, len(new))
        some = new[first : first + _AT_ONCE]
        lost += [run for run in some if not copy_folder(source.bundles / run, target.bundles / run)]
        _copy_rows(source, target, [wanted[run][0] for run in some])
    trashed = [path for path in source.trash.iterdir() if path.is_dir()]
    for path in trashed:
        copy_folder(path, target.trash / path.name)
    _copy_beside(source, target)
    _compare_rows(source, target, wanted)
    if gone := [path.name for path in _visible(source.trash) if not (target.trash / path.name).exists()]:
        raise StoreError(f"the target's trash lacks {_some(gone)}; keep the source and copy again")
    return Copied(len(new), len(wanted) - len(new), len(trashed), tuple(lost))


def copy_rows(source: Readable, target: Store) -> None:
    """Copy all rows into an empty store, and compare; the folders are the caller's. Errors: StoreError."""
    wanted = _stored(source)
    keys = [key for key, _ in wanted.values()]
    for first in range(0, len(keys), _AT_ONCE):
        _copy_rows(source, target, keys[first : first + _AT_ONCE])
    _copy_beside(source, target)
    _compare_rows(source, target, wanted)


def check_settled(source: Store, spool: Path) -> None:
    """Errors: StoreError where finished runs are not in the tables yet: a copy would leave them behind."""
    rejected, known = spool / bundle.REJECTED, source.run_ids()
    waiting = [path.name for path in _visible(spool) if path != rejected]
    refused = [path.name for path in _visible(rejected) if path.suffix != ".txt"]
    unlisted = [path.name for path in _visible(source.bundles) if path.name not in known]
    for names, place, cure in (
        (waiting, spool, "Start the dashboard of this store once"),
        (unlisted, source.bundles, "Start the dashboard of this store once"),
        (refused, rejected, "Discard them on its page Runs, or move them elsewhere"),
    ):
        if names:
            raise StoreError(
                f"{place} holds {len(names)} that the store has no rows of ({_some(names)}); nothing was copied. "
                f"{cure}, then copy again"
            )


def _visible(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if not path.name.startswith(".")]


def _some(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _check_same(source: Store, target: Store) -> None:
    """Errors: StoreError for what a person changed in one store only: which of the two counts nobody here can know."""
    mine, theirs = _labels(source), _labels(target)
    known, pinned = source.run_ids(), {key[1]: key[0] for key, values in mine.items() if values[-1]}
    differ = [f"run {run} (deleted in one of them)" for run in sorted(_half_deleted(source, target))]
    for key in sorted(theirs, key=str):
        (run, owner), (*_, pin) = key, theirs[key]
        if theirs[key] != mine.get(key) and (key in mine or run in known):
            differ.append(f"run {run} (name, notes, tags or pin)")
        if pin and pinned.get(owner, run) != run:
            differ.append(f"run {run} (pinned, and so is {pinned[owner]})")
    if differ:
        raise StoreError(
            f"the stores differ in {len(differ)}: {_some(differ)}; nothing was copied. Make them the same on page Runs "
            "of either store, or copy into an empty one (a new ROUTESPARSE_HOME)"
        )


def _half_deleted(source: Store, target: Store) -> set[str]:
    """Runs that one store holds and somebody deleted in the other."""
    found = set()
    for one, other in ((source, target), (target, source)):
        there = {digest: run for run, (_, digest) in _stored(other).items()}
        gone = one.rows("SELECT bundle_id FROM ingested_bundle WHERE deleted_at IS NOT NULL")
        found |= {there[digest] for (digest,) in gone if digest in there}
        found |= {run for (run,) in one.rows("SELECT run_id FROM trashed_run")} & set(there.values())
    return found


def _labels(store: Readable) -> dict[tuple[str, str | None], tuple]:
    """(run id, owner) -> name, notes, tags and whether it is pinned."""
    rows = store.rows(f"SELECT {_LABEL} FROM run_label")
    return {(run, owner): (name, notes, tuple(tags), pin) for run, owner, name, notes, tags, pin in rows}


def _stored(store: Readable) -> dict[str, tuple[int, str]]:
    """Run id -> (run_key, bundle id), in the order in which they came in."""
    sql = "SELECT run_id, run_key, bundle_id FROM stored ORDER BY run_key"
    return {run_id: (int(key), digest) for run_id, key, digest in store.rows(sql)}


def copy_folder(source: Path, target: Path) -> bool:
    """A bundle's folder, whole or not at all, with its age; whether there was one. Errors: StoreError."""
    if not source.is_dir() or target.exists():
        return source.is_dir()
    hidden = target.with_name(f"{bundle.TEMPORARY_PREFIX}{target.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        shutil.copytree(source, hidden, symlinks=True)
        bundle.publish(hidden, target)
    except OSError as error:
        raise StoreError(
            f"{source} was not copied to {target} ({error.strerror or error}); the source is as it was"
        ) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return True


def _copy_rows(source: Readable, target: Store, keys: Sequence[int]) -> None:
    with target.writing("the runs were not copied") as cursor:
        known = dict(zip(keys, target.new_keys(cursor, len(keys)), strict=True))
        for table in _OF_RUNS:
            rows = source.table(
                f"SELECT * FROM {table} WHERE list_contains(?::INTEGER[], run_key)", [list(keys)]
            )
            if not rows.num_rows:
                continue
            place = rows.schema.get_field_index("run_key")
            renumbered = pa.array([known[key] for key in rows.column(place).to_pylist()], pa.int32())
            _insert(cursor, table, rows.set_column(place, "run_key", renumbered))


def _copy_beside(source: Readable, target: Store) -> None:
    with target.writing("labels and trash were not copied") as cursor:
        for table, key in _BESIDE.items():
            names = ", ".join(key)
            there = set(target.rows(f"SELECT {names} FROM {table}"))
            rows = source.table(f"SELECT * FROM {table}")
            mine = zip(*(rows.column(name).to_pylist() for name in key), strict=True)
            new = pa.array([one not in there for one in mine], pa.bool_())
            if new.true_count:
                _insert(cursor, table, rows.filter(new))


def _insert(cursor, table: str, rows: pa.Table) -> None:
    cursor.register("incoming", rows)
    try:
        cursor.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
    finally:
        cursor.unregister("incoming")


def _compare_rows(source: Readable, target: Store, wanted: dict[str, tuple[int, str]]) -> None:
    """Errors: StoreError where the target has fewer or more rows of a run, or lacks what lies beside it."""
    there = _stored(target)
    for table, key in _BESIDE.items():
        sql = f"SELECT {', '.join(key)} FROM {table}"
        if lacking := set(source.rows(sql)) - set(target.rows(sql)):
            raise StoreError(
                f"the target lacks {len(lacking)} rows of {table}; keep the source and copy again"
            )
    labels = _labels(target)
    if any(labels[key] != values for key, values in _labels(source).items()):
        raise StoreError("the target has other labels than the source; keep the source and copy again")
    for table in _OF_RUNS:
        sql = f"SELECT run_key, count(*) FROM {table} GROUP BY run_key"
        before, after = dict(source.rows(sql)), dict(target.rows(sql))
        for run, (row_key, _) in wanted.items():
            if run not in there or before.get(row_key) != after.get(there[run][0]):
                raise StoreError(
                    f"run {run} has other rows of {table} in the target; keep the source, delete the run in the target "
                    "and copy again"
                )


def hand_over(partial: Path, at: Places, open_lake: Callable[[str], LakeStore]) -> None:
    """Bring runs and waiting bundles of a restored home, which is not in its place yet, to what several hosts share.

    What was brought stays where a later step fails, and the same command goes on from there.
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
        _move_visible(partial / "spool" / bundle.REJECTED, at.spool / bundle.REJECTED)


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
        if path.name == bundle.REJECTED:
            continue
        target.mkdir(exist_ok=True)
        if path.is_dir():
            copy_folder(path, target / path.name)
            shutil.rmtree(path)
        elif not (target / path.name).exists():
            shutil.move(path, target / path.name)
