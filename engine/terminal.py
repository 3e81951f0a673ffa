"""What a terminal is sent. Names and messages come from files of others, and no terminal may obey them.

Every stream and every table of a command passes here, so no caller escapes anything. Control and format characters
(ESC, carriage return, bidi overrides, zero widths) and halves of characters become escapes such as ``\\x1b``; line ends
stay.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from rich.console import Console
from rich.text import Text


def printable(text: str) -> str:
    """The text with every character that is not seen, except the line end, as an escape."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class Terminal(Console):
    """Prints strings, in tables too, as they are: no markup, no emoji names, nothing that a terminal obeys."""

    def render_str(self, text: str, *, style: Any = "", **options: Any) -> Text:
        """Rich calls this for every string that it is given, and for cells, titles and captions of tables."""
        found = Text(printable(text), style=style)
        found.justify, found.overflow = options.get("justify"), options.get("overflow")
        return found


class _Escaped:
    """A stream whose writers, such as print, logging and warnings, may pass on what they were given.

    Rich finds the stream itself, for its own colours and bars; others are told that this is no terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # click finds out by bytes whether a stream is a binary one
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextlib.contextmanager
def escaped() -> Iterator[None]:
    """Inside the block, stdout and stderr carry nothing that a terminal obeys."""
    out, err = (cast(Any, _Escaped(stream)) for stream in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


@contextlib.contextmanager
def with_bars() -> Iterator[None]:
    """Inside the block, bars that a library draws of names of ours reach the terminal again."""
    with contextlib.redirect_stderr(getattr(sys.stderr, "rich_proxied_file", sys.stderr)):
        yield
