"""Terms: the paper's equations and every term of the pages, each with the place that defines it."""

from __future__ import annotations

import re
from html import escape

import streamlit as st

from routesparse.app.shell import address
from routesparse.app.ui import elements, glossary, tables
from routesparse.app.ui.glossary import TERMS

# (equation, formula, what it says, where the code has it)
EQUATIONS = (
    (
        1,
        "O = A V,  A = softmax(Q Kᵀ / √d + C)",
        "Dense attention; C is the causal mask.",
        "kernels/reference.py",
    ),
    (
        3,
        "S = Q[I] · pool(K)ᵀ / √d",
        "The shared probe: a few query rows I against all keys.",
        "engine/method/probe.py",
    ),
    (
        4,
        "R = 1 − g + α u + β e,  g = min(m̂, recent mean)",
        "Risk of a candidate. Where g stands the paper has m̂ alone, a mean that hides the few last rows that ask the "
        "question.",
        "engine/method/router.py",
    ),
    (
        5,
        "‖aV − ãV‖₂ ≤ 2 (1 − m) V_max",
        "A row's output error is at most twice its lost mass times the largest value norm.",
        "engine/method/certificate.py",
    ),
    (
        6,
        "min Σ R  subject to  Σ t ≤ T_ℓ",
        "The router: one candidate per head, least risk within the layer's time.",
        "engine/method/router.py",
    ),
)
_EQUATION = re.compile(r"\(.*?equation (\d)")


@address.names("term")
def render() -> None:
    """Draw the page; ``term`` in the address is marked and comes first."""
    wanted = st.query_params.get("term", "")
    if wanted not in TERMS:
        address.absent("term", wanted)
    st.html(
        '<div class="rs-title">Terms</div><div class="rs-sub">What the words and letters of these pages mean, and '
        "where the paper defines them; “ours” marks what is not in the paper.</div>"
    )
    if wanted in TERMS:
        with elements.card("term", glossary.name(wanted)):
            st.html(f"<div>{escape(TERMS[wanted])}</div>")
            number = _EQUATION.search(TERMS[wanted])
            if number:
                st.html("".join(_equation(*row) for row in EQUATIONS if row[0] == int(number[1])))
    with elements.card("scope", "What a certificate speaks about"):
        st.html(f"<div>{escape(glossary.CERTIFICATE_SCOPE)}</div>")
    with elements.card("equations", "Equations of the paper"):
        st.html("".join(_equation(*row) for row in EQUATIONS))
    with elements.card("terms", "All terms"):
        names = sorted(TERMS, key=lambda term: glossary.name(term).lower())
        rows = [[escape(glossary.name(term)), escape(TERMS[term])] for term in names]
        st.html(tables.table([], rows, (0, 1), [names.index(wanted)] if wanted in TERMS else ()))


def _equation(number: int, formula: str, says: str, file: str) -> str:
    return (
        f'<div class="rs-equation"><span>({number})</span><b>{escape(formula)}</b>'
        f"<small>{escape(says)} <code>{escape(file)}</code></small></div>"
    )
