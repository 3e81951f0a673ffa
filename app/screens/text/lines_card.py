"""What one token's row read and dropped: the lines that the text shows, as a list, and the way to trace a token."""

from __future__ import annotations

from html import escape

import numpy as np
import pandas as pd
import streamlit as st

from routesparse.app.screens.text import token_lines
from routesparse.app.screens.text.selection import Shown
from routesparse.app.shell import navigate, view
from routesparse.app.shell.access import access
from routesparse.app.shell.jobs_view import worker_note
from routesparse.app.ui import elements, exports, numbers, states, tables
from routesparse.app.unit import row_words
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.export.plain_text import visible
from routesparse.engine.store import queries, word_queries
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.word_queries import Words

_READ, _DROPPED = 12, 8
_LONGEST = 60  # characters of a passage


def take(shown: Shown, words: Words, character: int) -> None:
    """The token at a character becomes the row of the address."""
    if words.token_starts is not None:
        token = int(np.searchsorted(words.token_starts, character, side="right")) - 1
    else:
        token = words.blocks_of(character, character + 1)[0] * shown.run.block_k
    st.query_params.pop("at", None)
    view.write(row=min(max(0, token), shown.run.tokens - 1))


def of_token(store: OwnerView, shown: Shown) -> token_lines.Lines | None:
    """The lines of the token that the address names: as traced, else of one head, as its audit or probe recorded."""
    run, position, (layer, head) = shown.run, shown.row, shown.at
    if position is None:
        return None
    traced = word_queries.traced(store, run.run_id, position)
    if len(traced):
        if shown.scope != "all":
            traced = traced[
                (traced["layer"] == layer) & ((traced["head"] == head) | (shown.scope == "layer"))
            ]
        return token_lines.of_traced(traced, position, shown.name) if len(traced) else None
    return _recorded(store, shown, position) if shown.scope == "head" else None


def _recorded(store: OwnerView, shown: Shown, position: int) -> token_lines.Lines | None:
    run, (layer, head) = shown.run, shown.at
    segment = word_queries.segment_of(store, run.run_id, position) or 0
    unit = queries.Unit(run.run_id, layer, head, segment, shown.batch_index)
    worst = word_queries.worst_rows(store, run.run_id, shown.batch_index, 64, layer, head, segment)
    worst = worst[worst["position"] == position]
    if len(worst):
        loss = row_words.of_worst(worst.iloc[0])
        told = f"{row_words.headline(loss)}; audited, exact. What it read was not kept."
        told = told[0].upper() + told[1:]
        return token_lines.of_passages(position, [], loss.passages, run.block_k, told, "worst_row")
    choices = queries.choices(store, run.run_id, segment, shown.batch_index)
    own = choices[(choices["layer"] == layer) & (choices["head"] == head)]
    if own.empty:
        return None
    body_end = int(own["first_token"].iloc[0] + own["body_tokens"].iloc[0])
    found = row_words.nearest(store, unit, queries.candidates(store, unit), position, body_end)
    if found is None:
        return None
    loss, read = found
    cell = max((blocks for _, blocks, _ in (*read, *loss.passages)), default=1) * run.block_k
    told = f"Token {loss.position:,}, {shown.name}, from the probe, in cells of {cell:,} tokens"
    if cell > run.block_k:
        told += f": of each the largest share of its blocks of {run.block_k}, so at least; read may mean one of them"
    told += "."
    if loss.position != position:
        told = f"Token {position:,} was not recorded; the nearest row that was stands in. {told}"
    return token_lines.of_passages(loss.position, read, loss.passages, run.block_k, told, "probe.parquet")


def card(store: OwnerView, shown: Shown, words: Words | None, drawn: token_lines.Lines | None) -> None:
    """Draw it."""
    position = shown.row
    assert position is not None
    with elements.card("token-lines", f"What token {position:,} read and dropped"):
        if drawn is None:
            elements.sub("Not recorded for these heads. Trace the token, or look at one head alone.")
        else:
            elements.sub(drawn.told)
            lines = sorted(drawn.drawn, key=lambda line: (line.is_dropped, -line.share))
            read = [line for line in lines if not line.is_dropped][:_READ]
            lost = [line for line in lines if line.is_dropped][:_DROPPED]
            run = queries.short_id(store, shown.run.run_id)
            cells = [_cells(run, shown, words, line) for line in (*read, *lost)]
            st.html(tables.table(("", "attention", "tokens", "words"), cells, (0, 3)))
            rows = pd.DataFrame([vars(line) for line in drawn.drawn])
            exports.chart_foot(
                f"token-{queries.label(shown.run.run_id)}-{drawn.position}",
                f"n = {len(rows)} strongest · share of the row’s attention · source: {drawn.source}",
                rows,
                "token-lines",
            )
            if not cells:
                elements.sub("It reads everything that it attends to: nothing recorded was lost.")
            segment = word_queries.segment_of(store, shown.run.run_id, drawn.position) or 0
            unit = queries.Unit(shown.run.run_id, *shown.at, segment, shown.batch_index)
            place = view.address_of(store, unit)
            navigate.link("Show in the probe’s picture", "map", **place, row=drawn.position)
        if words is None:
            elements.sub(row_words.NO_TEXT)
        elif drawn is None or drawn.run_id is None:
            _trace(shown, words, position)


def _cells(run: str, shown: Shown, words: Words | None, line: token_lines.Line) -> tuple[str, ...]:
    """The passage's name leads to who else reads it."""
    size, (layer, head) = shown.run.block_k, shown.at
    place = numbers.tokens(line.first, line.tokens) if line.tokens > 1 else f"{line.first:,}"
    blocks = f"{line.first // size}-{(line.first + line.tokens - 1) // size}"
    address = navigate.address("text", run=run, layer=layer, head=head, row=shown.row or 0, at=blocks)
    passage = ""
    if words is not None:
        start, end = words.span_of_token(line.first, size, line.tokens)
        passage = visible(words.text[start:end][:_LONGEST], " ")
    return (
        f'<span class="rs-warn">{line.fate}</span>' if line.is_dropped else line.fate,
        ("≥ " if line.coarse else "") + numbers.share(line.share, 2),
        f'<a href="{escape(address)}" target="_self">{place}</a>',
        f"<code><bdi>{escape(passage)}</bdi></code>",
    )


def _trace(shown: Shown, words: Words, position: int) -> None:
    """The button that has a worker run the prompt again and keep this token's row of every head."""
    key = f"traced-{shown.run.run_id}-{position}"
    job = st.session_state.get(key)
    if job is not None:
        elements.note("Queued. When the job is done, this page shows the token key by key: reload it.")
        navigate.link("See the job", "runs", job=job)
        return
    opened = access()
    worker_note(opened.queue)
    label = f"Trace token {position:,} in every head: run the prompt again, same settings"
    if not st.button(label, key="trace-token"):
        return
    try:
        request = token_lines.request_of(shown.run, position)
        st.session_state[key] = opened.queue.submit(request, words.text.encode())
    except (RouteSparseError, OSError) as error:
        states.field_error(f"{error}. Nothing was queued.")
        return
    st.rerun()
