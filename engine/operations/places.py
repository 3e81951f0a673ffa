"""Where the parts of a home lie: in it, or in the folder and the lake that several hosts share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.operations.sizes import size_bytes


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
