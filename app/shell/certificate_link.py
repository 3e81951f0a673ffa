"""What pages say where an address names a certificate in place of a run: what it is, and the way to its page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import streamlit as st

from routesparse.app.shell import navigate
from routesparse.app.ui import states
from routesparse.engine.certificate_rows import CertificateRow
from routesparse.engine.errors import InputError
from routesparse.engine.export.certificate_words import routing_absent
from routesparse.engine.export.plain_text import visible
from routesparse.engine.store import certificate_queries, queries
from routesparse.engine.store.owner_view import OwnerView


def instead(store: OwnerView, named: str, title: str) -> bool:
    """Whether the address names a certificate; then the page says so."""
    row = _named(store, named)
    if row is None:
        return False
    st.html(f'<div class="rs-title">{escape(title)}</div>')
    states.empty(routing_absent(visible(row.subject)), ["Its claims, head by head, are on the page Trust."])
    _link(row)
    return True


def links(store: OwnerView, names: Iterable[str]) -> None:
    """The way to every certificate among the names of an address."""
    for name in names:
        row = _named(store, name)
        if row is not None:
            _link(row)


def _named(store: OwnerView, name: str) -> CertificateRow | None:
    try:
        found = certificate_queries.resolve(store, name)
    except InputError:
        return None  # several are meant: the page says that no run is
    return None if found is None else certificate_queries.certificate(store, found)


def _link(row: CertificateRow) -> None:
    navigate.link("Open the certificate", "trust", run=queries.label(row.run_id))
