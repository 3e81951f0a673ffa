"""Compare: runs, the settings of a sweep, or calibrations on one run, against a pinned baseline.

First what can be compared: what is read, what is lost, the shape; then the price of it, and head by head.
"""

from __future__ import annotations

import contextlib
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.screens.compare import conclusion, curve, figures, selection, sweep, tables
from routesparse.app.screens.compare.selection import Sides
from routesparse.app.shell import (
    certificate_link,
    identity,
    navigate,
    no_runs,
    run_header,
    setting_words,
    switch,
    view,
    way_back,
)
from routesparse.app.shell.access import access
from routesparse.app.ui import design, exports, glossary, grid, numbers, states
from routesparse.app.ui.plain_text import visible
from routesparse.app.ui.tables import of_rows, unbroken
from routesparse.engine.calibration.artifact import known
from routesparse.engine.errors import InputError
from routesparse.engine.method import families
from routesparse.engine.stats import comparison
from routesparse.engine.store import compare_queries, queries, verdicts
from routesparse.engine.store.owner_view import OwnerView

_KINDS = {"runs": "Runs", "sweep": "Settings of a sweep", "calibrations": "Calibrations on one run"}


def render() -> None:
    """Draw the page."""
    way_back.restore("compare")
    store = access().store
    st.html('<div class="rs-title">Compare</div>')
    stored = queries.runs(store)
    kind = next((name for name in ("sweep", "calibrations") if name in st.query_params), "runs")
    if stored.empty and kind != "sweep":
        no_runs.empty(
            store,
            ["Comparing needs two stored runs, or one run and two calibrations.", "Analyse a prompt first."],
        )
        return
    st.session_state["kind-choice"] = kind
    st.segmented_control(
        "What to compare",
        list(_KINDS),
        format_func=_KINDS.__getitem__,
        key="kind-choice",
        required=True,
        label_visibility="collapsed",
        on_change=_switch_kind,
    )
    pending = False
    if kind == "sweep":
        sides, pending = _sweep(store)
    else:
        sides = _runs(store, stored) if kind == "runs" else _calibrations(store, stored)
    if sides is None:
        return
    for line in sides.problems:
        states.field_error(line)
    run_header.tab_title("Compare", f"{sides.other.label} against {sides.baseline.label}")
    _pins(sides)
    rows = _sides_card(sides, stored)
    if not sides.replayed and all(map(sides.same_prompt, sides.all)):
        curve.cards(store, rows, pending)
    _units(store, sides)
    _intervals_card(sides)
    left, right = st.columns([1.25, 1], gap="small")
    with left:
        _entropy_card(store, sides, stored)
    with right:
        _settings_card(sides)


def _switch_kind() -> None:
    kind = st.session_state["kind-choice"]
    for name in ("baseline", "other", "metric", "calibrations", "sweep"):
        st.query_params.pop(name, None)
    if kind == "calibrations":
        st.query_params["calibrations"] = ",".join(known(identity.owner())[:2])
    elif kind == "sweep":
        st.query_params["sweep"] = ""


def _sweep(store: OwnerView) -> tuple[Sides | None, bool]:
    """The sides of a sweep, and whether more of them may come."""
    opened = access()
    named = sweep.chosen(opened)
    found = None if named is None else sweep.run_ids(opened, named)
    if found is None:
        return None, False
    ids, pending = found
    sides = selection.of_runs(store, ids)
    if isinstance(sides, Sides):
        return sides, pending
    for line in sides:
        states.field_error(line)
    if ids:
        st.html('<div class="rs-sub">One setting has a run: a comparison needs two.</div>')
        navigate.link("Open its routing map", "map", run=queries.short_id(store, ids[0]))
    return None, pending


