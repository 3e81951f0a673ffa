"""Backup and restore of a home and of the runs that it shares, also while dashboards and workers use them.

What is finished moves one way: job -> staged bundle -> spool -> database -> bundles -> trash; only a run restored from
the trash goes back. The backup copies in that order, so whatever moves on is met later, never missed; the first start
on a restored home takes in what was caught between two places, as after a crash. SQLite copies the queue as one
transaction. The database's file and its log of writes are copied together until neither changed meanwhile: what a
killed dashboard would leave. Of a lake all rows of one moment are copied into such a file: a backup has one form and
goes back into either store. The copy is then opened, and every run, in the trash too, must have its bundle, and no run
of a job that the copied queue calls running may have one; else all is copied again.

Not copied: models (folder ``models``), workers' locks, links, and what is half written.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from routesparse.engine import paths, shared_folder
from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.files.plain_files import open_plain, read_bounded
from routesparse.engine.jobs.opening import FILE as QUEUE
from routesparse.engine.operations import places
from routesparse.engine.operations.places import Places
from routesparse.engine.provenance import now
from routesparse.engine.store.bundle import TEMPORARY_PREFIX
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.opening import open_lake

if TYPE_CHECKING:
    from routesparse.engine.scale.ducklake import LakeStore

MANIFEST = "backup.json"
VERSION = 1
TRIES = 20
PAUSE_S = 0.25
_MOST_MANIFEST_BYTES = 1 << 28
_LEFT_OUT = ("models", "workers")
_STORE = "routesparse.duckdb"
_LOG = f"{_STORE}.wal"
_IN_ORDER = ("bundles", "trash")  # after the database; everything else before it


class _Moved(Exception):
    """Something was caught half way; the next try meets it in one place."""


@dataclass(frozen=True)
class Backup:
    """What a backup holds."""

    version: int
    made_at: str  # ISO 8601, UTC
    runs: int
    jobs: int
    files: dict[str, str]  # path below the backup, with slashes -> sha256


def back_up(home: Path, target: Path) -> Backup:
    """Copy a home, and the lake that it shares, into the new folder ``target``, which appears whole or not at all.

    Errors: InputError for a target that exists or lies in what is copied, or a home without anything; StoreError where
    it can't be copied or does not hold still.
    """
    at, target = places.of(home), paths.of_database(target)
    if target.exists() or target.is_symlink():
        raise InputError(f"{target} exists; name a new folder for the backup")
    for folder in at.folders:
        if target.resolve().is_relative_to(folder):
            raise InputError(
                f"{target} lies in {folder}, which would then hold its own backups; name another"
            )
    if at.lake is None and not any((home / name).exists() for name in (_STORE, QUEUE)):
        raise InputError(f"{home} holds neither runs nor jobs; set ROUTESPARSE_HOME to the home to back up")
    partial = target.with_name(f".{target.name}.partial")
    lake = None if at.lake is None else open_lake(at.lake)
    try:
        if at.shared is not None:
            shared_folder.check()
        for left in reversed(range(TRIES)):
            shutil.rmtree(partial, ignore_errors=True)
            try:
                return _copy(at, lake, partial, target)
            except (_Moved, FileNotFoundError) as error:
                if not left:
                    raise StoreError(f"{home} changed all the time ({error}); try again later") from error
                time.sleep(PAUSE_S)
    except OSError as error:
        raise StoreError(
            f"{error.filename or target}: {error.strerror or error}; nothing was kept"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if lake is not None:
            lake.close()
    raise AssertionError("TRIES is positive")


def restore(source: Path, home: Path, *, replace: bool = False) -> tuple[Backup, Path | None]:
    """Check a backup, copy it to where the home shall be; the backup, and where an existing home was moved to.

    Where the environment names a lake, the runs go into that one, beside no others; what waited in the spool goes into
    the shared folder. Errors: InputError for what is no backup or is damaged, for a home that holds something unless
    ``replace``, and for a lake with other runs; the home is then as it was.
    """
    source = paths.local(source)
    held, at = read_manifest(source), places.of(home)
    places.check_apart(at)
    before = None
    if home.exists() and any(home.iterdir()):
        if not replace:
            raise InputError(
                f"{home} holds something; set ROUTESPARSE_HOME to a new folder, or pass --replace to move it aside"
            )
        before = home.with_name(f"{home.name}.before-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    partial = home.with_name(f".{home.name}.partial")
    kept = "nothing was restored"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True, mode=0o700)
        for name, digest in held.files.items():
            if not (source / name).is_file():
                raise InputError(f"{source / name} is missing; nothing was restored")
            if _copy_file(source / name, partial / name) != digest:
                raise InputError(f"{source / name} is damaged (its sha256 is another); nothing was restored")
        if at.shared is not None:
            kept = "the home is as it was, what is shared may hold a part of the backup; call it again"
        if at.shared is not None:
            from routesparse.engine.scale.moving import hand_over

            hand_over(partial, at, open_lake)
        if before is not None:
            home.rename(before)
        elif home.exists():
            home.rmdir()
        try:
            partial.rename(home)
        except OSError:
            if before is not None:
                before.rename(home)
            raise
    except OSError as error:
        raise StoreError(f"{error.filename or home}: {error.strerror or error}; {kept}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return held, before


def read_manifest(source: Path) -> Backup:
    """What a folder says it holds. Errors: InputError."""
    try:
        values = json.loads(read_bounded(source / MANIFEST, _MOST_MANIFEST_BYTES))
        held = Backup(**values)
        names = {str(name): str(digest) for name, digest in held.files.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{source} is no backup: its {MANIFEST} can't be read ({error})") from error
    if held.version != VERSION:
        raise InputError(
            f"{source} is a backup of version {held.version}, this one reads {VERSION}; update RouteSparse"
        )
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(f"{source} names {name!r}, which leads out of it; nothing was restored")
    return held


def _copy(at: Places, lake: LakeStore | None, partial: Path, target: Path) -> Backup:
    home = at.home
    partial.mkdir(parents=True, mode=0o700)
    special = {*_LEFT_OUT, *_IN_ORDER, "spool", "prompts"}
    # A prompt is written before its job and may go before it: copied on both sides of the queue, none is missed.
    _copy_tree(home / "prompts", partial / "prompts")
    jobs, running = _copy_queue(home / QUEUE, partial / QUEUE)
    _copy_tree(home / "prompts", partial / "prompts")
    _copy_tree(home / "spool" / ".staged", partial / "spool" / ".staged")
    # With a shared spool the home's own may still hold what came before.
    for folder in dict.fromkeys((home / "spool", at.spool)):
        _copy_tree(folder, partial / "spool")
    for entry in sorted(home.iterdir()) if home.is_dir() else ():
        if entry.name in special or entry == at.shared or entry.name.startswith((QUEUE, _STORE)):
            continue
        if entry.is_dir() and not entry.is_symlink():
            _copy_tree(entry, partial / entry.name)
        elif entry.is_file() and not entry.is_symlink():
            _copy_file(entry, partial / entry.name)
    if lake is None:
        _copy_store(home, partial)
    else:
        _copy_lake(lake, partial)
    for name in _IN_ORDER:
        _copy_tree(at.runs / name, partial / name)
    runs = _check(partial, at.runs)
    folders = ("spool", *_IN_ORDER)
    # It would run once more on the restored home.
    if done := [run for run in running if any((partial / name / run).is_dir() for name in folders)]:
        raise _Moved(f"{done[0]} ended after the queue was copied")
    files = {
        path.relative_to(partial).as_posix(): _digest(path)
        for path in sorted(partial.rglob("*"))
        if path.is_file()
    }
    made = Backup(VERSION, now(), runs, jobs, files)
    (partial / MANIFEST).write_text(json.dumps(asdict(made), indent=1) + "\n", "utf-8")
    partial.rename(target)
    return made


def _copy_queue(file: Path, into: Path) -> tuple[int, list[str]]:
    """One transaction's view of the queue; how many jobs it lists, and the run ids that running ones will have."""
    if not file.exists():
        return 0, []
    try:
        source, copy = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True), sqlite3.connect(into)
        try:
            source.backup(copy)
            active = "FROM job WHERE state IN ('queued', 'running')"
            needed = copy.execute(f"SELECT id {active} AND prompt_bytes > 0").fetchall()  # profiles have none
            running = copy.execute("SELECT id || '-' || attempt FROM job WHERE state = 'running'").fetchall()
            jobs = int(copy.execute("SELECT count(*) FROM job").fetchone()[0])
            copy.execute("PRAGMA journal_mode = DELETE")
        finally:
            source.close()
            copy.close()
    except sqlite3.Error as error:
        raise StoreError(f"{file} can't be copied ({error}); nothing was kept") from error
    _require([into.parent / "prompts" / f"{row[0]}.txt" for row in needed], file.parent / "prompts")
    return jobs, [row[0] for row in running]


