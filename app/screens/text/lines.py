"""A prompt as lines of bounded width, so that the browser knows where every line stands before it has any text.

Lines break at newlines only, and where they are full; what would hide, move or break text is shown as a mark
(engine/export/plain_text.py).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from routesparse.engine.export.plain_text import MARKED, mark, visible

WIDTH = 72  # cells of a line; a wide character takes two
_LAST_WORD = 24  # cells at the end of a full line within which a space is looked for
# Of East Asian width W and F, and emoji; ranges of code points.
_WIDE = (
    (0x1100, 0x115F),
    (0x2E80, 0xA4CF),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE6F),
    (0xFF00, 0xFF60),
)
_FIRST_EMOJI = 0x1F000


@lru_cache(4)
def starts(text: str) -> np.ndarray:
    """int64 [lines + 1]: the first character of every line, then the end of the text."""
    cells = np.concatenate([[0], np.cumsum(_cells(text))])
    found: list[int] = []
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end + 1
        while start < end:
            found.append(start)
            start = _full(text, start, end, cells)
    return np.array([*(found or [0]), len(text)])


def _full(text: str, start: int, end: int, cells: np.ndarray) -> int:
    """Where a line that begins at ``start`` ends, within its paragraph."""
    if cells[end] - cells[start] <= WIDTH:
        return end
    cut = max(start + 1, int(np.searchsorted(cells, cells[start] + WIDTH, side="right")) - 1)
    if cut >= end - 1 and text[end - 1] == "\n" and cells[end - 1] - cells[start] <= WIDTH:
        return end
    space = text.rfind(" ", max(start + 1, cut - _LAST_WORD), cut)
    return cut if space < 0 else space + 1


def _cells(text: str) -> np.ndarray:
    """int64 [characters]: how many cells each takes; a newline takes none."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    cells = np.ones(len(codes), np.int64)
    for low, high in _WIDE:
        cells[(codes >= low) & (codes <= high)] = 2
    cells[codes >= _FIRST_EMOJI] = 2
    for found in MARKED.finditer(text):
        cells[found.start()] = len(mark(found.group()))
    return cells


def pieces(text: str, first: int, end: int, cuts: np.ndarray, spans: list[tuple[int, int, int]]) -> list[Any]:
    """A line [first, end) as [cell, text, flags] each, cut where cells of key blocks begin and where spans do.

    cuts: first character of every cell, ascending; spans: (start, end, flag), flags are added up.
    """
    borders = {first, end}
    borders.update(int(cut) for cut in cuts[np.searchsorted(cuts, first) : np.searchsorted(cuts, end)])
    near = [span for span in spans if span[0] < end and span[1] > first]
    for start, stop, _ in near:
        borders.update((max(first, start), min(end, stop)))
    places = sorted(borders)
    made = []
    for left, right in pairwise(places):
        flags = 0
        for start, stop, flag in near:
            if start <= left and right <= stop:
                flags |= flag
        cell = max(0, int(np.searchsorted(cuts, left, side="right")) - 1)
        made.append([cell, visible(text[left:right]), flags])
    return made