def _runs(store: OwnerView, stored: pd.DataFrame) -> Sides | None:
    labels = _labels(stored)
    wanted = selection.names("runs")
    found = selection.of_runs(store, wanted)
    # The address decides what is chosen; the widget only changes it.
    st.session_state["runs-choice"] = (
        [side.run.run_id for side in found.all] if isinstance(found, Sides) else _resolved(store, wanted)
    )
    st.multiselect(
        "Runs, two to six",
        list(labels),
        format_func=labels.__getitem__,
        key="runs-choice",
        max_selections=selection.MOST,
        placeholder="Choose two to six runs",
        on_change=lambda: view.write(
            runs=",".join(queries.short_id(store, run_id) for run_id in st.session_state["runs-choice"])
        ),
    )
    if isinstance(found, Sides):
        return found
    for line in found:
        states.field_error(line)
    certificate_link.links(store, wanted)
    states.empty(
        "Choose two runs",
        [
            "Pick two to six runs above, or tick them on the Runs page. The first one is the baseline.",
            "Runs of the same prompt are paired head by head; runs of different prompts are compared unpaired.",
        ],
    )
    navigate.link("Runs", "runs")
    return None


def _resolved(store: OwnerView, wanted: list[str]) -> list[str]:
    """The runs among the names of the address that exist, for the field above an empty page."""
    found = []
    for name in wanted:
        with contextlib.suppress(InputError):
            found.append(queries.resolve(store, name))
    return found


def _labels(stored: pd.DataFrame) -> dict[str, str]:
    """Run id -> what the fields that choose runs call it."""
    return {
        row["run_id"]: " · ".join(
            [
                visible(row["prompt_name"] if numbers.is_missing(row["name"]) else row["name"]),
                setting_words.of_run(row),
                queries.label(row["run_id"]),
            ]
        )
        for row in stored.to_dict("records")
    }


def _calibrations(store: OwnerView, stored: pd.DataFrame) -> Sides | None:
    run = run_header.open_run(store, "Compare")
    if run is None:
        return None
    labels = _labels(stored)
    # The address decides; the widget only changes it.
    st.session_state["run-choice"] = run.run_id
    st.selectbox(
        "Run whose stored scores are used",
        list(labels),
        format_func=labels.__getitem__,
        key="run-choice",
        on_change=lambda: view.write(run=queries.short_id(store, st.session_state["run-choice"])),
    )
    bundled = known(identity.owner())
    wanted = selection.names("calibrations")
    st.session_state["calibrations-choice"] = [name for name in wanted if name in bundled]
    st.multiselect(
        "Calibrations",
        bundled,
        key="calibrations-choice",
        max_selections=selection.MOST,
        placeholder="Choose two calibrations",
        on_change=lambda: view.write(calibrations=",".join(st.session_state["calibrations-choice"])),
    )
    found = selection.of_calibrations(store, run, wanted)
    if isinstance(found, Sides):
        return found
    for line in found:
        states.field_error(line)
    if len(st.session_state["calibrations-choice"]) > 1:  # refused, for the reason above
        query: dict[str, str] = {"from": queries.short_id(store, run.run_id), "with_policy": "priced"}
        navigate.link("Analyse the prompt again under priced", "new", **query)
        return None
    states.empty(
        "Choose two calibrations",
        [
            "Their λ and δ are applied to the stored scores of this run: which heads would have chosen differently?",
            "Nothing is run again, so certificates, errors and measured times stay those of the run.",
        ],
    )
    return None


def _pins(sides: Sides) -> None:
    """Which side is the baseline, and which one the map shows against it."""
    labels = {side.key: side.label for side in sides.all}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="pins"):
        show = labels.__getitem__
        others = [side.key for side in sides.others]
        switch.field("baseline", "Baseline", list(labels), sides.baseline.key, format_func=show)
        switch.field("other", "Shown against it", others, sides.other.key, format_func=show)


