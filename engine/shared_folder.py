"""Whether the folder that several hosts share (ROUTESPARSE_SHARED) is there, and not the empty place it is mounted at.

The dashboard leaves a mark in its spool; whoever brings a finished run looks for it first.
"""

from __future__ import annotations

from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.errors import StoreError

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


def check() -> Path:
    """The spool that finished runs go into. Errors: StoreError where the shared folder is not mounted."""
    if paths.shared() is not None and not (paths.spool() / MARK).is_file():
        raise StoreError(
            f"{paths.spool() / MARK} is not there; is the shared folder mounted? Check ROUTESPARSE_SHARED, and start "
            "the dashboard once: it makes the spool"
        )
    return paths.spool()
