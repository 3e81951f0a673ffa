"""Runs, the first page: what this is, jobs, every stored run in one table, certificates, trash, rejected bundles."""

from __future__ import annotations

import zlib
from dataclasses import replace
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.runs import certificates_card, filters, jobs, label_form, run_table, trash_card
from routesparse.app.shell import address, boundary, navigate, new_run_address, run_header
from routesparse.app.shell.access import Access, access
from routesparse.app.ui import elements, exports, numbers, states, tables
from routesparse.engine.config import RouterConfig
from routesparse.engine.export.plain_text import visible
from routesparse.engine.rows import RunRow
from routesparse.engine.store import label_queries, queries, spool, verdicts

_MOST_COMPARED = 6
_REFRESH_EVERY_S = 8.0  # a look takes .09 s of a core, and an untouched page may take 2 % of one
_WHAT = (
    "RouteSparse reads a long prompt faster: it measures which keys each attention head needs on your prompt, and "
    "leaves out the rest. Every run has a verdict, one colour and one sentence: what speaks against trusting it, if "
    "anything does."
)


@address.names("job q domain model device policy tag source day level reason columns grouped")
def render() -> None:
    """Draw the page."""
    opened = access()
    boundary.timed(_refresh_when_changed, _REFRESH_EVERY_S)(_seen(opened))
    store = opened.store
    st.html(f'<div class="rs-title">Runs</div><div class="rs-sub">{_WHAT}</div>')
    sample = store.made("sample", [], lambda: _sample(queries.runs(store)))
    with st.container(horizontal=True, gap="small", key="actions-first"):
        if st.button("Analyse my prompt", type="primary", key="analyse"):
            navigate.go("new")
        if sample is not None and st.button("Tour a sample", key="tour"):
            navigate.go("map", run=queries.short_id(store, sample), tour=1)
    trash_card.bar(opened)
    for waiting in opened.waiting():
        states.field_error(f"A bundle waits, tried again every few seconds: {waiting.reason}")
    jobs.cards(opened)
    values = queries.filter_values(store)
    if values["model"]:
        _table(opened, filters.row(values))
    else:
        deleted = run_header.trashed(store)
        states.empty(
            f"No runs: {deleted}, below" if deleted else "No runs yet",
            [
                "Analyse a prompt with the button above, or a text file on the command line: the run appears here by "
                "itself, within a few seconds.",
                "The bundled demo model needs no GPU and no download.",
            ],
            states.ANALYZE,
        )
    certificates_card.card(opened)
    trash_card.card(opened)
    _rejected(opened)


def _sample(runs: pd.DataFrame) -> str | None:
    """The sample to tour: one whose loss was measured under the default policy, audited rather than not, with
    fallbacks rather than without; without a sample a run of the user's."""
    routed = runs[runs["routed"]]
    if routed.empty:
        return None
    eventful = routed["expanded_units"] + routed["dense_fallback_units"] > 0
    measured = (routed["policy"] == RouterConfig.policy) & routed["loss_true"].notna()
    ranked = routed.assign(measured=measured, eventful=eventful, audited=routed["audit_rows"] > 0)
    first = ["is_sample", "measured", "audited", "eventful"]
    ranked = ranked.sort_values(first, ascending=False, kind="stable")
    return str(ranked.iloc[0]["run_id"])


def _table(opened: Access, limits: queries.RunFilter) -> None:
    with elements.card("runs"):
        actions = st.container(horizontal=True, gap="small", vertical_alignment="center", key="actions")
        with st.container(horizontal=True, gap="small", vertical_alignment="center", key="quiet-shape"):
            baseline = _baseline(opened)
            chosen, grouped = filters.shape()
            if baseline is not None:
                _baseline_bar(opened, baseline)
        store = opened.store  # one view: what was read of it before a change is not kept for afterwards
        stored = queries.runs(store, limits)
        judged = store.made("verdicts", [list(stored["run_id"])], lambda: verdicts.of_rows(stored))
        runs, found = filters.judged(stored, judged)
        if runs.empty:
            states.empty("No run passes the filter", ["Clear a field above to see the others again."])
            return
        table = store.made(
            "runs",
            [list(runs["run_id"]), None if baseline is None else baseline.run_id, grouped],
            lambda: run_table.rows(runs, found, baseline, grouped),
        )
        st.html(tables.sideways(", or take others away under Columns"))
        ticked = st.session_state.get("ticked", [])
        order = run_table.order(table, chosen, grouped)
        event: Any = st.dataframe(
            run_table.sent(table, order, found),
            column_order=order,
            column_config=run_table.columns(),
            hide_index=True,
            height="auto" if len(runs) <= 16 else 560,
            placeholder="–",
            on_select="rerun",
            selection_mode=["multi-row", "single-cell"],
            # Selections are row numbers: another list of runs is another table, with the same runs ticked.
            selection_default={
                "selection": {"rows": [row for row, name in enumerate(runs["run_id"]) if name in ticked]}
            },
            key=f"runs-table-{zlib.crc32(''.join(runs['run_id']).encode()):08x}",
        )
        selection = event.selection
        if selection.cells:
            _open(opened, runs.iloc[selection.cells[0][0]]["run_id"])
        picked = runs.iloc[[row for row in selection.rows if row < len(runs)]]
        _actions(actions, opened, runs, picked)
        exported = runs.assign(
            verdict=[one.level for one in found], verdict_text=[one.sentence for one in found]
        )
        exports.chart_foot(
            "runs",
            f"n = {numbers.several(len(runs), 'run')} · click a row to open its routing map, tick rows to name, run "
            "again, pin, compare, delete or export them; click a heading to sort · "
            "–: not measured · source: run",
            exported.loc[picked.index] if len(picked) else exported,
            "runs",
        )