def _sides_card(sides: Sides, stored: pd.DataFrame) -> pd.DataFrame:
    """The sides in words and as a table; their rows."""
    of_sides = stored[stored["run_id"].isin([side.run.run_id for side in sides.all])]
    judged = dict(zip(of_sides["run_id"], verdicts.of_rows(of_sides), strict=True))
    times = {
        side.key: conclusion.time_against(stored, sides.baseline.run, side.run)
        for side in sides.others
        if not sides.replayed and sides.same_prompt(side)
    }
    told = "".join(
        f"<p><b>{unbroken(side.label)}</b>: {unbroken(conclusion.sentence(sides, side, judged))}</p>"
        for side in sides.others
    )
    st.html(f'<div class="rs-concludes">{told}</div>')
    rows = tables.sides_rows(sides, judged)
    with st.container(border=True, key="card-sides", gap="xsmall"):
        st.html(
            f'<div class="rs-h">{"Calibrations" if sides.replayed else "Runs"} against the baseline</div>'
        )
        st.html(tables.sides_html(sides, rows, times))
        exports.chart_foot("compared", tables.pairing(sides), rows, "sides")
    return rows


def _units(store: OwnerView, sides: Sides) -> None:
    base, other = sides.baseline, sides.other
    pairs = comparison.pair(base.choices, other.choices)
    if pairs.empty:
        states.empty(
            "No unit was routed on both sides",
            ["One of the two is below break-even or holds no decisions. Choose another one to see a map."],
        )
        return
    if not sides.same_segments(other):
        cut = " and ".join(
            f"{side.label} into {numbers.several(side.run.segments, 'segment')}" for side in (base, other)
        )
        states.empty(
            "The segments differ",
            [
                f"{cut}, cut at other places: a segment’s number means other tokens, so nothing is shown head by head.",
                "The means below are over all units of each side, not paired. To compare heads, analyse the prompt "
                "again with the baseline’s segment length.",
            ],
        )
        return
    segments = int(pairs["segment"].max()) + 1
    text = st.query_params.get("segment", "")
    segment = view.number("segment", segments)
    if text and segment is None:
        states.note(f"These sides share no segment {text[:12]} (they have 0 to {segments - 1}): 0 is shown.")
    segment = segment or 0
    left, right = st.columns([1.6, 1], gap="small")
    with left:
        here = pairs[(pairs["segment"] == segment) & (pairs["batch_index"] == 0)]
        _map_card(store, sides, here, segment, segments)
    with right:
        _transition_card(sides, pairs)


def _map_card(store: OwnerView, sides: Sides, pairs: pd.DataFrame, segment: int, segments: int) -> None:
    theme = design.current_theme()
    unknown = ("lower_mass", "audited_mass", "audited_error") if sides.replayed else ()
    metrics = {name: values[0] for name, values in figures.MAPS.items() if name not in unknown}
    metric = switch.chosen("metric", metrics)
    run = sides.other.run
    shape = (max(run.layers, sides.baseline.run.layers), max(run.heads, sides.baseline.run.heads))
    with st.container(border=True, key="card-difference", gap="xsmall"):
        st.html('<div class="rs-h">What differs, head by head</div>')
        if not sides.same_prompt(sides.other):
            states.note(
                "These are different prompts: a head may differ because of the prompt as much as of a setting."
            )
        switch.buttons("metric", metrics, metric)
        chart, rows = figures.difference_map(pairs, metric, shape, theme)
        picked = grid.show(
            chart, "difference", f"What differs, {shape[0]} layers by {shape[1]} heads", picks=True
        )
        if picked is not None:
            unit = queries.Unit(sides.other.run.run_id, *picked, segment)
            way_back.remember("compare")
            navigate.go("map", **view.address_of(store, unit))
        st.html(figures.legend(metric, rows, shape[1], theme))
        for side in (sides.baseline, sides.other):
            if void := tables.conformal_void(metric, side):
                st.html(f'<div class="rs-note">{escape(side.label)}:{void}</div>')
        if segments > 1:
            st.session_state["segment-choice"] = segment + 1
            with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
                st.html(f'<div class="rs-sub">Segment {segment + 1} of {segments}</div>', width="content")
                st.slider(
                    "Segment",
                    1,
                    segments,
                    key="segment-choice",
                    label_visibility="collapsed",
                    width=220,
                    on_change=lambda: view.write(segment=st.session_state["segment-choice"] - 1),
                )
        exports.chart_foot(
            f"difference-{metric}-{sides.baseline.key}-{sides.other.key}",
            f"n = {len(rows):,} units of segment {segment + 1} · other minus baseline, {figures.MAPS[metric][1]} · "
            f"click a cell to open its head · source: {_source(sides)}",
            rows,
            "difference",
            chart="difference",
        )


