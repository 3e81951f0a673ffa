"""The dashboard's entry point: ``python -m routesparse.app`` serves it. One process, the owner of the DuckDB file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from routesparse.app.screens.compare import page as compare
from routesparse.app.screens.domains import page as domains
from routesparse.app.screens.fleet import page as fleet
from routesparse.app.screens.models import page as models
from routesparse.app.screens.new_run import page as new_run
from routesparse.app.screens.results import page as results
from routesparse.app.screens.routing_map import page as routing_map
from routesparse.app.screens.runs import page as runs
from routesparse.app.screens.terms import page as terms
from routesparse.app.screens.text import page as text
from routesparse.app.screens.trust import page as trust
from routesparse.app.shell import boundary, guard, identity
from routesparse.app.shell.access import Access, access
from routesparse.app.ui import states
from routesparse.engine.calibration import keeping_log
from routesparse.engine.errors import ConfigError, StoreDamagedError, StoreError
from routesparse.engine.store import fleet_queries

UI = Path(__file__).parent / "ui"
_HEADING = '[data-testid="stSidebarNavItems"] > li:nth-child({place})::before {{ content: "{heading}"; }}'
_INTAKE_EVERY_S = 2.0


def main() -> None:
    """Open the store, look into the spool, draw the page that the address names."""
    # A file of our own: Streamlit fetches the icons of ":material/...:" favicons from the network.
    st.set_page_config(page_title="RouteSparse", page_icon=str(UI / "icon.svg"), layout="wide")
    st.html(UI / "style.css")
    if not guard.may_enter():
        return
    opened: Access | None = None
    problem: Exception | None = None
    try:
        opened = access()
    except (ConfigError, StoreError) as error:
        problem = error
    page = _menu(opened)
    if identity.login_configured():
        with st.sidebar:
            st.text(identity.name())
            st.button("Log out", on_click=st.logout)
    if opened is None:
        if isinstance(problem, StoreDamagedError):
            states.damaged_store(problem)
        else:
            told = "Nothing was changed. Reload this page afterwards."
            states.problem("The store can't be used", [str(problem), told])
        return
    advice = "Try the page without what follows the question mark in its address."
    with boundary.boundary("This page", page.url_path or "runs", advice):
        opened.look_into_spool()
        if opened.taking_in() is not None:
            boundary.timed(_count_bundles, _INTAKE_EVERY_S)()
        page.run()


def _menu(opened: Access | None) -> StreamlitPage:
    """Draw the menu, and return the page that the address names."""
    kept = identity.owner() is None and bool(keeping_log.logs())
    served = kept or (opened is not None and fleet_queries.recorded_days(opened.store) is not None)
    pages = {
        "runs": st.Page(runs.render, title="Runs", default=True),
        "domains": st.Page(domains.render, title="Domains", url_path="domains"),
        "new": st.Page(new_run.render, title="New run", url_path="new"),
        "models": st.Page(models.render, title="Models", url_path="models"),
        "map": st.Page(routing_map.render, title="Routing map", url_path="map"),
        "text": st.Page(text.render, title="Text", url_path="text"),
        "trust": st.Page(trust.render, title="Trust", url_path="trust"),
        "compare": st.Page(compare.render, title="Compare", url_path="compare"),
        "results": st.Page(results.render, title="Results", url_path="results"),
        "fleet": st.Page(
            fleet.render, title="Fleet", url_path="fleet", visibility="visible" if served else "hidden"
        ),
        "terms": st.Page(terms.render, title="Terms", url_path="terms"),
    }
    st.session_state["pages"] = pages
    groups: Mapping[str, Sequence[str]] = {
        "Analyse": ["runs", "domains", "new", "models", *(["fleet"] if served else [])],
        "Run": ["map", "text", "trust"],
        "Evidence": ["compare", "results"],
        "Help": ["terms"],
    }
    # Streamlit's own menu, flat, with the headings drawn before their first page: its sections break the list that
    # screen readers count, since their items have no list as parent.
    listed = [pages[name] for group in groups.values() for name in group]
    places = {heading: listed.index(pages[names[0]]) + 1 for heading, names in groups.items()}
    rules = [_HEADING.format(place=place, heading=heading) for heading, place in places.items()]
    st.html(f"<style>{' '.join(rules)}</style>")
    # Addresses that older links name; Streamlit serves its default page at "/" alone.
    former = [
        st.Page(page.render, title=title, url_path=path, visibility="hidden")
        for page, title, paths in (
            (runs, "Runs", ("runs", "home", "job")),
            (routing_map, "Routing map", ("head",)),
            (trust, "Trust", ("audit", "fallbacks", "certificate")),
            (compare, "Compare", ("sweep",)),
            (domains, "Domains", ("calibration",)),
        )
        for path in paths
    ]
    unlisted = [page for page in pages.values() if page not in listed]
    return st.navigation([*listed, *unlisted, *former], expanded=True)


def _count_bundles() -> None:
    """A line that counts up while many new bundles come in."""
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


main()
