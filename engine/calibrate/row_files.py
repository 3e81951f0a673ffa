"""Files that measuring appends to and goes on from: a JSON object a line, flushed one by one, read back with bounds."""

from __future__ import annotations

import errno
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from routesparse.engine.errors import ConfigError, InputError, shortened
from routesparse.engine.files.plain_files import read_bounded
from routesparse.engine.schema import from_json

MOST_BYTES = 1 << 29  # of one file, packed or not


def read_lines(path: Path, tell: Callable[[str], object] = lambda _: None) -> Iterator[tuple[int, Any]]:
    """Number and value of every whole line, of a .gz file too; a run that was killed leaves a torn one.

    tell: gets how many were torn, in words.
    Errors: InputError for a file that can't be read, of more than MOST_BYTES, or with a line that is no JSON.
    """
    torn = 0
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, from_json(line)
        except ValueError as error:
            if not _ends_early(line, error):
                raise InputError(
                    f"line {number} of {shortened(path)}: {error}; remove it, and measure again"
                ) from None
            torn += 1
    if torn:
        tell(f"{shortened(path)}: {torn} {'line was' if torn == 1 else 'lines were'} cut off and left out")


def _ends_early(line: str, error: ValueError) -> bool:
    """Whether a line was torn; it may be so behind a bracket, within a string, too."""
    if not line.endswith("}"):
        return True
    return isinstance(error, json.JSONDecodeError) and (
        error.pos >= len(line) or error.msg.startswith("Unterminated string")
    )


def _text(path: Path) -> str:
    """Errors: InputError."""
    try:
        content = read_bounded(path, MOST_BYTES)
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise OSError(errno.EFBIG, f"it unpacks to more than {MOST_BYTES >> 20} MB")
        return content.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{shortened(path)} can't be read ({said}); pass a file of JSON lines that a run wrote"
        ) from None


class Appender:
    """Appends lines; each is in the operating system's hands when ``write`` returns.

    At the end it says on stderr how many failed: a line that says why it has no numbers looks like any other on its
    way. failed: why, of each that did.
    """

    def __init__(self, path: Path) -> None:
        """Errors: ConfigError for a .gz file, which plain lines would ruin."""
        if path.suffix == ".gz":
            raise ConfigError(f"{path} is compressed and can't be appended to; pass a .jsonl file")
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
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
            full = "out of memory" in self.failed[0]
            print(
                f"{len(self.failed):,} measurements failed, the first: {self.failed[0]}; the same command tries them "
                f"again{'; fewer --processes leave each more memory' if full else ''}",
                file=sys.stderr,
                flush=True,
            )
