"""Says on every page how far the store is with many new bundles."""

from __future__ import annotations

import streamlit as st

from routesparse.app.shell import boundary
from routesparse.app.shell.access import access

_EVERY_S = 2.0


def note() -> None:
    """A line that counts up while bundles come in; nothing otherwise."""
    if access().taking_in() is not None:
        boundary.timed(_count, _EVERY_S)()


def _count() -> None:
    opened = access()
    opened.look_into_spool()
    now = opened.taking_in()
    if now is None:
        st.rerun()
    done, total = now
    st.html(
        f'<div class="rs-note" role="status">The store is taking in new bundles: {done:,} of {total:,}. '
        "Runs appear as they come.</div>"
    )
