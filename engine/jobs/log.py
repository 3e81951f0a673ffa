"""The workers' log: JSON lines in ``logs/worker.jsonl``, at most ROTATE_BYTES times KEPT on disk.

A line holds ids, stages, times and types of errors: never text of a prompt, and no message of an unexpected error,
since such a message may quote the data that it stumbled over.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import traceback
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from routesparse.engine.files.plain_files import open_plain
from routesparse.engine.schema import from_json

ROTATE_BYTES = 4 * 1024 * 1024
KEPT = 3
_NAME = "worker.jsonl"


class JobLog:
    """Appends lines to one home's log; several workers may share the file."""

    def __init__(self, home: Path, worker: str) -> None:
        self._file = Path(home) / "logs" / _NAME
        self._worker = worker

    def write(self, event: str, **fields: Any) -> None:
        """One line. A log that can't be written never stops a job: stderr gets the line instead."""
        line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        line |= {"worker": self._worker, "pid": os.getpid(), **fields}
        encoded = json.dumps(line).encode() + b"\n"
        try:
            self._append(encoded)
        except OSError as error:
            print(f"log not written ({error.strerror}): {encoded.decode().strip()}", file=sys.stderr)

    def _append(self, line: bytes) -> None:
        self._file.parent.mkdir(mode=0o700, exist_ok=True)  # not the home: a deleted one stays deleted
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        descriptor = os.open(self._file, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size > ROTATE_BYTES:
                rotated = self._rotate(descriptor)
                if rotated:
                    os.close(descriptor)
                    descriptor = os.open(self._file, flags, 0o600)
            # One write with O_APPEND: lines of several workers don't mix.
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def _rotate(self, descriptor: int) -> bool:
        """Move the files on by one, unless another worker is doing so."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if os.fstat(descriptor).st_ino == self._file.stat().st_ino:
            files = _files(self._file)
            for older, newer in zip(reversed(files[1:]), reversed(files[:-1]), strict=True):
                if newer.exists():
                    os.replace(newer, older)
        return True


def tail(home: Path, job_id: str, limit: int = 50) -> list[dict[str, Any]]:
    """The last lines about one job, oldest first, for its page."""
    found: deque[dict[str, Any]] = deque(maxlen=limit)
    for file in reversed(_files(Path(home) / "logs" / _NAME)):
        if not file.is_file():
            continue
        with open_plain(file) as handle:
            handle.seek(max(0, file.stat().st_size - 2 * ROTATE_BYTES))
            content = handle.read(2 * ROTATE_BYTES).decode("utf-8", errors="replace")
        for text in content.split("\n"):
            # A page asks every second: other jobs' lines aren't parsed.
            line = _parsed(text) if job_id in text else {}
            if line.get("job") == job_id:
                found.append(line)
    return list(found)


def frames(error: BaseException) -> list[str]:
    """Where an error happened, "file:line function", innermost last; code only, no values and no message."""
    return [
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]


def _files(current: Path) -> list[Path]:
    """The current file and the older ones, newest first."""
    return [current, *(current.with_name(f"{current.name}.{age}") for age in range(1, KEPT))]


def _parsed(text: str) -> dict[str, Any]:
    """A line's fields; a line cut by a full disk has none."""
    try:
        value = from_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