def _actions(place: Any, opened: Access, runs: pd.DataFrame, picked: pd.DataFrame) -> None:
    with place:
        ticked = f" · {len(picked)} ticked" if len(picked) else ""
        st.html(f'<div class="rs-sub">{numbers.several(len(runs), "run")}{ticked}</div>', width="content")
        if len(picked) == 1:
            run_id = picked.iloc[0]["run_id"]
            if st.button("Open map", key="open-map", type="primary"):
                _open(opened, run_id)
            told = "Opens New run with this prompt and these settings"
            if st.button("Run again", key="run-again", help=told) and (
                run := queries.run(opened.store, run_id)
            ):
                source = {"from": queries.short_id(opened.store, run_id)}
                navigate.go("new", **source, **new_run_address.of_run(run))
            st.button(
                "Pin as baseline",
                key="pin",
                on_click=_pin,
                args=(opened, run_id, True),
                help="Compare then starts from this run, and the prefill times of its prompt’s other runs are held "
                "against its own. It stays pinned until you pin another one or unpin it",
            )
            label_form.draw(opened, run_id)
        compared = _compared(opened, _in_order_of_ticking(list(picked["run_id"])))
        if 2 <= len(compared) <= _MOST_COMPARED and st.button(
            "Compare", key="compare-runs", help="Against the pinned baseline, else against the first ticked"
        ):
            names = ",".join(queries.short_id(opened.store, run_id) for run_id in compared)
            navigate.go("compare", runs=names)
        if len(compared) > _MOST_COMPARED:
            st.html(f'<div class="rs-sub">At most {_MOST_COMPARED} can be compared</div>', width="content")
        if len(picked):
            trash_card.delete_button(opened, list(picked["run_id"]), "delete-runs")


def _open(opened: Access, run_id: str) -> None:
    navigate.go("map", run=queries.short_id(opened.store, run_id))


def _compared(opened: Access, ticked: list[str]) -> list[str]:
    """The ticked runs behind the pinned baseline: the first one is what Compare compares with."""
    baseline = _baseline(opened)
    if not ticked or baseline is None:
        return ticked
    return [baseline.run_id, *(run_id for run_id in ticked if run_id != baseline.run_id)]


def _in_order_of_ticking(ticked: list[str]) -> list[str]:
    """The table names ticked rows from top to bottom; the first one ticked is what Compare compares with."""
    before = [run_id for run_id in st.session_state.get("ticked", []) if run_id in ticked]
    st.session_state["ticked"] = [*before, *(run_id for run_id in ticked if run_id not in before)]
    return list(st.session_state["ticked"])


def _pin(opened: Access, run_id: str, pinned: bool) -> None:
    def keep(name: str) -> None:
        opened.store.set_label(name, replace(label_queries.label(opened.store, name), pinned=pinned))

    trash_card.each([run_id], keep)


def _baseline(opened: Access) -> RunRow | None:
    """The pinned run; one that is deleted is none."""
    pinned = label_queries.pinned(opened.store)
    return None if pinned is None else queries.run(opened.store, pinned)


def _baseline_bar(opened: Access, baseline: RunRow) -> None:
    st.html(
        f'<div class="rs-sub">Baseline: <b><bdi>{escape(visible(baseline.prompt_name))}</bdi></b>, run '
        f"{escape(queries.label(baseline.run_id))}, prefill {numbers.millis(baseline.total_ms)}</div>",
        width="content",
    )
    st.button("Unpin", key="unpin", type="tertiary", on_click=_pin, args=(opened, baseline.run_id, False))


def _discard(name: str) -> None:
    trash_card.each([name], spool.discard_rejection)


def _rejected(opened: Access) -> None:
    rejected = opened.rejections()
    problems = [*rejected, *opened.sample_problems]
    if not problems:
        return
    title = numbers.several(len(problems), "rejected bundle")
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
                    "Discard", key=f"discard-{rejection.name}", on_click=_discard, args=(rejection.name,)
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
