"""Deleting runs: it asks first, can be undone at once, and from the trash after a reload."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape

import streamlit as st

from routesparse.app.shell.access import Access
from routesparse.app.ui import numbers, states
from routesparse.app.ui.plain_text import visible
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.store import label_queries, queries
from routesparse.engine.store.trash import KEPT_DAYS

_MOST_LISTED = 50


def delete_button(run_ids: list[str], key: str, what: str) -> None:
    """It asks first: the question stands above the table until it is answered. what: the ticked ones, in words."""
    st.button(
        "Delete",
        key=key,
        on_click=_ask,
        args=(run_ids,),
        help=f"Asks first; {what} can be restored from the trash",
    )


def _ask(run_ids: list[str]) -> None:
    st.session_state["to-delete"] = run_ids


def bar(opened: Access) -> None:
    """What went wrong, the question before a deletion, and after it the way back."""
    for line in st.session_state.pop("problems", []):
        states.field_error(line)
    asked = st.session_state.get("to-delete")
    deleted = st.session_state.get("deleted")
    if asked:
        _line(
            f"Move {_what(asked)} to the trash? {_be(asked).capitalize()} kept there for {KEPT_DAYS} days "
            "and can be restored.",
            ("Move to the trash", "confirm-delete", _delete),
            ("Keep", "keep", _keep),
            opened=opened,
        )
    elif deleted:
        _line(
            f"Deleted {_what(deleted)}; {_be(deleted)} in the trash below for {KEPT_DAYS} days.",
            ("Undo", "undo-delete", _undo),
            opened=opened,
        )


def card(opened: Access) -> None:
    """The trash, where anything is in it: restore a run, or delete all of them for good."""
    rows = label_queries.trash(opened.store)
    if rows.empty:
        return
    with st.expander(f"Trash: {numbers.several(len(rows), 'run')}", icon=":material/delete:", key="trash"):
        st.html(
            f'<div class="rs-note">Deleted runs are kept for {KEPT_DAYS} days and then removed for good, with their '
            "names, notes and tags.</div>"
        )
        for row in rows.head(_MOST_LISTED).itertuples():
            with st.container(
                horizontal=True, vertical_alignment="center", gap="small", key=f"quiet-{row.run_id}"
            ):
                st.html(
                    f"<div><b><bdi>{escape(visible(str(row.prompt_name)))}</bdi></b> "
                    f'<span class="rs-note">· {row.tokens:,} tokens · run {escape(queries.label(str(row.run_id)))} · '
                    f"deleted {row.deleted_at:%Y-%m-%d %H:%M} UTC</span></div>"
                )
                st.button(
                    "Restore", key=f"restore-{row.run_id}", on_click=_restore, args=(opened, [row.run_id])
                )
        if len(rows) > _MOST_LISTED:
            st.html(f'<div class="rs-note">And {len(rows) - _MOST_LISTED:,} more, deleted earlier.</div>')
        if st.session_state.get("to-empty"):
            _line(
                f"Delete {numbers.several(len(rows), 'run')} for good? That can’t be undone.",
                ("Delete for good", "confirm-empty", partial(_empty, run_ids=list(rows["run_id"]))),
                ("Keep", "keep-trash", _keep),
                opened=opened,
            )
        else:
            st.button("Empty the trash", key="empty-trash", on_click=_ask_to_empty)


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


def _line(text: str, *buttons: tuple[str, str, Callable[[Access], None]], opened: Access) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.html(f'<div class="rs-sub" role="status">{escape(text)}</div>', width="content")
        for label, key, action in buttons:
            st.button(label, key=key, on_click=action, args=(opened,))


def _what(run_ids: list[str]) -> str:
    return f"run {queries.label(run_ids[0])}" if len(run_ids) == 1 else f"{len(run_ids)} runs"


def _be(run_ids: list[str]) -> str:
    return "it is" if len(run_ids) == 1 else "they are"


def _keep(_: Access) -> None:
    st.session_state.pop("to-delete", None)
    st.session_state.pop("to-empty", None)


def _delete(opened: Access) -> None:
    st.session_state["deleted"] = each(st.session_state.pop("to-delete", []), opened.store.delete_run)


def _undo(opened: Access) -> None:
    _restore(opened, st.session_state.pop("deleted", []))


def _restore(opened: Access, run_ids: list[str]) -> None:
    st.session_state.pop("deleted", None)
    each(run_ids, opened.store.restore_run)


def _ask_to_empty() -> None:
    st.session_state["to-empty"] = True


def _empty(opened: Access, run_ids: list[str]) -> None:
    """Exactly the runs that the question counted: what another tab has deleted since can be restored."""
    _keep(opened)
    st.session_state.pop("deleted", None)
    try:
        opened.store.empty_trash(run_ids)
    except RouteSparseError as error:
        st.session_state["problems"] = [str(error)]