def _require(files: list[Path], source: Path) -> None:
    """Prompts of waiting jobs that came between the first look and the queue's copy."""
    for file in files:
        if not file.exists():
            try:
                _copy_file(source / file.name, file)
            except FileNotFoundError:
                raise _Moved(f"{file.name} went while it was copied") from None


def _copy_store(home: Path, partial: Path) -> None:
    """The database with its log of writes, as one moment left them."""
    names = (_STORE, _LOG)
    for _ in range(TRIES):
        before = [_stamp(home / name) for name in names]
        for name, stamp in zip(names, before, strict=True):
            (partial / name).unlink(missing_ok=True)
            if stamp is not None:
                shutil.copyfile(home / name, partial / name)
        if [_stamp(home / name) for name in names] == before:
            return
        time.sleep(PAUSE_S)
    raise _Moved("the database was written to")


def _copy_lake(lake: LakeStore, partial: Path) -> None:
    """The lake's rows of one moment, as a home's database holds them. Errors: StoreError."""
    from routesparse.engine.scale.ducklake import gone
    from routesparse.engine.scale.moving import copy_rows

    with closing(Store(partial / _STORE)) as copy:
        try:
            with lake.moment() as rows:
                copy_rows(rows, copy)
        except StoreError as error:
            if gone(error.__cause__):  # `prune` has deleted what this moment still named
                raise _Moved(str(error)) from error
            raise


