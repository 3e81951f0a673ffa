"""Deleted runs: brought back at once by Undo, or from the trash after a reload; only emptying it asks first."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import streamlit as st

from routesparse.app.shell.access import Access
from routesparse.app.ui import elements, numbers, states
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.export.plain_text import visible
from routesparse.engine.store import label_queries, queries
from routesparse.engine.store.trash import KEPT_DAYS

_MOST_LISTED = 50


def delete_button(opened: Access, run_ids: list[str], key: str) -> None:
    """Moves the ticked ones to the trash."""
    told = f"Moves them to the trash, where they can be restored for {KEPT_DAYS} days"
    st.button("Delete", key=key, on_click=_delete, args=(opened, run_ids), help=told)


def bar(opened: Access) -> None:
    """What went wrong, and after a deletion the way back."""
    for line in st.session_state.pop("problems", []):
        states.field_error(line)
    deleted = st.session_state.get("deleted")
    if deleted:
        what = f"run {queries.label(deleted[0])}" if len(deleted) == 1 else f"{len(deleted)} runs"
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.html(
                f'<div class="rs-sub" role="status">Moved {what} to the trash below, for {KEPT_DAYS} days.</div>',
                width="content",
            )
            st.button("Undo", key="undo-delete", on_click=_restore, args=(opened, deleted))


def card(opened: Access) -> None:
    """The trash, where anything is in it: restore a run, or delete all of them for good."""
    rows = label_queries.trash(opened.store)
    if rows.empty:
        return
    with st.expander(f"Trash: {numbers.several(len(rows), 'run')}", icon=":material/delete:", key="trash"):
        elements.note(
            f"Deleted runs are kept for {KEPT_DAYS} days and then removed for good, with their "
            "names, notes and tags."
        )
        for row in rows.head(_MOST_LISTED).itertuples():
            key = f"quiet-{row.run_id}"
            with st.container(horizontal=True, vertical_alignment="center", gap="small", key=key):
                st.html(
                    f"<div><b><bdi>{escape(visible(str(row.prompt_name)))}</bdi></b> "
                    f'<span class="rs-note">· {row.tokens:,} tokens · run {escape(queries.label(str(row.run_id)))} · '
                    f"deleted {row.deleted_at:%Y-%m-%d %H:%M} UTC</span></div>"
                )
                st.button(
                    "Restore", key=f"restore-{row.run_id}", on_click=_restore, args=(opened, [row.run_id])
                )
        if len(rows) > _MOST_LISTED:
            elements.note(f"And {len(rows) - _MOST_LISTED:,} more, deleted earlier.")
        with st.popover("Empty the trash", key="empty-trash"):
            st.html(f"<div>Delete {numbers.several(len(rows), 'run')} for good? That can’t be undone.</div>")
            # Exactly the runs that the question counts: what another tab deletes meanwhile can be restored.
            st.button(
                "Delete for good", key="confirm-empty", on_click=_empty, args=(opened, list(rows["run_id"]))
            )


def each(names: list[str], action: Callable[[str], None]) -> list[str]:
    """Run the action per name (a run's, a rejected bundle's), keep the problems for the page, return what worked."""
    done = []
    for name in names:
        try:
            action(name)
        except RouteSparseError as error:
            st.session_state.setdefault("problems", []).append(str(error))
        else:
            done.append(name)
    return done


def _delete(opened: Access, run_ids: list[str]) -> None:
    st.session_state["deleted"] = each(run_ids, opened.store.delete_run)


def _restore(opened: Access, run_ids: list[str]) -> None:
    st.session_state.pop("deleted", None)
    each(run_ids, opened.store.restore_run)


def _empty(opened: Access, run_ids: list[str]) -> None:
    st.session_state.pop("deleted", None)
    try:
        opened.store.empty_trash(run_ids)
    except RouteSparseError as error:
        st.session_state["problems"] = [str(error)]
