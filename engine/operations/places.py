"""Where the parts of a home lie, in it or in what several hosts share, and how much room there is."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.errors import InputError, StoreError


@dataclass(frozen=True)
class Places:
    """One host's home, and what it shares with others."""

    home: Path
    shared: Path | None = None  # ROUTESPARSE_SHARED
    lake: str | None = None  # ROUTESPARSE_STORE

    @property
    def spool(self) -> Path:
        """Finished bundles that no dashboard has taken in."""
        return (self.shared or self.home) / "spool"

    @property
    def runs(self) -> Path:
        """The folder of bundles and trash."""
        return (self.shared if self.lake else None) or self.home

    @property
    def folders(self) -> tuple[Path, ...]:
        """All of them, none twice and none within another."""
        if self.shared is None or self.shared.is_relative_to(self.home):
            return (self.home,)
        return (self.shared,) if self.home.is_relative_to(self.shared) else (self.home, self.shared)

    def size_bytes(self) -> int:
        """Bytes of all files; what PostgreSQL takes is not counted."""
        return sum(size_bytes(folder) for folder in self.folders)


def of(home: Path) -> Places:
    """As the environment says for its own home; any other folder is a home that shares nothing."""
    if home.resolve() != paths.home():
        return Places(home)
    return Places(home.resolve(), paths.shared(), paths.store())


def check_apart(at: Places) -> None:
    """Errors: InputError where the home, which a restore replaces, holds what other hosts use."""
    if at.shared is not None and at.shared.is_relative_to(at.home):
        raise InputError(
            f"ROUTESPARSE_SHARED lies in the home {at.home}, which is restored whole; set one of them to another folder"
        )


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
