"""A prompt's text for people, as pages and reports show it (engine/export/plain_text.py)."""

from __future__ import annotations

from html import escape

from routesparse.engine.export.plain_text import MARKED, TAB, mark, visible

__all__ = ["MARKED", "TAB", "block", "mark", "visible"]


def block(text: str, label: str) -> str:
    """HTML that shows many lines of text as they are, in a frame that scrolls, by keyboard too."""
    shown = escape(visible(text, "\n"))
    return f'<pre class="rs-block" tabindex="0" role="region" aria-label="{escape(label)}">{shown}</pre>'
