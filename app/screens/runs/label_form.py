"""The form for a run's name, notes and tags: the owner's words, which its bundle never learns."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from routesparse.app.shell.access import Access
from routesparse.app.ui import states
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.store import label_queries, labels, queries


def draw(opened: Access, run_id: str) -> None:
    """A popover with the form; what was typed stays where it can't be kept."""
    label = label_queries.label(opened.store, run_id)
    with (
        st.popover("Name, notes, tags", help="Yours alone; the run itself stays as it is"),
        st.form(f"label-{run_id}", border=False),
    ):
        st.text_input(
            "Name", label.name or "", key=f"name-{run_id}", placeholder="the prompt’s name", width=420
        )
        st.multiselect(
            "Tags",
            queries.filter_values(opened.store)["tag"],
            label.tags,
            key=f"tags-{run_id}",
            accept_new_options=True,
            max_selections=labels.MOST_TAGS,
            placeholder="Type a tag, then Enter",
            width=420,
        )
        st.text_area("Notes", label.notes or "", key=f"notes-{run_id}", height=110, width=420)
        st.form_submit_button("Save", on_click=_save, args=(opened, run_id))
        problem = st.session_state.pop("label-problem", None)
        if problem:
            states.field_error(problem)


def _save(opened: Access, run_id: str) -> None:
    typed = (st.session_state[f"{name}-{run_id}"] for name in ("name", "notes", "tags"))
    try:
        pinned = label_queries.label(opened.store, run_id).pinned
        opened.store.set_label(run_id, replace(labels.label(*typed), pinned=pinned))
    except RouteSparseError as error:
        st.session_state["label-problem"] = f"{error}. Nothing was kept; what you typed is still here."
