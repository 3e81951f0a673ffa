"""What the browser draws by itself: a component of ours, whose script lies beside the module that offers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st


def drawing_html(name: str) -> str:
    """What a component that draws starts from: its drawing, the tip at the pointer, and what screen readers are told
    when the keys move. style.py has the looks of all three."""
    return (
        f'<div class="rs-{name} rs-drawn"><div class="drawing"></div><div class="tip rs-tip" hidden></div>'
        '<div class="rs-said" aria-live="polite"></div></div>'
    )


def component(module: str, name: str, html: str, css: str) -> Any:
    """The component ``routesparse_<name>`` with the script of the same file name as ``module``, a ``__file__``.

    Its styles are those of the page: ``css`` is added to them.
    """
    script = Path(module).with_suffix(".js").read_text("utf-8")
    return st.components.v2.component(
        f"routesparse_{name}", html=html, css=css, js=script, isolate_styles=False
    )
