"""Choices that live in the address: one of a few values as a row of buttons, or several of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import streamlit as st

from routesparse.app.shell import address, view


def chosen(name: str, allowed: Iterable[str], quiet: Iterable[str] = ()) -> str:
    """The value of the address, or the first allowed one; that is said, but for a value that became ``quiet`` here."""
    values = list(allowed)
    text = st.query_params.get(name, "")
    drawn = any(str(key).startswith(f"{name}-choice") for key in st.session_state)
    if text not in values and not (drawn and text in quiet):
        address.absent(name, text, f"here are {', '.join(values)}")
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
        on_change=write,
        args=(name, key, value),
    )


def field(
    name: str, label: str, options: list[Any], value: Any, of: str = "", empty: str = "", **look: Any
) -> None:
    """A field to choose one of many values; a choice writes the address before the page is drawn again.

    of: whose options these are. A browser that has not yet drawn another one's field still sends the old choice, which
    is none of these options then: the field of each is a widget of its own. empty: what the address says for no value.
    """
    key = f"{name}-choice{of}"
    st.session_state[key] = value
    st.selectbox(
        label,
        options,
        key=key,
        on_change=write,
        args=(name, key, value, lambda chosen: empty if chosen is None else str(chosen)),
        **look,
    )


def write(name: str, key: str, value: Any, told: Callable[[Any], str] = str) -> None:
    """The choice of the widget ``key`` into the address, as ``told`` says it, unless it is ``value``, the page's own.

    Of a drawing that was cut short Streamlit forgets what it told the browser, and takes the browser's answer for a
    choice.
    """
    chosen = st.session_state[key]
    if chosen != value:
        view.write(**{name: told(chosen)})


def many(
    name: str,
    label: str,
    options: list[str],
    chosen: list[str],
    address: Callable[[str], str] = str,
    **look: Any,
) -> None:
    """A field for several of many values; the address holds them, as ``address`` writes each, with commas between."""
    key = f"{name}-choice"
    # The address decides; the widget only changes it.
    st.session_state[key] = chosen
    st.multiselect(
        label,
        options,
        key=key,
        on_change=write,
        args=(name, key, chosen, lambda picked: ",".join(map(address, picked))),
        **look,
    )


def several(name: str, label: str, options: list[str], width: int = 128) -> tuple[str, ...]:
    """A field for any number of the options; none means all."""
    return tuple(
        st.multiselect(label, options, key=name, bind="query-params", placeholder="all", width=width)
    )
