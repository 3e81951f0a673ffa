"""The prompt of a run: what the end of the segment looks at, block by block, and the text of a block."""

from __future__ import annotations

import streamlit as st

from routesparse.app import design, exports, head_charts, numbers
from routesparse.engine.records import RunRow
from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView

_MAX_CHARACTERS = 4000


def render(store: OwnerView, run: RunRow, segment: int, batch_index: int) -> None:
    """Draw the card; without a probe and without a kept prompt there is none."""
    readers = queries.recent_readers(store, run.run_id, segment, batch_index)
    kept = queries.prompt(store, run.run_id)
    if readers.empty:
        return
    with st.container(border=True, key="card-prompt", gap="xsmall"):
        st.html(
            '<div class="rs-h">Which part of the prompt does the end of this segment look at?</div>'
            '<div class="rs-note">Share of heads, over all layers, whose last rows give a key block at least 1 % of '
            "their mass in the probe (dense attention). What a chosen plan keeps of it is on the page of each head."
            "</div>"
        )
        pool = int(readers["blocks"].iloc[0])
        step = pool * run.block_k
        key = f"prompt-token-{run.run_id}-{segment}-{batch_index}"
        # Neither the sink nor the local band: what is read from afar.
        inner = readers.iloc[1 : max(2, len(readers) * 3 // 4)]
        token = int(st.session_state.get(key, int(inner["mean_mass"].idxmax()) * step))
        st.plotly_chart(
            head_charts.readers_figure(
                readers, design.current_theme(), run.block_k, token // run.block_k if kept else -1
            ),
            key="readers",
            theme=None,
            config=design.chart_config(f"prompt-{queries.label(run.run_id)}-segment-{segment}"),
        )
        exports.chart_foot(
            f"prompt-blocks-{queries.label(run.run_id)}-segment-{segment}",
            f"n = {run.layers * run.heads} heads · {len(readers)} bars of {pool} × {run.block_k} tokens, "
            f"max-pooled · source: probe_meta of run {queries.label(run.run_id)}",
            readers,
            "readers",
            chart="readers",
        )
        if kept is None:
            st.html('<div class="rs-sub">The text of this prompt was not kept.</div>')
            return
        if len(readers) > 1:
            last = (len(readers) - 1) * step
            st.slider("First token of the text shown", 0, last, token, step, format="token %d", key=key)
        st.html(f'<div class="rs-sub">Tokens {numbers.tokens(token, min(step, run.tokens - token))}</div>')
        text = _text(kept, token // run.block_k, pool)
        st.code(text, language=None, wrap_lines=True, height=170 if len(text) > 600 else "content")


def _text(kept: queries.Prompt, first_block: int, blocks: int) -> str:
    """The characters of a range of key blocks, cut at what a person reads."""
    last = len(kept.block_starts) - 1
    start = int(kept.block_starts[min(first_block, last)])
    return kept.text[start : int(kept.block_starts[min(first_block + blocks, last)])][:_MAX_CHARACTERS]
