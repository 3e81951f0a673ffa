"""What commands check before they begin to work."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from routesparse.engine.errors import InputError, shortened


def writable_folder(folder: Path) -> Path:
    """The folder itself, if files can be written there; what was missing of it is made and removed again.

    Errors: InputError.
    """
    made: list[Path] = []
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise InputError(f"{existing} is a file; pass a folder")
        made = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
            file.flush()
    except OSError as error:
        raise InputError(
            f"{shortened(folder)} is not writable ({error.strerror or error}); pass another folder"
        ) from error
    finally:
        for path in made:
            # Where another process has begun to use it, it stays.
            if path.is_dir() and not os.listdir(path):
                path.rmdir()
    return folder
