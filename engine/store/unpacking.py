"""Unpacks a bundle's Parquet files in a process of its own, which may take so much memory and time and no more.

A few kilobytes of Parquet may stand for gigabytes: one long value that a dictionary or a prefix repeats, run lengths,
packed pages, a footer of a million columns. What Arrow takes for it shows when it has taken it, and a damaged file may
end its process. So the child holds names and types to the table's schema first, then hands on some rows at a time; this
process takes what they say and never more than ``most_bytes``. The child starts with the first file, is kept for the
next ones (starting takes 0.3 s) and ends with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from routesparse.engine.errors import BundleError, StoreError
from routesparse.engine.store import tables

# A run of 128 layers of 128 heads with 16 segments has 7 million candidates, which take 1.6 GB.
MOST_UNPACKED_BYTES = 1 << 31
CHILD_BYTES = 1 << 29  # what the child may take beside itself and the file
_CHILD_SECONDS, _BYTES_A_SECOND = 5, 1 << 22  # of its processor, a file; runs take a tenth
_SMALL_BYTES, _MOST_RATIO = 1 << 26, 64  # runs unpack to 2 to 10 times their files
_MOST_ROWS = 1 << 24
_ROWS_AT_ONCE = 1 << 12
_TOO_LARGE = "unpacks to more than any run holds; it is no bundle"
_ANSWER = struct.Struct("<?Q")  # whether it is a batch, else the end and what was wrong; its bytes


def most_bytes(size: int) -> int:
    """What a file of ``size`` bytes may take unpacked."""
    return min(MOST_UNPACKED_BYTES, _SMALL_BYTES + _MOST_RATIO * size)


def unpacked(table: str, content: bytes) -> pa.Table:
    """A bundle's Parquet file as that table, under the names of today. Thread-safe.

    Errors: BundleError, its text goes on after the file's name; StoreError where no process can be started.
    """
    schema = tables.arrow_schema(table)
    with _child.lock:
        batches = [pa.ipc.read_record_batch(batch, schema) for batch in _child.ask(table, content)]
    return pa.Table.from_batches(batches, schema=schema)


class _Child:
    """The process; ``lock`` is held by who talks to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, table: str, content: bytes) -> Iterator[bytes]:
        """The file's batches. Errors: those of ``unpacked``."""
        if self._process is None or self._process.poll() is not None:
            self._process = _started()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps([table, len(content)]).encode() + b"\n")
            process.stdin.write(content)
            process.stdin.flush()
            while (answer := _answer(process.stdout))[0]:
                yield answer[1]
        except BaseException as error:
            self.end()  # the rest of its answer would be taken for that to the next file
            if isinstance(error, EOFError | BrokenPipeError):
                how = f"what unpacked it ended with {process.returncode}"
                raise BundleError(f"{_TOO_LARGE} ({how})") from None
            raise
        if answer[1]:
            raise BundleError(answer[1].decode())

    def end(self) -> None:
        """Let the process go, if there is one."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError):  # of what was not yet written
                self._process.communicate()
        self._process = None


_child = _Child()
atexit.register(_child.end)


def _started() -> subprocess.Popen[bytes]:
    # One thread and the system's allocator: others reserve memory that they never use.
    lean = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=os.environ | lean,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is meant for this process alone
        )
    except OSError as error:
        raise StoreError(
            f"no process can be started to read bundles ({error.strerror}); free memory and retry"
        ) from error


def _answer(source: IO[bytes]) -> tuple[bool, bytes]:
    """The child's next message. Errors: EOFError where it has ended."""
    head = source.read(_ANSWER.size)
    if len(head) < _ANSWER.size:
        raise EOFError
    more, size = _ANSWER.unpack(head)
    content = source.read(size)
    if len(content) < size:
        raise EOFError
    return more, content


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    """What the child does until its parent ends."""
    own_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    while line := source.readline():
        table, size = json.loads(line)
        _limit(own_bytes + size + CHILD_BYTES, _CHILD_SECONDS + size // _BYTES_A_SECOND)
        content = source.read(size)
        wrong = ""
        try:
            for batch in _batches(table, content):
                _send(sink, True, batch.serialize())
        except MemoryError:
            wrong = _TOO_LARGE
        except BundleError as error:
            wrong = str(error)
        except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names that are no text
            wrong = f"is not a readable Parquet file ({error})"
        _send(sink, False, wrong.encode(errors="replace"))


def _limit(memory_bytes: int, seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + seconds
    for kind, soft in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, until)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _batches(table: str, content: bytes) -> Iterator[pa.RecordBatch]:
    """Some rows at a time under the schema of today, texts checked to be text. Errors: BundleError, Arrow's."""
    file = pq.ParquetFile(pa.BufferReader(content))
    claimed = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
    if file.metadata.num_rows > _MOST_ROWS or claimed > most_bytes(len(content)):
        raise BundleError(_TOO_LARGE)
    schema, found = tables.arrow_schema(table), tables.as_of_today(table, file.schema_arrow.empty_table())
    for name in found.schema.names:
        if name not in schema.names:
            raise BundleError(f"has a column {name!r}, which is none of a bundle")
    for field in schema:
        if found.schema.names.count(field.name) != 1 or found.schema.field(field.name).type != field.type:
            raise BundleError(f"lacks column {field.name} of type {field.type}")
    size = 0
    for read in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
        size += read.nbytes
        if size > most_bytes(len(content)):
            raise BundleError(_TOO_LARGE)
        read.validate(full=True)
        data = tables.as_of_today(table, pa.Table.from_batches([read])).select(schema.names)
        for field in schema:
            if not field.nullable and data.column(field.name).null_count:
                raise BundleError(f"has no value for {field.name} in some rows")
        # Files that other programs wrote may call every column nullable.
        yield from data.cast(schema).to_batches()


def _send(sink: BinaryIO, more: bool, content: bytes | pa.Buffer) -> None:
    sink.write(_ANSWER.pack(more, len(content)))
    sink.write(content)
    sink.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
