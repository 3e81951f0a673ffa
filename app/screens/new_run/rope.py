"""The field RoPE scaling of New run, which takes what --rope takes."""

from __future__ import annotations

import streamlit as st

KEY = "rope"
_MOST_CHARACTERS = 4_000  # two lists of a LongRoPE, with all digits
_HELP = (
    'Rescales rotary positions for prompts beyond the model’s context: {"rope_type": "yarn", "factor": 4.0}, or linear '
    "(Position Interpolation) or longrope, written as JSON like this. It makes another model of this one: "
    "calibrations and quality targets made without it do not fit"
)


def field() -> str | None:
    """Draw it; it lives in the address. None where it is empty."""
    typed = st.text_input(
        "RoPE scaling",
        key=KEY,
        bind="query-params",
        placeholder="none",
        max_chars=_MOST_CHARACTERS,
        help=_HELP,
    )
    return typed.strip() or None


def typed() -> str | None:
    """What stands in the field, also before it is drawn."""
    return str(st.session_state.get(KEY) or st.query_params.get(KEY) or "").strip() or None
