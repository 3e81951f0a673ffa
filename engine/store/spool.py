"""The spool: finished bundles arrive here from the worker and the command line, and the store takes them in.

A bundle that can't be ingested is set aside in ``spool/rejected`` with the reason in a text file beside it;
the pages list it. Folders whose name starts with a dot are still being written.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.errors import BundleError, StoreError
from routesparse.engine.files import plain_files
from routesparse.engine.progress import Progress, no_progress
from routesparse.engine.provenance import now
from routesparse.engine.store import bundle, trash
from routesparse.engine.store.duckdb_store import Origin, Store

_NOTE_BYTES = 1 << 16
_NO_REASON = "the reason could not be written down; put the bundle into the spool again to see it"
_NAME_BYTES = 200  # of 255, with room for a number and ".txt"
_STALE_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Rejection:
    """A bundle that was set aside, or has to wait, and why."""

    name: str
    reason: str
    rejected_at: str = field(default_factory=now)  # ISO 8601, UTC


@dataclass
class IngestReport:
    """What one look into the spool did."""

    ingested: list[str] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    waiting: list[Rejection] = field(default_factory=list)  # the store failed: tried again at the next look

    def __bool__(self) -> bool:
        return bool(self.ingested or self.rejected)


def ingest_spool(store: Store, spool: Path | None = None, progress: Progress = no_progress) -> IngestReport:
    """Take in every finished bundle of the spool, and those whose insert failed before; bad ones are set aside.

    progress: called before each transaction with the stage "store"; what it raises ends the look between two.
    """
    spool = spool or paths.spool()
    report = IngestReport()
    unlisted, arrived = list(store.unlisted.items()), _finished(spool)
    if store.SEVERAL_WRITERS:  # which would all read the oldest bundles at the same time
        random.shuffle(arrived)
    total = len(unlisted) + len(arrived)
    for done, (run_id, origin) in enumerate(unlisted):
        progress("store", done, total)
        _take_in(report, store, store.bundles / run_id, origin, spool)
    for first in range(0, len(arrived), store.AT_ONCE):
        progress("store", len(unlisted) + first, total)
        together = arrived[first : first + store.AT_ONCE]
        if len(together) > 1:
            together = _take_in_together(report, store, together)
        for path in together:
            listed = store.unlisted.get(path.name, "spool")
            _take_in(report, store, path, listed, spool, move=path.parent != store.bundles)
    return report


def ingest_samples(store: Store, samples: Path | None = None) -> IngestReport:
    """Copy in the bundled sample runs that are neither stored nor deleted by the user."""
    samples = samples or paths.DATA / "samples" / "runs"
    report = IngestReport()
    present = store.run_ids() | store.unlisted.keys()
    for path in _finished(samples):
        if path.name not in present:
            _take_in(report, store, path, "sample", None)
    return report


def recover(store: Store, progress: Progress = no_progress) -> IngestReport:
    """After a crash: insert bundles that reached the store's folder but not its tables."""
    report = IngestReport()
    present = store.run_ids() | store.unlisted.keys()
    left = [path for path in _finished(store.bundles) if path.name not in present]
    for done, path in enumerate(left):
        progress("store", done, len(left))
        _take_in(report, store, path, "spool", paths.spool())
    return report


def sweep(store: Store) -> None:
    """Remove what killed writers left and exported files after a day, and deleted runs after trash.KEPT_DAYS days."""
    for folder in (store.bundles, paths.spool()):
        _sweep(folder, f"{bundle.TEMPORARY_PREFIX}*", _STALE_SECONDS)
    trash.drop_exports("*", _STALE_SECONDS)
    trash.sweep(store)


def _take_in(
    report: IngestReport, store: Store, path: Path, origin: Origin, spool: Path | None, *, move: bool = False
) -> None:
    """Take in one bundle and report what came of it; a bad one is set aside in ``spool`` (None: left alone)."""

    def refuse(reason: str) -> None:
        if path.parent == store.bundles:
            store.unlisted.pop(path.name, None)
        if spool is None:
            report.rejected.append(Rejection(path.name, reason))
        elif os.path.lexists(path):
            try:
                report.rejected.append(reject(path, reason, spool))
            except FileNotFoundError:
                return  # another process has set it aside, or taken it in
            except OSError as error:
                why = f"{reason} It could not be set aside ({error.strerror or error}); free space, or discard it"
                report.waiting.append(Rejection(path.name, why))

    try:
        if origin == "sample" and store.was_deleted(bundle.verify_bundle(path).digest):
            return
        run_id = store.adopt(path, origin, move=move)
    except BundleError as error:
        refuse(str(error))
    except StoreError as error:
        report.waiting.append(Rejection(path.name, str(error)))
    # The boundary of a bundle: whatever is wrong with one, the others still come in.
    except Exception as error:  # noqa: BLE001
        reason = f"{path.name} can't be taken in (unexpected {type(error).__name__}); please report it"
        if os.path.lexists(path):
            refuse(reason)
        else:  # moved into the store's folder, where the next look finds it
            report.waiting.append(Rejection(path.name, reason))
    else:
        if run_id:
            report.ingested.append(run_id)


