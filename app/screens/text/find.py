"""Finding a phrase in a prompt, bounded in length, time and number, and as a link that holds no word of the prompt.

A link names a phrase by where it stands: "1203-17" means the 17 characters from 1203 on and whatever reads alike. What
a regular expression found is named one by one: "r:1203-17,4100-9".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import regex

LONGEST = 200  # characters of a phrase or an expression
MOST = 2_000  # occurrences
MOST_IN_LINK = 64
SECONDS = 0.3
MOST_REPEATS = (
    10_000  # counted repetitions inside one another: compiling unrolls them and can't be interrupted
)
_BRACES = regex.compile(r"\{([^{}]*\d[^{}]*)\}")
_LINK = regex.compile(r"(r:)?(\d{1,9}-\d{1,9})(,\d{1,9}-\d{1,9})*")


@dataclass(frozen=True)
class Found:
    """spans int64 [n, 2]: first character and end of each occurrence; more: there are others behind the last one."""

    phrase: str = ""
    is_regex: bool = False
    spans: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    more: bool = False
    problem: str | None = None


@lru_cache(8)
def search(text: str, phrase: str, is_regex: bool) -> Found:
    """All occurrences: of a phrase in any case and with any white space between its words, or of an expression.

    What can't be searched for is said in ``problem``.
    """
    if not phrase.strip():
        return Found(phrase, is_regex)
    if len(phrase) > LONGEST:
        return Found(phrase, is_regex, problem=f"{len(phrase)} characters; use at most {LONGEST}")
    flags = regex.MULTILINE if is_regex else regex.IGNORECASE
    pattern = phrase if is_regex else r"\s+".join(regex.escape(word) for word in phrase.split())
    if is_regex and _repeats(pattern) > MOST_REPEATS:
        return Found(phrase, is_regex, problem="repeats too often; use smaller numbers in braces")
    try:
        compiled = regex.compile(pattern, flags)
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        return Found(phrase, is_regex, problem=f"no regular expression: {error}")
    spans: list[tuple[int, int]] = []
    more = False
    try:
        for match in compiled.finditer(text, timeout=SECONDS):
            if match.end() > match.start():
                more = len(spans) == MOST
                if more:
                    break
                spans.append(match.span())
    except TimeoutError:
        advice = (
            "use a simpler expression, without one repetition inside another"
            if is_regex
            else "use a longer phrase"
        )
        return Found(phrase, is_regex, problem=f"the search took longer than {SECONDS:g} s; {advice}")
    except MemoryError:
        return Found(phrase, is_regex, problem="the search needs too much memory; use a simpler expression")
    return Found(phrase, is_regex, np.array(spans, np.int64).reshape(-1, 2), more)


def _repeats(pattern: str) -> int:
    """The product of the largest numbers of all braces, an upper bound of what nested repetitions unroll to."""
    product = 1
    for braces in _BRACES.findall(pattern):
        product *= max(1, *(int(number[:9]) for number in regex.findall(r"\d+", braces)))
    return product


def link(found: Found) -> str | None:
    """The address of what was found; None where nothing was."""
    if not len(found.spans):
        return None
    named = [f"{start}-{end - start}" for start, end in found.spans[:MOST_IN_LINK]]
    return "r:" + ",".join(named) if found.is_regex else named[0]


def linked(text: str, address: str) -> Found | None:
    """What a link means in this prompt; None where it means nothing."""
    if not _LINK.fullmatch(address):
        return None
    named = [tuple(map(int, part.split("-"))) for part in address.removeprefix("r:").split(",")]
    spans = [(start, start + length) for start, length in named if length and start + length <= len(text)]
    if not spans or len(spans) > MOST_IN_LINK:
        return None
    if address.startswith("r:"):
        return Found("", True, np.array(spans, np.int64))
    start, end = spans[0]
    return search(text, text[start:end], False) if end - start <= LONGEST else None