def _check(partial: Path, home: Path) -> int:
    """The copied database opens, and every run has its bundle; how many runs. A torn copy is a reason to try again."""
    if not (partial / _STORE).exists():
        return 0
    try:
        store = Store(partial / _STORE)
    except StoreError as error:
        raise _Moved(str(error)) from error
    try:
        runs = store.run_ids()
        trashed = [row[0] for row in store.rows("SELECT run_id FROM trashed_run")]
    finally:
        store.close()
    lost = [
        run for run in (*runs, *trashed) if not any((partial / name / run).is_dir() for name in _IN_ORDER)
    ]
    # A bundle that the home lacks too was deleted by hand: its rows are kept, as the dashboard keeps them.
    if any((home / name / run).is_dir() for name in _IN_ORDER for run in lost):
        raise _Moved(f"the bundle of run {lost[0]} was moved")
    return len(runs)


def _copy_tree(source: Path, into: Path) -> None:
    """Plain files below a folder; links and what is half written are left out."""
    if not source.is_dir() or source.is_symlink():
        return
    into.mkdir(parents=True, exist_ok=True, mode=0o700)
    for entry in sorted(source.iterdir()):
        half = entry.name.startswith(TEMPORARY_PREFIX) or entry.name.endswith(".partial")
        if entry.is_symlink() or half or (into / entry.name).is_file():
            continue
        if entry.is_dir():
            _copy_tree(entry, into / entry.name)
        elif entry.is_file():
            _copy_file(entry, into / entry.name)


def _copy_file(source: Path, into: Path) -> str:
    """Copy one plain file; the sha256 of what was written."""
    into.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open_plain(source, follow_links=False) as handle, open(into, "wb") as copy:
        shutil.copyfileobj(handle, copy)
    return _digest(into)


def _digest(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
