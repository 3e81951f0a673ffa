"""The dashboard's entry point: ``python -m routesparse.app`` serves it. One process, the owner of the DuckDB file."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from routesparse.app.screens.audit import page as audit
from routesparse.app.screens.calibration import page as calibration
from routesparse.app.screens.certificate import page as certificate
from routesparse.app.screens.compare import page as compare
from routesparse.app.screens.fallbacks import page as fallbacks
from routesparse.app.screens.fleet import page as fleet
from routesparse.app.screens.head import page as head
from routesparse.app.screens.home import page as home
from routesparse.app.screens.job import page as job
from routesparse.app.screens.models import page as models
from routesparse.app.screens.new_run import page as new_run
from routesparse.app.screens.results import page as results
from routesparse.app.screens.routing_map import page as routing_map
from routesparse.app.screens.runs import page as runs
from routesparse.app.screens.sweep import page as sweep
from routesparse.app.screens.terms import page as terms
from routesparse.app.screens.text import page as text
from routesparse.app.shell import broken_store, guard, identity, intake, menu
from routesparse.app.shell.access import access
from routesparse.app.shell.boundary import boundary
from routesparse.app.ui import states, style
from routesparse.engine.errors import ConfigError, StoreDamagedError, StoreError

# A file of our own: Streamlit fetches the icons of ":material/...:" favicons from the network.
ICON = Path(__file__).parent / "ui" / "icon.svg"


def main() -> None:
    """Open the store, look into the spool, draw the page that the address names."""
    st.set_page_config(page_title="RouteSparse", page_icon=str(ICON), layout="wide")
    style.apply_style()
    if not guard.may_enter():
        return
    pages = {
        "home": st.Page(home.render, title="Home", default=True),
        "runs": st.Page(runs.render, title="Runs", url_path="runs"),
        "new": st.Page(new_run.render, title="New run", url_path="new"),
        "models": st.Page(models.render, title="Models", url_path="models"),
        "job": st.Page(job.render, title="Jobs", url_path="job"),
        "sweep": st.Page(sweep.render, title="Sweep", url_path="sweep"),
        "map": st.Page(routing_map.render, title="Routing map", url_path="map"),
        "head": st.Page(head.render, title="Head", url_path="head"),
        "text": st.Page(text.render, title="Text", url_path="text"),
        "audit": st.Page(audit.render, title="Audit", url_path="audit"),
        "certificate": st.Page(certificate.render, title="Certificate", url_path="certificate"),
        "compare": st.Page(compare.render, title="Compare", url_path="compare"),
        "calibration": st.Page(calibration.render, title="Calibration", url_path="calibration"),
        "results": st.Page(results.render, title="Results", url_path="results"),
        "fallbacks": st.Page(fallbacks.render, title="Fallbacks", url_path="fallbacks"),
        "fleet": st.Page(fleet.render, title="Fleet", url_path="fleet"),
        "terms": st.Page(terms.render, title="Terms", url_path="terms"),
    }
    st.session_state["pages"] = pages
    groups = {
        "Analyse": [pages[name] for name in ("home", "runs", "new", "models", "job", "sweep", "fleet")],
        "Run": [pages["map"], pages["head"], pages["text"]],
        "Trust": [
            pages[name] for name in ("audit", "fallbacks", "certificate", "compare", "calibration", "results")
        ],
        "Help": [pages["terms"]],
    }
    # Streamlit serves its default page at "/" alone, whatever its path: a link to /home needs a page of its own.
    page = menu.draw(groups, st.Page(home.render, title="Home", url_path="home", visibility="hidden"))
    if identity.login_configured():
        with st.sidebar:
            st.text(identity.name())
            st.button("Log out", on_click=st.logout)
    try:
        opened = access()
    except StoreDamagedError as error:
        broken_store.draw(error)
        return
    except (ConfigError, StoreError) as error:
        states.problem(
            "The store can't be used", [str(error), "Nothing was changed. Reload this page afterwards."]
        )
        return
    advice = "Try the page without what follows the question mark in its address."
    with boundary("This page", page.url_path, advice):
        opened.look_into_spool()
        intake.note()
        page.run()


main()
