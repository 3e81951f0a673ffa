"""A tour of one run in four steps; the step is in the address, so that reload and back button keep it."""

from __future__ import annotations

from html import escape

import streamlit as st

from routesparse.app.shell import navigate

# page, what its link is called, what to look at there
STEPS = (
    (
        "map",
        "the map",
        "Each cell is one head of one layer. Click one: the panel on the right says why it took its pattern, and the "
        "table below says what every other candidate lacked. The bar above is the verdict on the run.",
    ),
    (
        "head",
        "a head",
        "One head in full: where its probe rows looked (dark: much attention), which keys the chosen plan reads, and "
        "what its certificate promises beside what the audit found.",
    ),
    (
        "audit",
        "the audit",
        "The truth: audited rows compared with dense attention. Errors must lie below their bounds, and certificates "
        "below the audited mass. The worst heads stand at the end.",
    ),
    (
        "fallbacks",
        "the fallbacks",
        "Where a certificate failed, a head read more, up to everything. Many of these cost the speedup; what ran "
        "uncertified costs your trust.",
    ),
)


def strip(run: str) -> None:
    """Where the address asks for a step, its text and the way on. run: as addresses name it."""
    text = st.query_params.get("tour", "")
    if text not in [str(step) for step in range(1, len(STEPS) + 1)]:
        return
    step = int(text)
    with st.container(horizontal=True, gap="medium", vertical_alignment="center", key="tour-strip"):
        st.html(
            f'<div class="rs-tour"><b>Tour, {step} of {len(STEPS)}.</b> {escape(STEPS[step - 1][2])}</div>',
            width="stretch",
        )
        if step < len(STEPS):
            page, name, _ = STEPS[step]
            navigate.link(f"Next: {name}", page, run=run, tour=step + 1)
        else:
            navigate.link("Analyse my prompt", "new")
