"""The answer by dense attention beside the run's: the most probable next tokens, and how the prompt goes on."""

from __future__ import annotations

import re
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.ui import elements, exports, glossary, numbers, tables
from routesparse.engine.export.plain_text import mark
from routesparse.engine.rows import ContinuationRow, RunRow
from routesparse.engine.store import frames, queries
from routesparse.engine.store.owner_view import OwnerView

_LONGEST = 24  # characters of a token
_SHOWN = 3
_CUT = re.compile("(<0x[0-9A-F]{2}>|\N{REPLACEMENT CHARACTER})+$")  # bytes of a character that is not whole
_INVISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}


def card(store: OwnerView, run: RunRow, batch_index: int) -> None:
    """Both sides' most probable next tokens with their probabilities; says why where nothing was compared."""
    with elements.card("answer", "The next token, dense against this run", "answer"):
        rows = queries.answers(store, run.run_id, batch_index)
        if rows.empty:
            told = (
                "Its tokens’ probabilities were not kept by the version that made this run."
                if run.top1_agreement is not None
                else "Not compared: no dense prefill ran. Run the prompt again with “Always run dense too”."
            )
            elements.sub(told)
            return
        st.html(table_html(rows))
        signs = " · ␣: a space, ⏎: a line’s end" if rows["text"].notna().any() else ""
        exports.chart_foot(
            f"next-token-{queries.label(run.run_id)}",
            f"n = 1, the prompt’s last position{signs} · source: answer",
            rows,
            "answer",
        )
        _continuation(store, run, batch_index)


def _continuation(store: OwnerView, run: RunRow, batch_index: int) -> None:
    """How the prompt goes on by both; nothing where it was not continued."""
    row = queries.continuation(store, run.run_id, batch_index)
    if row is None:
        return
    st.html(f'<div class="rs-h">How it goes on{glossary.mark("continuation")}</div>{continuation_html(row)}')


def continuation_html(row: ContinuationRow) -> str:
    """One sentence, and both texts with what differs marked; the sentence alone where no text was kept."""
    told = f"Leading tokens as after dense: {row.same_tokens} of {row.tokens}."
    told = f'<div class="rs-sub">{told}</div>'
    if row.same_text is None:
        return f'{told}<div class="rs-note">Its text was not kept.</div>'
    sides = [("both", row.dense_text)]
    if row.same_tokens < row.tokens:
        sides = [("dense", row.dense_text), ("this run", row.routed_text)]
    lines = [
        (f'<th class="l" scope="row">{side}</th>', f"<code>{_differing(text, row.same_text)}</code>")
        for side, text in sides
    ]
    return told + tables.table([], lines, (1,))


def _differing(text: str | None, same: str) -> str:
    """A side's text, what is not the other's marked. A token may end inside a character, which then is marked too."""
    text, common = _seen(text or ""), _CUT.sub("", _seen(same))
    if not text.startswith(common):
        common = ""
    rest = text[len(common) :]
    return escape(common) + (f"<mark>{escape(rest)}</mark>" if rest and common != text else "")


def table_html(rows: pd.DataFrame) -> str:
    """Rank by rank; a rank that another token holds is marked."""
    sides = {side: rows.sort_values(f"{side}_rank").head(_SHOWN) for side in ("dense", "routed")}
    lines = []
    for dense, routed in zip(frames.rows(sides["dense"]), frames.rows(sides["routed"]), strict=True):
        same = dense.token_id == routed.token_id
        mark = "" if same else '<span class="rs-warn" title="another token">≠</span>'
        one, other = _probability(dense.dense), _probability(routed.routed)
        lines.append((_token(dense), one, mark, _token(routed), other))
    return tables.table(("dense", "probability", "", "this run", "probability"), lines, (0, 3))


def _token(row: object) -> str:
    """A token's text, blanks made visible; its number too where the text is not all, or says nothing."""
    text, token = row.text, row.token_id  # type: ignore[attr-defined]
    number = f'<span class="rs-note">token {token}</span>'
    if numbers.is_missing(text) or "\N{REPLACEMENT CHARACTER}" in text:
        return number
    seen = _seen(str(text)) or "(empty)"
    return f"<code>{escape(seen[:_LONGEST])}</code>" + (f"… {number}" if len(seen) > _LONGEST else "")


def _seen(text: str) -> str:
    """With blanks made visible, and what can't be printed named."""
    return "".join(_INVISIBLE.get(c, c if c.isprintable() else mark(c)) for c in text)


def _probability(value: float) -> str:
    return numbers.share(value) if value >= 5e-4 else "&lt; 0.1 %"
