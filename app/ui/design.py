"""Palette of the dashboard, light and dark.

One accent; the colours themselves are those of engine/export/palette.py, which reports share.
"""

from __future__ import annotations

import streamlit as st

from routesparse.engine.export.palette import *  # noqa: F403
from routesparse.engine.export.palette import DARK, LIGHT, Theme

FONT = '"Source Sans", "Source Sans 3", system-ui, sans-serif'


def current_theme() -> Theme:
    """The theme the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT
