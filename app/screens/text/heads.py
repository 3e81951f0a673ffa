"""The layer x head grid beside the text: one share per head, a slash where it is below a limit (heads.js draws it)."""

from __future__ import annotations

import base64
from collections.abc import Callable

import numpy as np
import streamlit as st

from routesparse.app.ui import browser_part, design

_heads = browser_part.component(__file__, "heads")


def show(
    shares: np.ndarray,
    dropped: np.ndarray,
    at: tuple[int, int],
    *,
    is_loss: bool,
    scale: float,
    value: str,
    unknown: str,
    label: str,
    on_pick: Callable[[], None],
) -> None:
    """shares float [layers, heads], NaN unknown; dropped bool alike. scale: what 1 stands for in the hover, which says
    ``value`` or ``unknown``."""
    theme = design.current_theme()
    steps = np.clip(np.nan_to_num(shares), 0, 1) * 254
    # Down where it is below the limit, so that the byte is too.
    steps = np.where(dropped, np.floor(steps), np.rint(steps))
    stored = np.where(np.isnan(shares), 255, steps).astype(np.uint8)
    high = theme.warn if is_loss else theme.scale[1]
    grounds = [design.blend(theme.panel, high, 0.06 + 0.94 * step) for step in np.linspace(0, 1, 32)]
    _heads(
        key="heads",
        data={
            "shape": list(shares.shape),
            "values": base64.b64encode(stored.tobytes()).decode(),
            "dropped": "".join("1" if one else "0" for one in dropped.ravel()),
            "palette": [(ground, design.text_on(ground)) for ground in grounds],
            "null": theme.null,
            "ink": design.text_on(theme.null),
            "mute": theme.mute,
            "strong": theme.ink,
            "font": design.FONT,
            "label": label,
            "scale": scale,
            "words": {"value": value, "unknown": unknown},
            "picked": list(at),
        },
        on_picked_change=on_pick,
    )


def picked() -> tuple[int, int] | None:
    """(layer, head) of the click that caused this rerun."""
    value = st.session_state["heads"].picked
    return None if value is None else (int(value[0]), int(value[1]))
