"""Finding a phrase in a prompt, and as a link that holds no word of the prompt.

A link names a phrase by where it stands: "1203-17" means the 17 characters from 1203 on and whatever reads alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

import numpy as np

LONGEST = 200  # characters of a phrase
MOST = 2_000  # occurrences
_LINK = re.compile(r"\d{1,9}-\d{1,9}")


@dataclass(frozen=True)
class Found:
    """spans int64 [n, 2]: first character and end of each occurrence; more: there are others behind the last one."""

    phrase: str = ""
    spans: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    more: bool = False


@lru_cache(8)
def search(text: str, phrase: str) -> Found:
    """All occurrences of a phrase, in any case and with any white space between its words."""
    phrase = phrase[:LONGEST]
    pattern = r"\s+".join(map(re.escape, phrase.split()))
    if not pattern:
        return Found(phrase)
    matches = re.finditer(pattern, text, re.IGNORECASE)
    spans = [match.span() for match in islice(matches, MOST + 1)]
    return Found(phrase, np.array(spans[:MOST], np.int64).reshape(-1, 2), len(spans) > MOST)


def link(found: Found) -> str | None:
    """The address of what was found; None where nothing was."""
    if not len(found.spans):
        return None
    start, end = found.spans[0]
    return f"{start}-{end - start}"


def linked(text: str, address: str) -> Found | None:
    """What a link means in this prompt; None where it means nothing."""
    if not _LINK.fullmatch(address):
        return None
    start, length = map(int, address.split("-"))
    if not 0 < length <= LONGEST or start + length > len(text):
        return None
    return search(text, text[start : start + length])
