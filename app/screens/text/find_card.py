"""The search above the text, and the occurrences below it. A link says where a phrase stands, not what it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from routesparse.app.screens.text import find, selection
from routesparse.app.shell import view
from routesparse.app.ui import elements, numbers
from routesparse.engine.export.plain_text import visible
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries
from routesparse.engine.store.block_shares import BlockShares
from routesparse.engine.store.word_queries import Words

_BEFORE, _BEHIND = 14, 58  # characters around an occurrence: a narrow window shows the phrase itself
_LONGEST = 94  # of an occurrence with what stands before it
# Keys of the session; known: the run and the address that the phrase belongs to.
_PHRASE, _KNOWN = "find-phrase", "find-known"


def field(run: RunRow, words: Words) -> find.Found:
    """The input, and what it finds in the prompt; a link's phrase is put into it."""
    found = _current(run, words)
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.text_input(
            "Find in the prompt",
            key=_PHRASE,
            max_chars=find.LONGEST,
            placeholder="Find in the prompt: who still reads this phrase?",
            label_visibility="collapsed",
            on_change=_take,
            args=(run.run_id, words.text),
        )
        if found.phrase or len(found.spans):
            st.button("Clear", key="quiet-find-clear", type="tertiary", on_click=_clear, args=(run.run_id,))
    if found.phrase.strip() and not len(found.spans):
        st.html('<div class="rs-sub" role="status">No occurrence in this prompt.</div>')
    elif "find" in st.query_params and not len(found.spans):
        st.html(
            '<div class="rs-sub" role="status">The link’s phrase does not stand in this prompt; type it again.</div>'
        )
    return found


def occurrence_list(
    run: RunRow,
    words: Words,
    found: find.Found,
    parts: selection.Parts,
    shares: BlockShares | None,
    limit: float,
) -> None:
    """One row per occurrence with its surroundings and how many heads read it little; a click shows it in the text."""
    rows: dict[str, Any] = {"token": [_token(words, int(start), run.block_k) for start in found.spans[:, 0]]}
    if shares is not None:
        per_part = selection.part_shares(shares, parts)
        rows["dropped_by"] = (np.nan_to_num(per_part, nan=1.0) < limit).sum((0, 1))
        rows["read_by"] = 100 * selection.mean(per_part.reshape(-1, len(parts)), 0)
    # Last: where they have no room their ends are cut, which a click shows in the text.
    rows["words"] = [
        visible(words.text[max(0, int(a) - _BEFORE) : int(b)][:_LONGEST], " ")
        + visible(words.text[int(b) : int(b) + _BEHIND], " ")
        for a, b in found.spans
    ]
    table = pd.DataFrame(rows)
    more = f", the first {len(table):,}" if found.more else ""
    with elements.card("occurrences", numbers.several(len(table), "occurrence") + more):
        key = f"occurrences-{queries.label(run.run_id)}-{st.query_params.get('find', '')[:40]}"
        st.dataframe(
            table,
            key=key,
            hide_index=True,
            height=min(300, 37 + 35 * len(table)),
            on_select=lambda: _show(key, parts),
            selection_mode="single-row",
            column_config={
                # Together they fit a window of 1,024 pixels.
                "token": st.column_config.NumberColumn("Token", format="localized", width=62),
                "dropped_by": st.column_config.NumberColumn(
                    "Little read",
                    format="localized",
                    width=66,
                    help=f"By heads, of {run.layers * run.heads:,}",
                ),
                "read_by": st.column_config.NumberColumn(
                    "Read", format="%.1f %%", width=60, help="By later rows, mean over heads"
                ),
                "words": st.column_config.TextColumn("Words around it", width=255),
            },
        )
        elements.note(
            "Click a row to show it in the text and its readers alone. Little read: by fewer "
            f"than {100 * limit:g} % of later rows. Read: by later rows, mean over heads. An occurrence counts for all "
            f"of the key blocks of {run.block_k} tokens that it lies in."
        )


def _current(run: RunRow, words: Words) -> find.Found:
    """What is searched for: what was typed here, or what the address says where it says something else."""
    address = st.query_params.get("find")
    linked = None if address is None else find.linked(words.text, address)
    # Streamlit forgets a widget's value while its page is not drawn.
    phrase = st.session_state.setdefault(_PHRASE, "")
    if st.session_state.get(_KNOWN) != (run.run_id, address) or (linked and not phrase):
        meant = linked or find.Found()
        st.session_state[_PHRASE], st.session_state[_KNOWN] = meant.phrase, (run.run_id, address)
        return meant
    return find.search(words.text, phrase)


def _take(run_id: str, text: str) -> None:
    """What was typed becomes part of the address, by its place."""
    address = find.link(find.search(text, st.session_state[_PHRASE]))
    for name in ("find", "at"):
        st.query_params.pop(name, None)
    if address is not None:
        view.write(find=address)
    st.session_state[_KNOWN] = (run_id, address)


def _clear(run_id: str) -> None:
    st.session_state[_PHRASE] = ""
    for name in ("find", "at"):
        st.query_params.pop(name, None)
    st.session_state[_KNOWN] = (run_id, None)


def _show(key: str, parts: selection.Parts) -> None:
    chosen = st.session_state[key].selection.rows
    if chosen:
        first, last = parts[chosen[0]]
        view.write(at=f"{first}-{last}")
    else:
        st.query_params.pop("at", None)


def _token(words: Words, character: int, block_tokens: int) -> int:
    """The token at a character; where tokens were not kept, the first one of its KV block."""
    starts, step = (
        (words.block_starts, block_tokens) if words.token_starts is None else (words.token_starts, 1)
    )
    return max(0, int(np.searchsorted(starts, character, side="right")) - 1) * step
