"""The store's SQL files: numbered migrations of its tables, and what is defined anew at every start."""

from __future__ import annotations

from importlib import resources

_FOLDER = resources.files("routesparse.engine.store")


def migrations() -> list[tuple[int, str, str]]:
    """(version, name, SQL) of every numbered file in migrations/, ascending."""
    folder = _FOLDER / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name.split("_")[0]), name, (folder / name).read_text("utf-8")) for name in names]


def sql(name: str) -> str:
    """The text of one file beside this module."""
    return (_FOLDER / name).read_text("utf-8")
