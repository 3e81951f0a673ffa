"""The study's file: one JSON line per method, setting and prompt, appended and flushed one by one."""

from __future__ import annotations

import errno
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from routesparse.engine.errors import ConfigError, InputError
from routesparse.engine.files import plain_files
from routesparse.engine.lab import study
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
MOST_BYTES = 1 << 29  # of one file, packed or not


def key_of(row: dict[str, Any]) -> Key:
    """What names a row."""
    return tuple(row[name] for name in KEY)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines, of a .gz file too; one may be torn where a run was killed.

    Errors: InputError for a file that can't be read, of more than MOST_BYTES, or with a line that is no JSON.
    """
    if not path.exists():
        return
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.endswith("}"):
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            # A torn line ends too early, and may end in a bracket, within a string, too.
            if error.pos < len(line) and not error.msg.startswith("Unterminated string"):
                raise InputError(f"{path.name}, line {number} is no JSON: {error.msg}") from None


def _text(path: Path) -> str:
    """Errors: InputError."""
    try:
        content = plain_files.read_bounded(path, MOST_BYTES)
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise OSError(errno.EFBIG, f"it unpacks to more than {MOST_BYTES >> 20} MB")
        return content.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{path.name} can't be read: {said}; pass a file of JSON lines that a run wrote"
        ) from None


def read_rows(files: list[Path]) -> tuple[dict[Key, dict[str, Any]], dict[Key, str]]:
    """Measured rows, and what failed and was not measured since, by key. Errors: InputError with file and field."""
    rows: dict[Key, dict[str, Any]] = {}
    failed: dict[Key, str] = {}
    for file, row in ((path, row) for path in files for row in read_lines(path) if "method" in row):
        try:
            checked(Named, row)
        except FieldError as error:
            raise InputError(f"{file.name}, a row's {error}; pass a file that a run wrote") from None
        if "failed" in row:
            failed[key_of(row)] = row["failed"]
        else:
            rows[key_of(row)] = row
    return rows, {key: text for key, text in failed.items() if key not in rows}


def parts(out: Path) -> list[Path]:
    """FILE.jsonl and FILE.0.jsonl, FILE.1.jsonl, ... of several processes, those that exist."""
    found = out.parent.glob(f"{out.stem}.*{out.suffix}")
    numbered = [path for path in found if path.stem.removeprefix(f"{out.stem}.").isdigit()]
    return [*([out] if out.exists() else []), *sorted(numbered)]


def part(out: Path, place: int) -> Path:
    """The file of one process of several."""
    return out.with_suffix(f".{place}{out.suffix}")


class Appender:
    """Appends lines; each is in the operating system's hands when ``write`` returns.

    At the end it says how many failed: a line that says why it has no numbers looks like any other on its way.
    failed: why, of each that did.
    """

    def __init__(self, path: Path) -> None:
        """Errors: ConfigError for a .gz file, which plain lines would ruin."""
        if path.suffix == ".gz":
            raise ConfigError(f"{path} is compressed and can't be appended to; pass a .jsonl file")
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        self._file = path.open("a", buffering=1)
        self.failed: list[str] = []
        if torn:
            self._file.write("\n")

    def write(self, row: dict[str, Any]) -> None:
        """Floats to six digits."""
        if "failed" in row:
            self.failed.append(str(row["failed"]))
        short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()}
        self._file.write(json.dumps(short) + "\n")
        self._file.flush()

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self.failed:
            more = (
                "" if "out of memory" not in self.failed[0] else "; fewer --processes leave each more memory"
            )
            study.note(
                f"{len(self.failed):,} measurements failed, the first: {self.failed[0]}; the same command tries them "
                f"again{more}"
            )
