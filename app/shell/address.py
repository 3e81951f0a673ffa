"""What the address of a page names and the page does not have: said in one line above it, since something else stands
there instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import streamlit as st

from routesparse.app.ui import states

_LONGEST, _ABSENT, _KEPT = 40, "absent-from-page", "address-bound"
UNREAD = "nothing on this page has this name"


def absent(name: str, value: str, there: str = "") -> None:
    """The parameter's value is not there. there: what is, or why it is not."""
    if value:
        st.session_state.setdefault(_ABSENT, {}).setdefault(name, _told(name, value, there))


def names(known: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Of what draws a page: the names, with blanks between, that its address may have."""

    def decorate(draw: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(draw)
        def drawn() -> None:
            asked = {name: st.query_params.get_all(name) for name in st.query_params}
            # Streamlit drops from the address what a field that is bound to it can't be.
            fresh = [name for name in asked if name not in st.session_state]
            kept: dict[str, Any] = st.session_state.setdefault(_KEPT, {})
            place = st.empty()
            told = st.session_state[_ABSENT] = {
                name: _told(name, asked[name][0], UNREAD) for name in asked if name not in known.split()
            }
            draw()
            for name in fresh:
                if name in st.session_state and name not in st.query_params:
                    value = st.session_state[name]
                    if not all(_is_among(text, value) for text in asked[name]):
                        kept[name] = asked[name][0][:_LONGEST], value
            told |= {
                name: _told(name, text)
                for name, (text, value) in kept.items()
                if name in st.session_state and st.session_state[name] == value
            }
            if told:
                with place:
                    states.note(f"This address names what is not here: {'; '.join(told.values())}.")

        drawn.known = frozenset(known.split())  # type: ignore[attr-defined]
        return drawn

    return decorate


def _told(name: str, value: str, there: str = "") -> str:
    return f"{name}={value[:_LONGEST]}" + (f": {there}" if there else "")


def _is_among(text: str, value: Any) -> bool:
    """Whether a field's value is, or holds, what the address says."""
    values = value if isinstance(value, list | tuple) else [value]
    if not text or text.lower() in [str(one).lower() for one in values]:
        return True
    try:
        return float(text) in values
    except ValueError:
        return False
