"""Palette of the dashboard, light and dark.

One accent; the colours themselves are those of engine/export/palette.py, which reports share.
"""

from __future__ import annotations

import math
from typing import Any

import streamlit as st

from routesparse.engine.export.palette import *  # noqa: F403
from routesparse.engine.export.palette import DARK, LIGHT, Theme

FONT = '"Source Sans", "Source Sans 3", system-ui, sans-serif'


def current_theme() -> Theme:
    """The theme the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT


_LEAST_ON_LOG_AXIS = 1e-9


def log_ticks(low: float, high: float) -> dict[str, list[Any]]:
    """Ticks of a logarithmic axis: 1, 2 and 5 of every decade, written out (Plotly's own says "5" for 50 and 500).

    What lies at 0 or below has no place on such an axis.
    """
    low = max(low, _LEAST_ON_LOG_AXIS)
    high = max(high, low)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{first}e{decade}") for decade in decades for first in (1, 2, 5)]
    return {"tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}
