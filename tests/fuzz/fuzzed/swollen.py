"""Parquet files of some kilobytes that stand for gigabytes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_CLAIMING = 1 << 27  # bytes of a page whose header has room for more digits
# What is swollen, how many rows, columns or groups there are, and the bytes of a value or those that a page claims.
KINDS = (
    *(("values", 1 << 14, 1 << 20), ("values", 1 << 20, 1 << 16), ("values", 1 << 17, 1 << 13)),
    *(("prefixes", 288, 1 << 20), ("pages", 5 << 20, 1), ("list", 1 << 22, 1 << 12)),
    *(("columns", 20_000, 0), ("groups", 500, 0), ("claim", 1, 2**31 - 1), ("claim", 1, 1)),
)


def written(table: pa.Table, **options: Any) -> bytes:
    """The table's Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", store_schema=False, **options)
    return buffer.getvalue()


def swollen(table: pa.Table, kind: str, count: int, size: int) -> bytes:
    """The file of a table like this one, its first row again and again."""
    first = table.slice(0, 1)
    columns = dict(zip(first.column_names, first.columns, strict=True))
    if kind == "columns":
        return written(pa.table(columns | {f"column {place}": first[0] for place in range(count)}))
    if kind == "groups":
        return written(pa.concat_tables([first] * count), row_group_size=1)
    if kind == "list":
        values = _repeated("x" * size, count, pa.string())
        return written(
            first.append_column("list", pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), values))
        )
    if kind == "claim":
        honest = _varint(2 * (_CLAIMING + 4))
        content = written(
            pa.table(columns | {"run_id": ["x" * _CLAIMING]}), use_dictionary=False, write_statistics=False
        )
        # A page's header begins with its type and what it unpacks to.
        return content.replace(b"\x15\x00\x15" + honest, b"\x15\x00\x15" + _varint(2 * size, len(honest)))
    for field in table.schema:
        text = field.type == pa.string()
        value = "x" * size if text else b"" if field.type == pa.binary() else first[field.name][0].as_py()
        columns[field.name] = _repeated(value, count, field.type)
        if kind != "values" or not text:
            columns[field.name] = columns[field.name].cast(field.type)
    if kind == "values":
        return written(pa.table(columns))
    texts = [field.name for field in table.schema if field.type == pa.string()]
    encoding = dict.fromkeys(texts, "DELTA_BYTE_ARRAY") if kind == "prefixes" else None
    return written(
        pa.table(columns), use_dictionary=False, data_page_size=(1 << 31) - 1, column_encoding=encoding
    )


def _repeated(value: Any, count: int, kind: pa.DataType) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value], kind))


def _varint(number: int, least: int = 1) -> bytes:
    """As Parquet's headers write it, in so many bytes at least."""
    found = []
    while number or len(found) < least:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found[:-1], found[-1] & 127])
