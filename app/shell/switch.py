"""Choices that live in the address: one of a few values as a row of buttons, or several of many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import streamlit as st

from routesparse.app.shell import view


def chosen(name: str, allowed: Iterable[str]) -> str:
    """The value of the address, or the first allowed one."""
    values = list(allowed)
    text = st.query_params.get(name, "")
    return text if text in values else values[0]


def buttons(name: str, options: dict[str, str], value: str) -> None:
    """The buttons; a click writes the address before the page is drawn again. options: value -> label."""
    key = f"{name}-choice"
    # The address decides; the widget only changes it.
    st.session_state[key] = value
    st.segmented_control(
        name,
        list(options),
        format_func=options.__getitem__,
        key=key,
        required=True,
        label_visibility="collapsed",
        on_change=lambda: view.write(**{name: st.session_state[key]}),
    )


def field(name: str, label: str, options: list[Any], value: Any, **look: Any) -> None:
    """A field to choose one of many values; a choice writes the address before the page is drawn again."""
    key = f"{name}-choice"
    st.session_state[key] = value
    st.selectbox(
        label, options, key=key, on_change=lambda: view.write(**{name: st.session_state[key]}), **look
    )


def several(name: str, label: str, options: list[str], width: int = 128) -> tuple[str, ...]:
    """A field for any number of the options; none means all."""
    return tuple(
        st.multiselect(label, options, key=name, bind="query-params", placeholder="all", width=width)
    )
