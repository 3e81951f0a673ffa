"""The study's file: one JSON line per method, setting and prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.errors import InputError
from routesparse.engine.schema import Count, FieldError, Real, checked, in_file


@in_file(more=True)
@dataclass(frozen=True)
class Named:
    """What names a row."""

    method: str
    setting: Real
    task: str
    length: Count
    index: Count
    seed: int
    extras: bool


KEY = tuple(field.name for field in fields(Named))
Key = tuple[Any, ...]


def key_of(row: dict[str, Any]) -> Key:
    """What names a row."""
    return tuple(row[name] for name in KEY)


def read_rows(files: Sequence[Path]) -> tuple[dict[Key, dict[str, Any]], dict[Key, str]]:
    """Measured rows, and what failed and was not measured since, by key. Errors: InputError with file and field."""
    rows: dict[Key, dict[str, Any]] = {}
    failed: dict[Key, str] = {}
    for file, row in ((path, row) for path in files for _, row in read_lines(path)):
        if not isinstance(row, dict) or "method" not in row:
            continue
        try:
            checked(Named, row)
        except FieldError as error:
            raise InputError(f"{file.name}, a row's {error}; pass a file that a run wrote") from None
        if "failed" in row:
            failed[key_of(row)] = row["failed"]
        else:
            rows[key_of(row)] = row
    return rows, {key: text for key, text in failed.items() if key not in rows}
