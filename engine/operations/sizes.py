"""How much room a folder takes."""

from __future__ import annotations

from pathlib import Path


def size_bytes(folder: Path) -> int:
    """Bytes of all plain files below a folder; what vanishes meanwhile counts as nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        except OSError:  # deleted since it was listed
            continue
    return total
