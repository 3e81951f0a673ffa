"""How much room a folder takes, and how much is left."""

from __future__ import annotations

import shutil
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.errors import StoreError


def size_bytes(folder: Path) -> int:
    """Bytes of all plain files below a folder; what vanishes meanwhile counts as nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        except OSError:  # deleted since it was listed
            continue
    return total


def free_bytes(home: Path) -> int:
    """Bytes free where jobs write: in the home, or in the folder that all hosts of the queue see.

    Errors: StoreError where that folder is not there.
    """
    folder = paths.workplace() if paths.queue() else home
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise StoreError(f"the room in {folder} can't be told ({error.strerror}); is it there?") from error
