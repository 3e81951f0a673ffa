"""The text in the browser: a window of its lines, the shade of all of it, and what is marked (lens.js draws it)."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import streamlit as st

from routesparse.app.screens.text import lines
from routesparse.app.ui import browser_part, design
from routesparse.engine.store.word_queries import Words

FOUND, PICKED, ROW, LOST, READ = 1, 2, 4, 8, 16
LINE_PX = 19
_LINES = 200  # sent at once: what is in sight and several screens around it
_BEFORE = 80
_MINI_STEPS = 512  # cells of the picture beside the text
_UNKNOWN = 255
_STEPS = 254
_MOST_TICKS = 400

_HTML = (
    '<div class="rs-lens"><div class="view" tabindex="0" role="region"><div class="space"><div class="lines"></div>'
    '<svg class="links"></svg></div></div><div class="side"><canvas width="16" aria-hidden="true"></canvas>'
    '<div class="here"></div></div><div class="tip rs-tip" hidden></div></div>'
)
_lens = browser_part.component(__file__, "lens", _HTML)


@dataclass(frozen=True)
class Shade:
    """What the text is coloured by: ``values`` float [cells] in [0, 1], NaN unknown; ``reads`` likewise."""

    values: np.ndarray
    reads: np.ndarray
    mass: np.ndarray | None
    lost: np.ndarray | None
    pool: int
    is_loss: bool
    below: float  # of reads, below which a head counts as reading the cell little
    most: float = 1.0  # what full colour stands for


@dataclass(frozen=True)
class Marks:
    """What is marked, as (first character, end, flag), and the character to show first. lines: from the first of the
    characters to each of the others, with the share that the line's width stands for and whether it was dropped."""

    spans: list[tuple[int, int, int]] = field(default_factory=list)
    go: int | None = None
    lines: tuple[int, list[tuple[int, float, bool]]] | None = None


