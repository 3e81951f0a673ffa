"""The menu Export on every page about a run: its ZIP, its report as one page, and a link to the view.

A file is made into a folder of the home and read when it is saved, so that a large one lies in memory once. What the
browser saves is the last one made; the store deletes files of the menu after a day, and with their run.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from routesparse.app.ui import exports, numbers, states
from routesparse.engine import paths
from routesparse.engine.errors import BundleError, RouteSparseError, StoreError
from routesparse.engine.export import archive, report_page
from routesparse.engine.store.owner_view import OwnerView

_KINDS = {
    "zip": ("ZIP", "application/zip", "All tables (Parquet), a data dictionary and a pandas snippet"),
    "html": ("report", "text/html", "One page: verdict, map, certificates, settings; opens without a server"),
}


def menu(store: OwnerView, run_id: str) -> None:
    """Draw the menu; what is in it is made once it is opened."""
    opened = st.popover("Export", key="export", on_change="rerun")
    if not opened.open:
        return
    with opened:
        exports.copy_link_button()
        folder = store.bundle(run_id)
        if folder is None:
            states.field_error("The bundle of this run is no longer on the disk. Analyse the prompt again.")
            return
        text = False
        if archive.has_text(folder):
            text = st.checkbox(
                "Include the prompt’s text",
                key="export-text",
                help="Without it the files hold the prompt’s name, its hash and the figures, but none of its words.",
            )
        for kind in _KINDS:
            _offer(store, run_id, kind, text)
        problem = st.session_state.pop("export-problem", None)
        if problem:
            states.field_error(problem)


def _offer(store: OwnerView, run_id: str, kind: str, text: bool) -> None:
    """A button that makes a file, and one that saves it when it is made."""
    name, mime, inside = _KINDS[kind]
    made = st.session_state.get(f"exported-{kind}")
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.button(
            f"Make {name}",
            key=f"make-{kind}",
            on_click=_make,
            args=(store, run_id, kind, text),
            help=f"{inside}; {'with' if text else 'without'} the prompt’s text",
        )
        if made == _place(run_id, kind, text) and made.is_file():
            st.download_button(
                f"Save, {numbers.size(made.stat().st_size)}",
                made.read_bytes,
                file_name=f"{run_id}.{kind}",
                mime=mime,
                key=f"save-{kind}",
                type="primary",
                on_click="ignore",
            )
    st.html(f'<div class="rs-note">{inside}.</div>')


def _make(store: OwnerView, run_id: str, kind: str, text: bool) -> None:
    """Make a file; what goes wrong is told in the menu."""
    try:
        folder = store.bundle(run_id)
        if folder is None:
            raise BundleError("the bundle of this run is no longer on the disk; analyse the prompt again")
        target = _place(run_id, kind, text)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{target.parent} can't be written ({error.strerror}); nothing was made. Make room, then try again"
            ) from error
        if kind == "zip":
            archive.write(folder, target, text=text)
        else:
            page = report_page.of_bundle(folder, words=text)
            with archive.replacing(target) as partial:
                partial.write_text(page, "utf-8")
        st.session_state[f"exported-{kind}"] = target
    except RouteSparseError as error:
        st.session_state["export-problem"] = str(error)


def _place(run_id: str, kind: str, text: bool) -> Path:
    """Where a file is made: one name for each run and kind, so that clicks do not pile up."""
    return paths.exports() / f"{run_id}{'-with-text' if text else ''}.{kind}"