def _source(sides: Sides) -> str:
    return "candidate_score, replayed" if sides.replayed else "head_choice and audit"


def _transition_card(sides: Sides, pairs: pd.DataFrame) -> None:
    counts = comparison.transitions(pairs, families.in_order({*pairs["pattern_a"], *pairs["pattern_b"]}))
    with st.container(border=True, key="card-transition", gap="xsmall"):
        st.html('<div class="rs-h">From which pattern to which</div>')
        grid.show(
            figures.transition_matrix(counts, design.current_theme()),
            "transitions",
            "From which pattern, in rows, to which, in columns",
        )
        exports.chart_foot(
            f"transitions-{sides.baseline.key}-{sides.other.key}",
            f"n = {len(pairs):,} units of all segments · rows: {sides.baseline.label}, columns: {sides.other.label}",
            counts.reset_index(names="baseline"),
            "transitions",
            chart="transitions",
        )


def _intervals_card(sides: Sides) -> None:
    """Mean differences to the baseline with their intervals, paired where the prompt is the same."""
    parts = (
        comparison.differences(sides.baseline.choices, side.choices, sides.paired(side)).assign(side=side.key)
        for side in sides.others
    )
    found = pd.concat([part for part in parts if len(part)] or [pd.DataFrame(columns=["metric", "side"])])
    with st.container(border=True, key="card-intervals", gap="xsmall"):
        st.html(f'<div class="rs-h">Mean differences{glossary.mark("paired")}</div>')
        st.html(tables.intervals_html(sides, found))
        exports.chart_foot(
            f"differences-{sides.baseline.key}",
            "other minus baseline, mean over units · 95 % interval, resampled by layer: how the difference varies "
            f"over heads, not over prompts · bold: the interval excludes 0 · source: {_source(sides)}",
            found,
            "intervals",
        )


def _entropy_card(store: OwnerView, sides: Sides, stored: pd.DataFrame) -> None:
    """How much each head's choice depends on the domain, over all stored runs of the baseline's weights."""
    run = sides.baseline.run
    same = stored[stored["model_revision"] == run.model_revision]
    domains = same["domain"].dropna().nunique()
    with st.container(border=True, key="card-entropy", gap="xsmall"):
        st.html(
            f'<div class="rs-h">How much a head’s choice depends on the domain{glossary.mark("choice_entropy")}</div>'
        )
        if domains < 2:
            st.html(
                '<div class="rs-sub">Needs stored runs of at least two domains with these weights; '
                f"there {'is one' if domains else 'is none'}. Analyse prompts with a domain set.</div>"
            )
            return
        rows = comparison.choice_entropy(compare_queries.patterns_by_domain(store, list(same["run_id"])))
        chart, legend = figures.entropy_map(rows, design.current_theme())
        grid.show(chart, "entropy", "Bits of each head’s choice over domains")
        st.html(legend)
        exports.chart_foot(
            f"choice-entropy-{run.model}",
            f"n = {int(same['domain'].notna().sum())} stored runs of {domains} domains, model {run.model} · letter: "
            "the most frequent family · source: head_choice",
            rows,
            "entropy",
            chart="entropy",
        )


def _settings_card(sides: Sides) -> None:
    """The settings that differ; equal ones are hidden."""
    table = comparison.settings_table({side.key: side.settings for side in sides.all})
    different = table[~table["equal"]]
    with st.container(border=True, key="card-settings", gap="xsmall"):
        st.html('<div class="rs-h">Settings that differ</div>')
        if different.empty:
            st.html('<div class="rs-sub">None: the same settings, model, machine and versions.</div>')
        else:
            st.html(of_rows(tables.settings_cells(sides, different), left=1 + len(sides.all)))
        exports.chart_foot(
            "settings",
            f"{len(table) - len(different)} equal settings are hidden; the files hold all {len(table)}",
            table.astype(str),
            "settings",
        )