def show(
    words: Words,
    run: tuple[str, int, int],
    shade: Shade,
    marks: Marks,
    label: str,
    on_pick: Callable[[], None],
) -> None:
    """Draw it; run: (id, tokens, tokens of a KV block). A click on a passage, then ``picked()``, calls ``on_pick``."""
    theme = design.current_theme()
    starts = lines.starts(words.text)
    total = len(starts) - 1
    nonce = zlib.crc32(f"{run[0]} {marks.go} {st.session_state.get('lens-asked')}".encode())
    if st.session_state.get("lens-nonce") != nonce:
        st.session_state["lens-nonce"] = nonce
        st.session_state["lens-first"] = 0 if marks.go is None else _line_of(starts, marks.go)
    top = min(max(0, int(st.session_state.get("lens-first", 0))), max(0, total - 1))
    first = max(0, top - _BEFORE)
    cuts = words.block_starts[: -1 : shade.pool]
    numbers = words.block_starts if words.token_starts is None else words.token_starts
    step = run[2] if words.token_starts is None else 1
    last = min(total, first + _LINES)
    near = [span for span in marks.spans if span[1] > starts[first] and span[0] < starts[last]]
    cell_step = max(1, len(cuts) // _MINI_STEPS)
    _lens(
        key="lens",
        data={
            "label": label,
            "total": total,
            "width": lines.WIDTH,
            "line_px": LINE_PX,
            "tokens": run[1],
            "cell_tokens": shade.pool * run[2],
            "shade": _encoded(shade.values),
            "reads": _encoded(shade.reads),
            "loss": None if shade.lost is None else {"mass": _texts(shade.mass), "lost": _texts(shade.lost)},
            "below": shade.below,
            "palette": _palette(theme, shade.is_loss),
            "null": theme.null,
            "ink": design.text_on(theme.null),
            "accent": theme.accent,
            "warn": theme.warn,
            "cell_lines": _lines_of(starts, cuts[::cell_step]),
            "cell_step": cell_step,
            "ticks": {
                name: _ticks(starts, [span[0] for span in marks.spans if span[2] & flag])
                for name, flag in (("found", FOUND), ("read", READ), ("lost", LOST), ("row", ROW))
            },
            "lines": _lines(starts, marks),
            "words": {
                "reads": "read by later rows:",
                "unread": "no sparse row comes after it: only the dense tail reads it",
                "mass": "of a mean audited row’s attention here:",
                "lost": "lost of the row’s:",
            },
            "go": {"nonce": nonce, "line": None if marks.go is None else _line_of(starts, marks.go)},
            "window": {
                "first": first,
                "lines": [
                    {
                        "start": int(starts[line]),
                        "token": max(0, int(np.searchsorted(numbers, starts[line], side="right")) - 1) * step,
                        "pieces": lines.pieces(
                            words.text, int(starts[line]), int(starts[line + 1]), cuts, near
                        ),
                    }
                    for line in range(first, last)
                ],
            },
        },
        on_window_change=_scrolled,
        on_picked_change=on_pick,
    )


def look_again() -> None:
    """Scroll to what is shown first once more, also where it is what it was."""
    st.session_state["lens-asked"] = st.session_state.get("lens-asked", 0) + 1


def picked() -> tuple[int, int] | None:
    """The cell and the character of the click that caused this rerun."""
    value = st.session_state["lens"].picked
    return None if value is None else (int(value[0]), int(value[1]))


def legend(theme: design.Theme, shade: Shade, has_lines: bool = False) -> str:
    """HTML: what the colours and marks mean. has_lines: lines are drawn from a token."""
    palette = _palette(theme, shade.is_loss)
    ends = ("read by no later row", "by all")
    if shade.is_loss:
        cell = "a key block" if shade.pool == 1 else f"{shade.pool} key blocks"
        ends = ("nothing lost", f"{100 * shade.most:.2g} % of a mean row’s attention lost on {cell}")
    items = [
        f'<span><i style="background:{palette[0][0]};border:1px solid {theme.line}"></i>{ends[0]}</span>',
        f'<span><i style="background:{palette[-1][0]}"></i>{ends[1]}</span>',
        f'<span><i style="background:{theme.null}"></i>not measured, or only the dense tail comes after it</span>',
        f'<span><u style="text-decoration-style:dotted;margin-right:5px">text</u>little read: by fewer than '
        f"{100 * shade.below:g} % of later rows</span>",
    ]
    if has_lines:
        items += [
            f'<span><b style="color:{theme.accent}">━</b>&nbsp;read at the framed token, wider: more attention</span>',
            f'<span><b style="color:{theme.warn}">╍</b>&nbsp;most of it not read there</span>',
        ]
    return f'<div class="rs-legend">{"".join(items)}</div>'


def _scrolled() -> None:
    first = st.session_state["lens"].window
    if isinstance(first, int | float) and first >= 0:
        st.session_state["lens-first"] = int(first)


def _lines(starts: np.ndarray, marks: Marks) -> dict[str, object] | None:
    """Lines between (line, column) places; columns are characters, which but for wide ones are cells."""
    if marks.lines is None:
        return None

    def place(character: int) -> tuple[int, int]:
        line = _line_of(starts, character)
        return line, character - int(starts[line])

    here, ends = marks.lines
    return {"from": place(here), "to": [[*place(end), round(share, 5), lost] for end, share, lost in ends]}


def _line_of(starts: np.ndarray, character: int) -> int:
    return _lines_of(starts, np.array([character]))[0]


def _ticks(starts: np.ndarray, characters: list[int]) -> list[int]:
    """Lines to be ticked, thinned out where there are more than the picture has room for."""
    found = np.unique(_lines_of(starts, np.array(characters, np.int64)))
    few: list[int] = found[:: max(1, -(-len(found) // _MOST_TICKS))].tolist()
    return few


def _lines_of(starts: np.ndarray, characters: np.ndarray) -> list[int]:
    found: list[int] = np.maximum(0, np.searchsorted(starts[:-1], characters, side="right") - 1).tolist()
    return found


def _encoded(values: np.ndarray) -> str:
    """One byte a cell, base64."""
    unknown = np.isnan(values)
    stored = np.where(unknown, _UNKNOWN, np.rint(np.clip(np.nan_to_num(values), 0, 1) * _STEPS)).astype(
        np.uint8
    )
    return base64.b64encode(stored.tobytes()).decode()


def _texts(values: np.ndarray | None) -> list[str | None]:
    """Shares of attention as the hover prints them."""
    if values is None:
        return []
    return [None if np.isnan(value) else f"{100 * value:.2g} %" for value in values]


def _palette(theme: design.Theme, is_loss: bool) -> list[tuple[str, str]]:
    """(ground, ink) of 32 steps."""
    high = theme.warn if is_loss else theme.scale[1]
    grounds = [design.blend(theme.panel, high, share) for share in np.linspace(0.0, 0.9, 32)]
    return [(ground, design.text_on(ground)) for ground in grounds]
