"""What the trust study measured, as it came: gzipped JSON lines, appended and flushed one by one.

Every record is a gzip member of its own, so that a run killed at any moment leaves a file that reads up to the record
being written. Kinds of record: "study" (command, devices, versions, commit, plan, and every planned window), "window"
(one measured window with its units, column by column) and "failure" (a window, and why).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CHUNK_BYTES = 1 << 16
DIGITS = 6  # of a number: masses to a millionth
COARSE = {
    "true_all": 5,
    "row_error": 4,
    "row_paper": 4,
    "row_tight": 4,
}


def encode(record: dict[str, Any]) -> bytes:
    """A record as one gzip member."""
    return gzip.compress(json.dumps(record, allow_nan=False).encode() + b"\n", 6)


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, numbers rounded to DIGITS; None where a row lacks a value, or for NaN."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [_plain(row.get(name), COARSE.get(name, DIGITS)) for row in rows] for name in names}


def _plain(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_plain(entry, digits) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if np.isfinite(value) else None
    return value


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Records in the order of writing, up to a torn one (its window counts as not measured).

    Errors: zlib.error for a file that is damaged elsewhere.
    """
    return (json.loads(text) for _, text in _members(path))


def cut_torn(path: Path) -> None:
    """Take away a torn last record, so that others can follow."""
    with path.open("r+b") as file:
        file.truncate(max((end for end, _ in _members(path)), default=0))


def _members(path: Path) -> Iterator[tuple[int, bytes]]:
    """Whole gzip members: where each ends, and its content."""
    content = path.read_bytes()
    data = memoryview(content)
    while data:
        member = zlib.decompressobj(wbits=31)
        text = b""
        while data and not member.eof:
            fed = data[:CHUNK_BYTES]
            text += member.decompress(fed)
            data = data[len(fed) - len(member.unused_data) :]
        if member.eof:
            yield len(content) - len(data), text
