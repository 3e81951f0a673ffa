"""The dashboard's entry point: ``streamlit run app/main.py``. One process, the owner of the DuckDB file."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from routesparse.app import design, states
from routesparse.app.access import access
from routesparse.app.pages import routing_map, runs
from routesparse.engine.errors import RouteSparseError, StoreError

# A file of our own: Streamlit fetches the icons of ":material/...:" favicons from the network.
ICON = Path(__file__).parent / "icon.svg"


def main() -> None:
    """Open the store, look into the spool, draw the page that the address names."""
    st.set_page_config(page_title="RouteSparse", page_icon=str(ICON), layout="wide")
    design.apply_style()
    runs_page = st.Page(runs.render, title="Runs", url_path="runs", default=True)
    map_page = st.Page(routing_map.render, title="Routing map", url_path="map")
    st.session_state["pages"] = {"runs": runs_page, "map": map_page}
    page = st.navigation({"Analyse": [runs_page], "Run": [map_page]})
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


main()
