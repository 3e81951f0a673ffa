"""A tour of one run in three steps; the step is in the address, so that reload and back button keep it."""

from __future__ import annotations

from html import escape

import streamlit as st

from routesparse.app.shell import address, navigate

# Page -> what its link is called, what to look at there.
STEPS = {
    "map": (
        "the map",
        "Each cell is one head. Click one: beside the map stands why it took its pattern, below it where it looked.",
    ),
    "text": (
        "the text",
        "What a head still reads of the prompt, in its words where they were kept, and what all heads together read.",
    ),
    "trust": (
        "the truth",
        "What was measured against dense attention: the loss beside its prediction and, of an audited run, errors "
        "beside their bounds. Where a certificate failed, a head read more, up to everything.",
    ),
}


def strip(run: str) -> None:
    """Where the address asks for a step, its text and the way on. run: as addresses name it."""
    text = st.query_params.get("tour", "")
    if text not in [str(step) for step in range(1, len(STEPS) + 1)]:
        address.absent("tour", text)
        return
    step, pages = int(text), list(STEPS)
    with st.container(horizontal=True, gap="medium", vertical_alignment="center", key="tour-strip"):
        told = escape(STEPS[pages[step - 1]][1])
        st.html(f'<div class="rs-tour"><b>Tour, {step} of {len(STEPS)}.</b> {told}</div>', width="stretch")
        if step < len(STEPS):
            navigate.link(f"Next: {STEPS[pages[step]][0]}", pages[step], run=run, tour=step + 1)
        else:
            navigate.link("Analyse my prompt", "new")
