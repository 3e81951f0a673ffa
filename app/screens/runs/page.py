"""Runs: every stored run in one table, to filter, sort, open, delete and export; and what was rejected."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.runs import run_table
from routesparse.app.shell import boundary, jobs_view, navigate, new_run_address
from routesparse.app.shell.access import Access, access
from routesparse.app.ui import exports, numbers, states
from routesparse.engine.errors import InputError, RouteSparseError, StoreError
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries, spool, verdicts
from routesparse.engine.verdict import Verdict

_MOST_COMPARED = 6
_REFRESH_EVERY_S = 5.0
_FILTERS = {"domain": "Domain", "model": "Model", "device": "Device", "policy": "Policy"}


def render() -> None:
    """Draw the page."""
    opened = access()
    boundary.timed(_refresh_when_changed, _REFRESH_EVERY_S)(_seen(opened))
    st.html('<div class="rs-title">Runs</div>')
    _undo_bar(opened)
    _active_jobs(opened)
    values = queries.filter_values(opened.store)
    if not values["model"]:
        states.empty(
            "No runs yet",
            [
                "Analyse a prompt on the New run page, or a text file on the command line: the run appears here by "
                "itself, within a few seconds.",
                "The bundled demo model needs no GPU and no download.",
            ],
            states.ANALYZE,
        )
        navigate.link("New run", "new")
    else:
        _table(opened, queries.runs(opened.store, _filters(values)))
    _rejected(opened)


def _filters(values: dict[str, list[str]]) -> queries.RunFilter:
    """The filter row; its values live in the address. A filter with a single value is left out."""
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        text = st.text_input("Prompt or run id", key="q", bind="query-params", placeholder="all", width=230)
        chosen = {}
        for name, label in _FILTERS.items():
            options = values[name]
            chosen[name] = (
                tuple(
                    st.multiselect(
                        label, options, key=name, bind="query-params", placeholder="all", width=210
                    )
                )
                if len(options) > 1
                else ()
            )
    return queries.RunFilter(text, chosen["domain"], chosen["model"], chosen["device"], chosen["policy"])


def _table(opened: Access, runs: pd.DataFrame) -> None:
    if runs.empty:
        states.empty("No run passes the filter", ["Clear a field above to see the others again."])
        return
    with st.container(border=True, key="card-runs", gap="xsmall"):
        actions = st.container(horizontal=True, gap="small", vertical_alignment="center", key="actions")
        baseline = _baseline(opened)
        if baseline is not None:
            _baseline_bar(baseline)
        found = verdicts.of_rows(runs)
        table, shared = run_table.rows(runs, found, baseline)
        styled, order = run_table.colored(table, found)
        if shared:
            st.html(run_table.shared_html(shared))
        event: Any = st.dataframe(
            styled,
            column_order=order,
            column_config=run_table.columns(),
            hide_index=True,
            height="auto" if len(runs) <= 16 else 560,
            placeholder="–",
            on_select="rerun",
            selection_mode=["multi-row", "single-cell"],
            # Selections are row numbers: another list of runs must not inherit them.
            key=f"runs-table-{zlib.crc32(''.join(runs['run_id']).encode()):08x}",
        )
        selection = event.selection
        if selection.cells:
            _open(opened, runs.iloc[selection.cells[0][0]]["run_id"])
        picked = runs.iloc[[row for row in selection.rows if row < len(runs)]]
        _actions(actions, opened, runs, picked)
        exports.chart_foot(
            "runs",
            f"n = {numbers.several(len(runs), 'run')} · click a row to open its routing map, tick rows to run again, "
            "pin, compare, delete or export them; click a heading to sort, the eye for more columns · "
            "–: not measured · source: run",
            _exported(runs, found, picked),
            "runs",
        )


def _exported(runs: pd.DataFrame, found: Sequence[Verdict], picked: pd.DataFrame) -> pd.DataFrame:
    """The rows to download, the ticked ones if any are, each with its verdict."""
    judged = runs.assign(verdict=[one.level for one in found], verdict_text=[one.sentence for one in found])
    return judged.loc[picked.index] if len(picked) else judged


def _actions(place: Any, opened: Access, runs: pd.DataFrame, picked: pd.DataFrame) -> None:
    with place:
        count = f"{len(runs):,} run{'s' if len(runs) != 1 else ''}"
        st.html(
            f'<div class="rs-sub">{count}{f" · {len(picked)} ticked" if len(picked) else ""}</div>',
            width="content",
        )
        if len(picked) == 1:
            if st.button("Open map", key="open-map", type="primary"):
                _open(opened, picked.iloc[0]["run_id"])
            if st.button(
                "Run again", key="run-again", help="Opens New run with this prompt and these settings"
            ):
                _run_again(opened, picked.iloc[0]["run_id"])
            st.button(
                "Pin as baseline",
                key="pin",
                on_click=_pin,
                args=(opened, picked.iloc[0]["run_id"]),
                help="The prefill times of the other runs are then shown against this one",
            )
        compared = _compared(opened, list(picked["run_id"]))
        if 2 <= len(compared) <= _MOST_COMPARED and st.button(
            "Compare", key="compare-runs", help="Against the pinned baseline, else against the first ticked"
        ):
            names = ",".join(queries.short_id(opened.store, run_id) for run_id in compared)
            navigate.go("compare", runs=names)
        if len(compared) > _MOST_COMPARED:
            st.html(f'<div class="rs-sub">At most {_MOST_COMPARED} can be compared</div>', width="content")
        if len(picked):
            st.button(
                "Delete",
                key="delete-runs",
                on_click=_delete,
                args=(opened, list(picked["run_id"])),
                help="Can be undone until you leave this session",
            )


def _open(opened: Access, run_id: str) -> None:
    st.session_state["run"] = run_id
    st.switch_page(
        st.session_state["pages"]["map"], query_params={"run": queries.short_id(opened.store, run_id)}
    )


def _compared(opened: Access, ticked: list[str]) -> list[str]:
    """The ticked runs behind the pinned baseline: the first one is what Compare compares with."""
    baseline = _baseline(opened)
    if not ticked or baseline is None:
        return ticked
    return [baseline.run_id, *(run_id for run_id in ticked if run_id != baseline.run_id)]


def _run_again(opened: Access, run_id: str) -> None:
    """New run reads its settings from the address."""
    run = queries.run(opened.store, run_id)
    if run is None:
        return
    navigate.go("new", **{"from": queries.short_id(opened.store, run_id)}, **new_run_address.of_run(run))


def _pin(opened: Access, run_id: str) -> None:
    st.query_params["baseline"] = queries.short_id(opened.store, run_id)


def _unpin() -> None:
    st.query_params.pop("baseline", None)


def _baseline(opened: Access) -> RunRow | None:
    """The run that the address pins; a deleted one is unpinned."""
    named = st.query_params.get("baseline")
    if not named:
        return None
    try:
        return queries.run(opened.store, queries.resolve(opened.store, named))
    except InputError:
        _unpin()
        return None


def _baseline_bar(baseline: RunRow) -> None:
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="quiet-baseline"):
        st.html(
            f'<div class="rs-sub">Baseline: <b>{escape(baseline.prompt_name)}</b>, run '
            f"{escape(queries.label(baseline.run_id))}, prefill {numbers.millis(baseline.total_ms)}. Runs on other "
            "prompts are compared unpaired.</div>",
            width="content",
        )
        st.button("Unpin", key="unpin", type="tertiary", on_click=_unpin)


def _delete(opened: Access, run_ids: list[str]) -> None:
    st.session_state["deleted"] = _each(run_ids, opened.store.delete_run)


def _restore(opened: Access) -> None:
    _each(st.session_state.pop("deleted", []), opened.store.restore_run)


def _discard(name: str) -> None:
    _each([name], spool.discard_rejection)


def _each(names: list[str], action: Callable[[str], None]) -> list[str]:
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


def _undo_bar(opened: Access) -> None:
    for line in st.session_state.pop("problems", []):
        states.field_error(line)
    for waiting in opened.waiting():
        states.field_error(f"A bundle waits, tried again every few seconds: {waiting.reason}")
    deleted = st.session_state.get("deleted")
    if deleted:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            what = f"run {queries.label(deleted[0])}" if len(deleted) == 1 else f"{len(deleted)} runs"
            st.html(
                f'<div class="rs-sub">Deleted {what}; the bundle is in the trash folder.</div>',
                width="content",
            )
            st.button("Undo", key="undo-delete", on_click=_restore, args=(opened,))


def _active_jobs(opened: Access) -> None:
    """Jobs that wait or run, above the runs that they will become; a broken queue leaves the runs readable."""
    try:
        jobs = opened.queue.jobs(("queued", "running"), 6)
        if jobs:
            with st.container(border=True, key="card-active-jobs", gap="xsmall"):
                st.html('<div class="rs-h">Active jobs</div>')
                jobs_view.worker_note(opened.queue)
                jobs_view.table(opened.queue, jobs)
    except StoreError as error:
        states.field_error(f"{error}. Stored runs are not affected.")


def _rejected(opened: Access) -> None:
    rejected = opened.rejections()
    problems = [*rejected, *opened.sample_problems]
    if not problems:
        return
    title = f"{len(problems)} rejected bundle{'s' if len(problems) != 1 else ''}"
    with st.expander(title, icon=":material/error_outline:", expanded=not queries.runs(opened.store).size):
        st.html(
            '<div class="rs-note">These bundles were not stored; they are in the spool\'s rejected folder. Copy '
            "a bundle again, or run its analysis again.</div>"
        )
        for rejection in rejected:
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                st.text(
                    f"{rejection.name} · {rejection.rejected_at[:16].replace('T', ' ')}\n{rejection.reason}"
                )
                st.button(
                    "Discard",
                    key=f"discard-{rejection.name}",
                    on_click=_discard,
                    args=(rejection.name,),
                )
        for rejection in opened.sample_problems:
            st.text(f"sample {rejection.name}\n{rejection.reason}")


def _seen(opened: Access) -> tuple[int, set[str]]:
    """What makes this page draw itself again: the stored runs and the names of those that wait."""
    return opened.store.generation, {waiting.name for waiting in opened.waiting()}


def _refresh_when_changed(seen: tuple[int, set[str]]) -> None:
    """Look into the spool every few seconds and draw the page again when something came in or has to wait."""
    opened = access()
    opened.look_into_spool()
    if _seen(opened) != seen:
        st.rerun()
