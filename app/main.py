"""The dashboard's entry point: ``python -m routesparse.app`` serves it. One process, the owner of the DuckDB file."""

from __future__ import annotations

import secrets
from pathlib import Path

import streamlit as st

from routesparse.app import guard, identity, states, style
from routesparse.app.access import access
from routesparse.app.screens import (
    audit,
    calibration,
    compare,
    fallbacks,
    head,
    job,
    new_run,
    routing_map,
    runs,
    terms,
)
from routesparse.engine import paths
from routesparse.engine.errors import RouteSparseError, StoreError
from routesparse.engine.jobs.log import JobLog, frames

# A file of our own: Streamlit fetches the icons of ":material/...:" favicons from the network.
ICON = Path(__file__).parent / "icon.svg"


def main() -> None:
    """Open the store, look into the spool, draw the page that the address names."""
    st.set_page_config(page_title="RouteSparse", page_icon=str(ICON), layout="wide")
    style.apply_style()
    if not guard.may_enter():
        return
    pages = {
        "runs": st.Page(runs.render, title="Runs", url_path="runs", default=True),
        "new": st.Page(new_run.render, title="New run", url_path="new"),
        "job": st.Page(job.render, title="Jobs", url_path="job"),
        "map": st.Page(routing_map.render, title="Routing map", url_path="map"),
        "head": st.Page(head.render, title="Head", url_path="head"),
        "audit": st.Page(audit.render, title="Audit", url_path="audit"),
        "compare": st.Page(compare.render, title="Compare", url_path="compare"),
        "calibration": st.Page(calibration.render, title="Calibration", url_path="calibration"),
        "fallbacks": st.Page(fallbacks.render, title="Fallbacks", url_path="fallbacks"),
        "terms": st.Page(terms.render, title="Terms", url_path="terms"),
    }
    st.session_state["pages"] = pages
    page = st.navigation(
        {
            "Analyse": [pages["runs"], pages["new"], pages["job"]],
            "Run": [pages["map"], pages["head"]],
            "Trust": [pages["audit"], pages["fallbacks"], pages["compare"], pages["calibration"]],
            "Help": [pages["terms"]],
        }
    )
    if identity.login_configured():
        with st.sidebar:
            st.text(identity.name())
            st.button("Log out", on_click=st.logout)
    try:
        opened = access()
    except StoreError as error:
        states.problem(
            "The store can't be opened", [str(error), "Nothing was changed. Reload this page afterwards."]
        )
        return
    opened.look_into_spool()
    try:
        page.run()
    except RouteSparseError as error:
        states.problem("This page can't be drawn", [str(error), "The stored runs are unchanged. Reload it."])
    # The boundary of a page. The error's own message stays out of page and log: it may quote a prompt.
    except Exception as error:  # noqa: BLE001
        _unexpected(error, page.url_path)


def _unexpected(error: Exception, page: str) -> None:
    """A defect, or an address that no page foresaw: say so, and where the log has its place."""
    log_id = secrets.token_hex(4)
    JobLog(paths.home(), "web").write(
        "page_failed", page=page, log_id=log_id, error=type(error).__name__, frames=frames(error)
    )
    states.problem(
        "This page can't be drawn",
        [
            f"An unexpected {type(error).__name__}; logs/worker.jsonl has its place under id {log_id}. Please report "
            "it with that entry.",
            "The stored runs are unchanged. Try the page without what follows the question mark in its address.",
        ],
    )


main()
