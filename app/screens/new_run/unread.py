"""What the address of New run gives for a number and is none: the fields leave it out without a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from routesparse.app.screens.new_run import problems
from routesparse.app.ui import states

_KEY = "unread-numbers"
# Setting -> its kind of number, and what is taken instead.
_KINDS: dict[str, tuple[type, str]] = {
    "tau": (float, "the default"),
    "price": (float, "the default"),
    "segment": (int, "the device’s"),
    "break_even": (int, "the predicted one"),
}


def remembered() -> Mapping[str, str]:
    """Setting -> such a text of the address that the page was opened with. To be called before the fields are drawn."""
    found: dict[str, str] = st.session_state.setdefault(_KEY, {})
    if "segment" not in st.session_state:  # the page was just opened
        for name, (number, _) in _KINDS.items():
            text = st.query_params.get(name, "")
            try:
                number(text or 0)
            except ValueError:
                found[name] = text
    return found


def tell(found: Mapping[str, str], wishes: Mapping[str, Any], by_hand: bool) -> None:
    """A line for each whose field is still empty. by_hand: whether the price is entered, and no target sets it."""
    for name, given in found.items():
        if (name != "price" or by_hand) and wishes.get(name) is None:
            label = problems.labelled(name).strip()
            states.note(
                f"{label[0].upper()}{label[1:]} {given[:40]} is not a number: {_KINDS[name][1]} is taken."
            )
