"""The prompt of a run: which share of heads still reads it, block by block, and the text of a block."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from routesparse.app.ui import design, exports, numbers, plain_text, plot
from routesparse.engine.errors import InputError
from routesparse.engine.rows import RunRow
from routesparse.engine.store import executed_reads, queries
from routesparse.engine.store.owner_view import OwnerView

_MAX_CHARACTERS = 4000
_NEIGHBOURS = 9  # bars
_TEXT_STEPS = 128  # of the slider, where no masks set them


def card(store: OwnerView, run: RunRow, segment: int, batch_index: int) -> None:
    """Draw the card; without masks and without a kept prompt there is none."""
    told = "not recorded: this run keeps no masks of its plans"
    try:
        readers = executed_reads.block_readers(store, run.run_id, segment, batch_index)
    except InputError as error:
        readers, told = pd.DataFrame(), str(error)
    kept = queries.prompt(store, run.run_id)
    if readers.empty and kept is None:
        return
    pool = -(-run.tokens // (run.block_k * _TEXT_STEPS)) if readers.empty else int(readers["blocks"].iloc[0])
    step = pool * run.block_k
    key = f"prompt-token-{run.run_id}-{segment}-{batch_index}"
    with st.container(border=True, key="card-prompt", gap="xsmall"):
        st.html('<div class="rs-h">Which part of the prompt do the heads still read?</div>')
        token = int(st.session_state.get(key, _telling(readers) * run.block_k))
        if readers.empty:
            st.html(f'<div class="rs-unknown">{escape(told)}</div>')
        else:
            picked = token // run.block_k if kept else -1
            _chart(store, run, readers, segment, batch_index, picked)
        if kept is None:
            st.html('<div class="rs-sub">The text of this prompt was not kept.</div>')
            return
        last = (run.tokens - 1) // step * step if readers.empty else (len(readers) - 1) * step
        if last:
            st.slider("First token of the text shown", 0, last, token, step, format="token %d", key=key)
        st.html(f'<div class="rs-sub">Tokens {numbers.tokens(token, min(step, run.tokens - token))}</div>')
        text = _text(kept, token // run.block_k, pool)
        st.html(plain_text.block(text, "Text of these tokens"))


def _chart(
    store: OwnerView, run: RunRow, readers: pd.DataFrame, segment: int, batch_index: int, picked: int
) -> None:
    st.html(
        '<div class="rs-note">Share of heads, over all layers, whose executed plan reads a key block: a mean over the '
        "recorded rows after it. Dense heads read everything. Grey: no recorded row comes after it, so that only the "
        "dense tail reads it.</div>"
    )
    name = f"prompt-blocks-{queries.label(run.run_id)}-segment-{segment}"
    theme = design.current_theme()
    drawn = store.made(
        "readers",
        [segment, batch_index, picked, theme.name],
        lambda: readers_figure(readers, theme, run.block_k, picked),
        of=[run.run_id],
    )
    plot.show(drawn, "readers", "Share of heads that read each part of the prompt")
    exports.chart_foot(
        name,
        f"n = {int(readers['heads'].iloc[0]):,} heads · {len(readers)} bars of {int(readers['blocks'].iloc[0])} × "
        f"{run.block_k} tokens, a bar counts where one key of it is read · source: masks in probe.parquet and "
        f"head_choice of run {queries.label(run.run_id)}",
        readers,
        "readers",
        chart="readers",
    )


def readers_figure(
    readers: pd.DataFrame, theme: design.Theme, block_tokens: int, picked: int
) -> dict[str, Any]:
    """Per cell of key blocks the share of heads whose plan reads it; grey where no recorded row comes after it."""
    plain = design.blend(theme.panel, theme.accent, 0.72)
    left = readers["key_block"] * block_tokens
    right = left + 0.9 * readers["blocks"] * block_tokens
    unknown = readers["heads_share"].isna()
    at = np.column_stack([left, right, np.zeros(len(readers)), readers["heads_share"].fillna(1.0)])
    told = [
        [f"{token:,}", "read by the dense tail alone" if nothing else f"{numbers.share(share, 0)} of heads"]
        for token, nothing, share in zip(left, unknown, readers["heads_share"], strict=True)
    ]
    hover, colors = "keys from token {0}\n{1}", [theme.null if nothing else plain for nothing in unknown]
    here = (readers["key_block"] == picked).to_numpy()
    marks = [
        plot.bars(at.tolist(), colors, hover, told),
        plot.bars(at[here].tolist(), theme.warn, "", [], hatch="/", ring=True),
    ]
    x_axis = replace(plot.linear("key token", 0, float(right.max())), grid=False)
    y_axis = plot.linear("heads that read it", 0, 1.02, percent=True, most=3)
    return plot.chart(x_axis, y_axis, marks, 150, theme, top=6)


def _telling(readers: pd.DataFrame) -> int:
    """The key block to show first: the one that stands out most from its neighbours.

    The sink and the last quarter are left out: all rows read the sink, and the few rows after the last quarter are
    near it and read it too.
    """
    if readers.empty:
        return 0
    excess = (
        readers["heads_share"]
        - readers["heads_share"].rolling(_NEIGHBOURS, center=True, min_periods=1).median()
    )
    inner = excess.iloc[1 : max(2, len(readers) * 3 // 4)].dropna()
    return 0 if inner.empty else int(readers.loc[inner.idxmax(), "key_block"])


def _text(kept: queries.Prompt, first_block: int, blocks: int) -> str:
    """The characters of a range of key blocks, cut at what a person reads."""
    last = len(kept.block_starts) - 1
    start = int(kept.block_starts[min(first_block, last)])
    return kept.text[start : int(kept.block_starts[min(first_block + blocks, last)])][:_MAX_CHARACTERS]
