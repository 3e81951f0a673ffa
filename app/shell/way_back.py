"""The browser's back button on pages that open a head.

Opening a page with a query makes two entries in the browser's history: this page's path with the head's query, then the
head's own. Going back lands on the first, so each page remembers its last view and returns to it from there.
"""

from __future__ import annotations

import streamlit as st

_OF_A_HEAD = ("layer", "head")


def restore(page: str) -> None:
    """Before a page is drawn: bring back its remembered view if the address holds a head's."""
    remembered = st.session_state.get("views", {}).get(page)
    if remembered is not None and any(name in st.query_params for name in _OF_A_HEAD):
        st.query_params.from_dict(remembered)


def remember(page: str) -> None:
    """Just before a page opens a head: keep the view that the address names."""
    st.session_state.setdefault("views", {})[page] = st.query_params.to_dict()
