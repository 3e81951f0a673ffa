"""What pages say where an address names a certificate in place of a run: what it is, and the way to its page."""

from __future__ import annotations

from html import escape

import streamlit as st

from routesparse.app.shell import navigate
from routesparse.app.ui import states
from routesparse.engine.errors import InputError
from routesparse.engine.export.certificate_words import routing_absent
from routesparse.engine.store import certificate_queries, queries
from routesparse.engine.store.owner_view import OwnerView

CERTIFY = f"{states.PROGRAM} certify --prompt FILE --method xattention=0.9"


def instead(store: OwnerView, named: str, title: str) -> bool:
    """Whether the address names a certificate; then the page says so."""
    try:
        found = certificate_queries.resolve(store, named)
    except InputError:
        return False
    row = None if found is None else certificate_queries.certificate(store, found)
    if row is None:
        return False
    st.html(f'<div class="rs-title">{escape(title)}</div>')
    states.empty(routing_absent(row.subject), ["Its claims, head by head, are on the page Certificate."])
    navigate.link("Open the certificate", "certificate", run=queries.label(row.run_id))
    return True
