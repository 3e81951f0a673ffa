"""What the trust study measured, as it came: gzipped JSON lines, appended and flushed one by one.

Every record is a gzip member of its own, so that a run killed at any moment leaves files that read up to the record
being written. Kinds of record: "study" (command, devices, versions, commit, plan, and every planned window),
"window" (one measured window with its units, column by column), "failure" (a window, on which device, why) and "left"
(windows that were not started or not finished, and why). A file is closed before it exceeds ``FILE_BYTES``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from routesparse.engine.errors import InputError

FILE_BYTES = 14 << 20
CHUNK_BYTES = 1 << 16
DIGITS = 6  # of a number: masses to a millionth
COARSE = {
    "true_all": 5,
    "aligned_all": 5,
    "omitted_by_offset": 3,
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


class Journal:
    """Appends to <folder>/journal-00.jsonl.gz and so on. Errors: InputError where the folder holds one already."""

    def __init__(self, folder: Path) -> None:
        if list(folder.glob("journal-*.jsonl.gz")):
            raise InputError(f"{folder} already holds a journal; pass another --out")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file: BinaryIO | None = None
        self._files = self._bytes = 0

    def append(self, record: bytes) -> None:
        """Write one encoded record; it is in the operating system's hands when this returns."""
        if self._file is None or self._bytes + len(record) > FILE_BYTES:
            self.close()
            self._file = (self._folder / f"journal-{self._files:02}.jsonl.gz").open("xb")
            self._files, self._bytes = self._files + 1, 0
        self._file.write(record)
        self._file.flush()
        self._bytes += len(record)

    def close(self) -> None:
        """Close the file that is being written."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_journal(folder: Path) -> Iterator[dict[str, Any]]:
    """Records in the order of writing; a torn last one of a file is left out (its window counts as not finished).

    Errors: InputError where the folder holds no journal; zlib.error for one that is damaged elsewhere.
    """
    files = sorted(folder.glob("journal-*.jsonl.gz"))
    if not files:
        raise InputError(f"{folder} holds no journal; pass the --out of coverage.measure")
    for path in files:
        data = memoryview(path.read_bytes())
        while data:
            member = zlib.decompressobj(wbits=31)
            text = b""
            while data and not member.eof:
                fed = data[:CHUNK_BYTES]
                text += member.decompress(fed)
                data = data[len(fed) - len(member.unused_data) :]
            if member.eof:
                yield json.loads(text)
