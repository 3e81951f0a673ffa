"""What each pattern reads, as a small picture of the causal triangle and a sentence."""

from __future__ import annotations

import base64
from collections.abc import Callable
from html import escape

from routesparse.app.ui import design
from routesparse.engine.method import families

_SIDE = 12  # blocks
_CELL = 4  # pixels
_BLOCKS = {(2, 0), (3, 1), (4, 1), (4, 2), (5, 0), (5, 3)}  # pairs of 2 x 2 blocks
_SINGLE = {
    (4, 1),
    (5, 3),
    (6, 1),
    (7, 4),
    (7, 2),
    (8, 4),
    (9, 1),
    (9, 4),
    (9, 6),
    (11, 4),
    (11, 7),
    (11, 2),
    (11, 1),
}
# family -> whether row block i reads key block j <= i in the picture, and what it means
_PICTURES: dict[str, tuple[Callable[[int, int], bool], str]] = {
    "a_shape": (lambda i, j: j == 0 or i - j <= 2, "the first keys and a window of recent ones"),
    "vertical_slash": (
        lambda i, j: j in (0, 4) or i - j in (0, 5),
        "a few columns that every row reads, and diagonals at fixed distances",
    ),
    "block_sparse": (
        lambda i, j: (i // 2, j // 2) in _BLOCKS or i // 2 == j // 2 or j == 0,
        "for each block of rows its best blocks of keys, a set number of them",
    ),
    "floor": (
        lambda i, j: (i, j) in _SINGLE or i - j <= 1 or j == 0,
        "for each block of rows every block of keys that is worth the price, however many that are",
    ),
    "dense": (lambda i, j: True, "every key before the row: nothing is left out"),
}


def html(theme: design.Theme) -> str:
    """All registered patterns, each with letter, colour and meaning, and those of _PICTURES with a picture."""
    items = []
    for pattern in families.in_order():
        reads, meaning = _PICTURES.get(pattern, (None, "a family of this installation"))
        color = theme.pattern(pattern)
        picture = "" if reads is None else _picture(reads, color, theme)
        items.append(
            f'<div><div class="rs-icon">{picture}</div><div><i style="background:{color};'
            f'color:{design.text_on(color)}">{design.letter(pattern)}</i><b>{escape(design.name(pattern))}</b>'
            f"<small>{escape(meaning)}</small></div></div>"
        )
    return f'<div class="rs-icons">{"".join(items)}</div>'


def _picture(reads: Callable[[int, int], bool], color: str, theme: design.Theme) -> str:
    """Rows downwards, keys to the right; pale: what the row could read and does not."""
    cells = "".join(
        f'<rect x="{j * _CELL}" y="{i * _CELL}" width="{_CELL - 0.6}" height="{_CELL - 0.6}" '
        f'fill="{color if reads(i, j) else theme.null}"/>'
        for i in range(_SIDE)
        for j in range(i + 1)
    )
    side = _SIDE * _CELL
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{side}" height="{side}">{cells}</svg>'
    # As a picture: Streamlit takes SVG elements out of HTML.
    return f'<img alt="" src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'
