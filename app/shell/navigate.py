"""Going from page to page with a view in the address. Labels are ours: Streamlit reads them as Markdown."""

from __future__ import annotations

from html import escape
from urllib.parse import urlencode

import streamlit as st

from routesparse.app.shell import address as address_line


def go(name: str, **query: str | int) -> None:
    """Leave for another page of the dashboard."""
    st.switch_page(st.session_state["pages"][name], query_params=_texts(query))


def link(label: str, name: str, **query: str | int) -> None:
    """A link that keeps the session; a plain one where a page is drawn without the navigation."""
    pages = st.session_state.get("pages", {})
    if name in pages:
        st.page_link(pages[name], label=label, query_params=_texts(query))
    else:
        st.html(f'<a href="{escape(address(name, **query))}">{escape(label)}</a>', width="content")


def address(name: str, **query: str | int) -> str:
    """The relative address of a view, for links inside tables."""
    return f"{name}?{urlencode(_texts(query))}"


def _texts(query: dict[str, str | int]) -> dict[str, str]:
    return {name: str(value) for name, value in query.items()}


# Opening a page with a query makes two entries in the browser's history: this page's path with the head's query, then
# the head's own. Going back lands on the first, so each page that opens heads remembers its last view to return to.


def restore(page: str) -> None:
    """Before a page is drawn: bring back its remembered view if the address holds a head's, which it does not read."""
    remembered = st.session_state.get("views", {}).get(page)
    named = [name for name in ("layer", "head") if name in st.query_params]
    for name in named:
        address_line.absent(name, st.query_params[name], address_line.UNREAD)
    if remembered is not None and named:
        st.query_params.from_dict(remembered)
        st.rerun()  # widgets that are bound to the address read it before the page is drawn


def remember(page: str) -> None:
    """Just before a page opens a head: keep the view that the address names."""
    st.session_state.setdefault("views", {})[page] = st.query_params.to_dict()
