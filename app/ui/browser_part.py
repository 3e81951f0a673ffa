"""What the browser draws by itself: a component of ours, whose script lies beside the module that offers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st


def component(module: str, name: str, html: str | None = None) -> Any:
    """The component ``routesparse_<name>`` with the script ``<name>.js`` beside ``module``, a ``__file__``. Its
    styles are those of the page (style.css). html: what it starts from; else a drawing, the tip at the pointer,
    and what screen readers are told when the keys move."""
    drawing = (
        f'<div class="rs-{name} rs-drawn"><div class="drawing"></div><div class="tip rs-tip" hidden></div>'
        '<div class="rs-said" aria-live="polite"></div></div>'
    )
    files = Path(__file__).with_name("drawn.js"), Path(module).with_name(f"{name}.js")
    script = "\n".join(file.read_text("utf-8") for file in files)
    return st.components.v2.component(
        f"routesparse_{name}", html=html or drawing, js=script, isolate_styles=False
    )
