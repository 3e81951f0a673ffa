"""The routing map in the browser: one SVG drawn by map_component.js, which reports clicks on cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from routesparse.app.ui import browser_part

_map = browser_part.component(__file__, "map")


def show(drawing: dict[str, Any], on_pick: Callable[[], None]) -> None:
    """Draw the map; a click calls ``on_pick``, inside which ``picked()`` is the cell."""
    _map(key="map", data=drawing, on_picked_change=on_pick)


def picked() -> tuple[int, int] | None:
    """(layer, head) of the click that caused this rerun."""
    value = st.session_state["map"].picked
    return None if value is None else (int(value[0]), int(value[1]))
