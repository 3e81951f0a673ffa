"""The prompt of a run: what the end of the segment looks at, block by block, and the text of a block."""

from __future__ import annotations

import streamlit as st

from routesparse.app import design, exports, head_charts, numbers
from routesparse.engine.records import RunRow
from routesparse.engine.store import queries
from routesparse.engine.store.duckdb_store import Store

_MAX_CHARACTERS = 4000


def render(store: Store, run: RunRow, segment: int, batch_index: int) -> None:
    """Draw the card; without a probe and without a kept prompt there is none."""
    readers = queries.recent_readers(store, run.run_id, segment, batch_index)
    kept = queries.prompt(store, run.run_id)
    if readers.empty:
        return
    with st.container(border=True, key="card-prompt", gap="xsmall"):
        st.html(
            '<div class="rs-h">Which part of the prompt does the end of this segment look at?</div>'
            '<div class="rs-note">Share of heads, over all layers, whose last rows give a key block at least 1 % of '
            "their mass in the probe (dense attention). Which blocks the chosen plans kept is not recorded.</div>"
        )
        pool = int(readers["blocks"].iloc[0])
        # Neither the sink nor the local band: what is read from afar.
        inner = readers.iloc[1 : max(2, len(readers) * 3 // 4)]
        default = int(inner["mean_mass"].idxmax())
        column = int(st.session_state.get("prompt-block", default)) if kept else -1
        column = min(column, len(readers) - 1)
        st.plotly_chart(
            head_charts.readers_figure(readers, design.current_theme(), run.block_k, column * pool),
            key="readers",
            theme=None,
            config=design.chart_config(f"prompt-{run.run_id[:8]}-segment-{segment}"),
        )
        exports.chart_foot(
            f"prompt-blocks-{run.run_id[:8]}-segment-{segment}",
            f"n = {run.layers * run.heads} heads · {len(readers)} bars of {pool} × {run.block_k} tokens, max-pooled · "
            f"source: probe_meta of run {run.run_id[:8]}",
            readers,
            "readers",
        )
        if kept is None:
            st.html('<div class="rs-sub">The text of this prompt was not kept.</div>')
            return
        _text(kept, run, column, pool, len(readers), default)


def _text(kept: queries.Prompt, run: RunRow, column: int, pool: int, columns: int, default: int) -> None:
    """The text under one bar, as plain text."""
    last = len(kept.block_starts) - 1
    first_block, end_block = min(column * pool, last), min((column + 1) * pool, last)
    text = kept.text[kept.block_starts[first_block] : kept.block_starts[end_block]]
    span = numbers.tokens(first_block * run.block_k, (end_block - first_block) * run.block_k)
    st.slider("Token block", 0, columns - 1, default, key="prompt-block", label_visibility="collapsed")
    st.html(f'<div class="rs-sub">Tokens {span}</div>')
    st.code(text[:_MAX_CHARACTERS], language=None, wrap_lines=True, height=170)
