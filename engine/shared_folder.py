"""Whether the folder that several hosts share (ROUTESPARSE_SHARED) is there, and not the empty place it is mounted at.

The dashboard leaves a mark in its spool. Whoever puts a finished run there does so through ``store/bundle.py``, which
looks for the mark first; a command asks ``check`` also before its work begins.
"""

from __future__ import annotations

from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.errors import StoreError
from routesparse.engine.files.plain_files import read_bounded

MARK = ".routesparse"


def mark() -> None:
    """Leave the mark where ROUTESPARSE_SHARED is set. Errors: StoreError."""
    folder = paths.shared()
    if folder is None or (folder / "spool" / MARK).is_file():
        return
    try:
        (folder / "spool").mkdir(parents=True, exist_ok=True)
        (folder / "spool" / MARK).write_text("The spool of all hosts of this folder.\n", "utf-8")
    except OSError as error:
        raise StoreError(
            f"{folder / 'spool'} can't be written ({error.strerror}); check ROUTESPARSE_SHARED"
        ) from error


def holds(file: Path, token: str) -> bool:
    """Whether the folder is the one that a catalogue or a queue was made with: its file of a random token says so."""
    try:
        return read_bounded(file, len(token)) == token.encode()
    except OSError:
        return False


def check(folder: Path | None = None) -> Path:
    """The folder that a finished run goes into: this one, or the spool.

    Errors: StoreError where it is the spool of all hosts and has no mark: the shared folder is not mounted.
    """
    folder = paths.spool() if folder is None else Path(folder)
    if paths.shared() is None or folder.resolve() != paths.spool().resolve():
        return folder
    if not (folder / MARK).is_file():
        raise StoreError(
            f"{folder / MARK} is not there; is the shared folder mounted? Check ROUTESPARSE_SHARED, and start "
            "the dashboard once: it makes the spool"
        )
    return folder