def _take_in_together(report: IngestReport, store: Store, paths: list[Path]) -> list[Path]:
    """Take in what can be taken in at once; what is left, to be taken in one by one."""
    try:
        taken, left = store.adopt_together(paths)
    except StoreError as error:
        report.waiting += [Rejection(path.name, str(error)) for path in paths if os.path.lexists(path)]
        return []
    # The boundary of a bundle, as below: one by one each says what is wrong with it.
    except Exception:  # noqa: BLE001
        return [path for path in paths if os.path.lexists(path)]
    report.ingested += taken
    return left


def reject(path: Path, reason: str, spool: Path) -> Rejection:
    """Move a bundle to ``rejected`` and write the reason into ``<name>.txt`` beside it.

    A full disk may have no room for the reason: the bundle is moved all the same. Errors: OSError, it stays.
    """
    rejected = spool / bundle.REJECTED
    rejected.mkdir(parents=True, exist_ok=True)
    short = _readable(path.name).encode()[:_NAME_BYTES].decode(errors="ignore")
    name, counter = short, 1
    while os.path.lexists(rejected / name):
        counter += 1
        name = f"{short}.{counter}"
    shutil.move(path, rejected / name)
    note = rejected / f"{name}.txt"
    try:
        note.write_text(_readable(reason) + "\n", "utf-8")
    except OSError:
        note.unlink(missing_ok=True)
    return Rejection(name, _readable(reason))


def rejections(spool: Path | None = None) -> list[Rejection]:
    """All bundles set aside, newest first."""
    folder = (spool or paths.spool()) / bundle.REJECTED
    if not folder.is_dir():
        return []
    names = {path.name for path in folder.iterdir()}
    # What was set aside may itself be called .txt.
    bundles = [name for name in names if name.removesuffix(".txt") not in names - {name}]
    asked = [_rejection(folder, name) for name in bundles if os.path.lexists(folder / name)]
    found = [rejection for rejection in asked if rejection is not None]
    return sorted(found, key=lambda rejection: rejection.rejected_at, reverse=True)


def _rejection(folder: Path, name: str) -> Rejection | None:
    note = folder / f"{name}.txt"
    try:
        reason = plain_files.read_bounded(note, _NOTE_BYTES).decode("utf-8", errors="replace").strip()
    except OSError:
        note, reason = folder / name, _NO_REASON
    changed = trash.changed_at(note)
    if changed is None:
        return None
    return Rejection(name, reason, datetime.fromtimestamp(changed, UTC).isoformat(timespec="seconds"))


def discard_rejection(name: str, spool: Path | None = None) -> None:
    """Delete a bundle that was set aside, and its note. Errors: StoreError for a name that isn't listed."""
    if name not in {rejection.name for rejection in rejections(spool)}:
        raise StoreError(f"no rejected bundle is called {name!r}")
    folder = (spool or paths.spool()) / bundle.REJECTED
    path = folder / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    (folder / f"{name}.txt").unlink(missing_ok=True)


def _readable(text: str) -> str:
    """Without line breaks, control characters and bytes that are no text: file names may hold all of them."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _finished(folder: Path) -> list[Path]:
    """Entries that are complete, oldest first; what is still written starts with a dot."""
    if not folder.is_dir():
        return []
    entries = [
        path for path in folder.iterdir() if not path.name.startswith(".") and path.name != bundle.REJECTED
    ]
    aged = [(changed, path.name, path) for path in entries if (changed := trash.changed_at(path)) is not None]
    return [path for _, _, path in sorted(aged)]


def _sweep(folder: Path, pattern: str, seconds: int) -> None:
    if not folder.is_dir():
        return
    for path in folder.glob(pattern):
        changed = trash.changed_at(path)
        if changed is not None and time.time() - changed > seconds:
            shutil.rmtree(path, ignore_errors=True)
