"""Pieces of HTML for the report. Every text is escaped here, and what would hide or reorder it becomes a mark."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable, Sequence
from html import escape
from importlib import resources

from routesparse.engine.export.plain_text import visible


def text(value: object) -> str:
    """Text from anywhere as HTML."""
    return escape(visible(str(value), " "))


def isolated(value: object) -> str:
    """A name from anywhere, whose writing direction changes nothing around it."""
    return f"<bdi>{text(value)}</bdi>"


def document(title: str, body: str, style: str = "") -> str:
    """A whole page in the style of reports, and ``style`` beside it; nothing that it does not need is allowed."""
    style = (resources.files("routesparse.engine.export") / "report.css").read_text("utf-8") + style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{text(title)}</title>"
        f"<style>{style}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A section of the page."""
    return f"<section><h2>{text(title)}</h2>{''.join(parts)}</section>"


def verdict(level: str, word: str, sentence: str, others: Iterable[tuple[str, str, str]]) -> str:
    """A verdict in its level's colour, then every other finding: its word, its sentence, its level."""
    items = "".join(
        f'<li class="{its}"><span class="level">{text(sign)}</span> {text(told)}.</li>'
        for sign, told, its in others
    )
    return (
        f'<section class="verdict {level}" aria-label="Verdict"><p><span class="level">{text(word)}</span> '
        f"{text(sentence)}.</p>{f'<ul>{items}</ul>' if items else ''}</section>"
    )


def note(words: str) -> str:
    """A quiet paragraph."""
    return f'<p class="mute">{text(words)}</p>'


def facts(boxes: Iterable[tuple[str, str, str]]) -> str:
    """Boxes of name, value and note."""
    items = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd><dd>{text(told)}</dd></div>"
        for name, value, told in boxes
    )
    return f'<dl class="facts">{items}</dl>'


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], left: Collection[int] = (0,)
) -> str:
    """A table whose first column names the row; columns in ``left`` are words, the others numbers."""
    # A column's name may go on in a new line behind its underscores.
    head = "".join(
        f'<th scope="col"{" class=left" if place in left else ""}>{text(name).replace("_", "_<wbr>")}</th>'
        for place, name in enumerate(heads)
    )
    body = "".join(
        "<tr>"
        + f'<th scope="row">{isolated(first)}</th>'
        + "".join(
            f"<td{' class=left' if place in left else ''}>{isolated(value)}</td>"
            for place, value in enumerate(rest, 1)
        )
        + "</tr>"
        for first, *rest in rows
    )
    # Focusable, so that a wide one can be scrolled by keyboard.
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
