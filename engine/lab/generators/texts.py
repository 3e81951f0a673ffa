"""Documents of a folder of texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Document:
    """One text: name (file stem) and the cleaned characters."""

    name: str
    text: str


def clean(text: str) -> str:
    """NFC, unix line ends, no control characters, at most two blank lines in a row."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    return re.sub(r"\n{4,}", "\n\n\n", _CONTROL.sub("", text)).strip() + "\n"


def read_folder(folder: Path) -> Iterator[Document]:
    """Every text file below ``folder``, in name order."""
    for path in sorted(folder.rglob("*.txt")):
        yield Document(path.stem, clean(path.read_text(encoding="utf-8", errors="replace")))
