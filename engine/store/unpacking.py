"""Unpacks a bundle's Parquet files in a process of its own, which may take so much memory and time and no more.

A few kilobytes of Parquet may stand for gigabytes: one long value that a dictionary or a prefix repeats, run lengths,
packed pages, a footer of a million columns. What Arrow takes for it shows when it has taken it, and a damaged file may
end its process. So a child (bounded_process.py) holds names and types to the table's schema first, then hands on some
rows at a time, and never more than a run may take. Starting it takes 0.3 s.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from routesparse.engine.errors import BundleError, StoreError
from routesparse.engine.files.bounded_process import BoundedProcess, NoAnswerError, serve
from routesparse.engine.store import tables

# A run of 128 layers of 128 heads with 16 segments has 7 million candidates, which take 1.6 GB.
_MOST_BYTES = 1 << 31
CHILD_BYTES = 1 << 29  # what the child may take beside the file
_CHILD_SECONDS, _BYTES_A_SECOND = 5, 1 << 22  # of its processor, a file; runs take a tenth
_SMALL_BYTES, _MOST_RATIO = 1 << 26, 16  # runs unpack to 2 to 10 times their files
_MOST_ROWS = 1 << 24
_ROWS_AT_ONCE = 1 << 16
_TOO_LARGE = "unpacks to more than any run holds; it is no bundle"

_process = BoundedProcess("routesparse.engine.store.unpacking", StoreError)


def unpacked(table: str, content: bytes) -> pa.Table:
    """A bundle's Parquet file as that table, under the names of today. Thread-safe.

    Errors: BundleError, its text goes on after the file's name; StoreError where no process can be started.
    """
    schema, size = tables.arrow_schema(table), len(content)
    try:
        seconds = _CHILD_SECONDS + size / _BYTES_A_SECOND
        parts = _process.ask([table], content, seconds=seconds, memory_bytes=CHILD_BYTES + size)
    except NoAnswerError as error:
        raise BundleError(str(error)) from None
    return pa.Table.from_batches([pa.ipc.read_record_batch(part, schema) for part in parts], schema=schema)


def _batches(content: bytes, table: str) -> Iterator[pa.Buffer]:
    """Some rows at a time under the schema of today, texts checked to be text. Errors: BundleError, Arrow's."""
    file = pq.ParquetFile(pa.BufferReader(content))
    claimed = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
    most_bytes = min(_MOST_BYTES, _SMALL_BYTES + _MOST_RATIO * len(content))
    if file.metadata.num_rows > _MOST_ROWS or claimed > most_bytes:
        raise BundleError(_TOO_LARGE)
    schema, names = tables.arrow_schema(table), tables.names_of_today(table, file.schema_arrow.names)
    known = schema.names
    for name in names:
        if name not in known:
            raise BundleError(f"has a column {name!r}, which is none of a bundle")
    types = dict(zip(names, file.schema_arrow.types, strict=True))
    for field in schema:
        found = types.get(field.name, field.type if field.nullable else None)
        if found != field.type or names.count(field.name) > 1:
            raise BundleError(f"lacks column {field.name} of type {field.type}")
    size = 0
    for read in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
        size += read.nbytes
        if size > most_bytes:
            raise BundleError(_TOO_LARGE)
        read.validate(full=True)
        there = dict(zip(names, read.columns, strict=True))
        for field in schema:
            if field.name not in there:  # it is of a later version than the file
                there[field.name] = pa.nulls(read.num_rows, field.type)
            elif not field.nullable and there[field.name].null_count:
                raise BundleError(f"has no value for {field.name} in some rows")
        # Files that other programs wrote may call every column nullable.
        yield pa.record_batch([there[name] for name in known], schema=schema).serialize()


def _told(error: BaseException) -> str:
    if isinstance(error, BundleError):
        return str(error)
    return _TOO_LARGE if isinstance(error, MemoryError) else f"is not a readable Parquet file ({error})"


if __name__ == "__main__":
    serve(_batches, _told)
