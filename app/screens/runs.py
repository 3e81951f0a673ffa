"""Runs: every stored run in one table, to filter, sort, open, delete and export; and what was rejected."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app import exports, numbers, states
from routesparse.app.access import Access, access
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.store import queries, spool

_FILTERS = {"domain": "Domain", "model": "Model", "device": "Device", "policy": "Policy"}


def render() -> None:
    """Draw the page."""
    opened = access()
    _refresh_when_changed(opened.store.generation)
    st.html('<div class="rs-title">Runs</div>')
    _undo_bar(opened)
    values = queries.filter_values(opened.store)
    if not values["model"]:
        states.empty(
            "No runs yet",
            [
                "Analyse a text file: the run appears here by itself, within a few seconds.",
                "The bundled demo model needs no GPU and no download.",
            ],
            "routesparse analyze FILE",
        )
    else:
        _table(opened, queries.runs(opened.store, _filters(values)))
    _rejected(opened)


def _filters(values: dict[str, list[str]]) -> queries.RunFilter:
    """The filter row; its values live in the address. A choice among one value is no choice."""
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
        event: Any = st.dataframe(
            _shown(runs),
            column_config=_columns(),
            hide_index=True,
            height="auto" if len(runs) <= 16 else 560,
            placeholder=numbers.NOT_MEASURED,
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
            "Click a row to open its routing map; tick rows to delete or export them. Prefill: probe, routing, "
            "attention and all other layers of one prompt. Coverage: share of this prompt's audited sparse units "
            "whose true mass is at least the certified one; one prompt has no interval.",
            picked if len(picked) else runs,
            "runs",
        )


def _shown(runs: pd.DataFrame) -> pd.DataFrame:
    """The columns of the table, in its order."""
    return pd.DataFrame(
        {
            "prompt": runs["prompt_name"].where(~runs["is_sample"], runs["prompt_name"] + "  · sample"),
            "domain": runs["domain"].fillna("–"),
            "tokens": runs["tokens"],
            "model": runs["model"],
            "device": runs["device"].map(numbers.device),
            "policy": runs["policy"],
            "limit": runs["budget"].map(numbers.short_limit, na_action="ignore").fillna("none"),
            "tau": runs["tau"],
            "fallback": runs["fallback_share"] * 100,
            "coverage": runs["coverage"] * 100,
            "prefill": runs["total_ms"],
            "dense": runs["dense_ms"],
            "speedup": runs["speedup"],
            "density": runs["density"] * 100,
            "created": pd.to_datetime(runs["created_at"], utc=True, errors="coerce"),
            "run": runs["run_id"].map(queries.label),
        }
    )


def _columns() -> dict[str, Any]:
    column = st.column_config
    return {
        "prompt": column.TextColumn("Prompt", width=130),
        "domain": column.TextColumn("Domain", width=66),
        "tokens": column.NumberColumn("Tokens", format="localized", width=60),
        "model": column.TextColumn("Model", width=52),
        "device": column.TextColumn("Device", width=86),
        "policy": column.TextColumn("Policy", width=66),
        "limit": column.TextColumn(
            "Tℓ", width=58, help="Latency limit of a layer: µs, or share of dense attention"
        ),
        "tau": column.NumberColumn("τ", format="%.2f", width=46, help="Mass that a certificate must reach"),
        "fallback": column.NumberColumn(
            "Fallback", format="%.1f %%", width=86, help="Units that became dense by fallback"
        ),
        "coverage": column.NumberColumn("Coverage", format="%.1f %%", width=86),
        "prefill": column.NumberColumn("Prefill ms", format="%.0f", width=70),
        "dense": column.NumberColumn("Dense ms", format="%.0f", width=86),
        "speedup": column.NumberColumn("Speedup", format="%.2f×", width=86),
        "density": column.NumberColumn(
            "Kept", format="%.1f %%", width=66, help="Kept share of the causal area, mean over units"
        ),
        "created": column.DatetimeColumn(
            "Created (UTC)", format="YYYY-MM-DD HH:mm", width=124, timezone="UTC"
        ),
        "run": column.TextColumn("Run", width=78),
    }


def _actions(place: Any, opened: Access, runs: pd.DataFrame, picked: pd.DataFrame) -> None:
    with place:
        count = f"{len(runs):,} run{'s' if len(runs) != 1 else ''}"
        st.html(
            f'<div class="rs-sub">{count}{f" · {len(picked)} ticked" if len(picked) else ""}</div>',
            width="content",
        )
        if len(picked) == 1 and st.button("Open map", key="open-map", type="primary"):
            _open(opened, picked.iloc[0]["run_id"])
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


def _delete(opened: Access, run_ids: list[str]) -> None:
    st.session_state["deleted"] = _each(run_ids, opened.store.delete_run)


def _restore(opened: Access) -> None:
    _each(st.session_state.pop("deleted", []), opened.store.restore_run)


def _each(run_ids: list[str], action: Callable[[str], None]) -> list[str]:
    """Run the action per run, keep the problems for the page, return what worked."""
    done = []
    for run_id in run_ids:
        try:
            action(run_id)
        except RouteSparseError as error:
            st.session_state.setdefault("problems", []).append(str(error))
        else:
            done.append(run_id)
    return done


def _undo_bar(opened: Access) -> None:
    for line in st.session_state.pop("problems", []):
        st.warning(line)
    for line in opened.waiting:
        st.warning(f"A bundle waits in the spool: {line}")
    deleted = st.session_state.get("deleted")
    if deleted:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            what = f"run {queries.label(deleted[0])}" if len(deleted) == 1 else f"{len(deleted)} runs"
            st.html(
                f'<div class="rs-sub">Deleted {what}; the bundle is in the trash folder.</div>',
                width="content",
            )
            st.button("Undo", key="undo-delete", on_click=_restore, args=(opened,))


def _rejected(opened: Access) -> None:
    rejected = spool.rejections()
    problems = [*rejected, *opened.sample_problems]
    if not problems:
        return
    title = f"{len(problems)} rejected bundle{'s' if len(problems) != 1 else ''}"
    with st.expander(title, icon=":material/error_outline:", expanded=not queries.runs(opened.store).size):
        st.html(
            '<div class="rs-note">Not stored; set aside in the spool\'s rejected folder. Copy the bundle again '
            "or run the analysis again.</div>"
        )
        for rejection in rejected:
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                st.text(
                    f"{rejection.name} · {rejection.rejected_at[:16].replace('T', ' ')}\n{rejection.reason}"
                )
                st.button(
                    "Discard",
                    key=f"discard-{rejection.name}",
                    on_click=spool.discard_rejection,
                    args=(rejection.name,),
                )
        for rejection in opened.sample_problems:
            st.text(f"sample {rejection.name}\n{rejection.reason}")


@st.fragment(run_every="3s")
def _refresh_when_changed(generation: int) -> None:
    """Look into the spool every few seconds and draw the page again when something came in."""
    opened = access()
    opened.look_into_spool()
    if opened.store.generation != generation:
        st.rerun()
