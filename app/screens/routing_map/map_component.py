"""The routing map in the browser: one SVG drawn by map_component.js, which reports clicks on cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

_HTML = '<div class="rs-map"><div class="drawing"></div><div class="tip rs-tip" hidden></div></div>'
_CSS = """
.rs-map { position: relative; }
.rs-map svg { display: block; user-select: none; }
.rs-map .tip::first-line { font-weight: 650; }
"""
_map = st.components.v2.component(
    "routesparse_map",
    html=_HTML,
    css=_CSS,
    js=Path(__file__).with_suffix(".js").read_text("utf-8"),
    isolate_styles=False,
)


def show(drawing: dict[str, Any], on_pick: Callable[[], None]) -> None:
    """Draw the map; a click calls ``on_pick``, inside which ``picked()`` is the cell."""
    _map(key="map", data=drawing, on_picked_change=on_pick)


def picked() -> tuple[int, int] | None:
    """(layer, head) of the click that caused this rerun."""
    value = st.session_state["map"].picked
    return None if value is None else (int(value[0]), int(value[1]))
