"""Compare: runs, or two calibrations on one run, against a pinned baseline: what changed, by how much, how surely."""

from __future__ import annotations

import contextlib
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.screens.compare import cards, conclusion, figures, selection, tables
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
from routesparse.app.ui import design, exports, grid, numbers, states, tuned_prices
from routesparse.app.ui.plain_text import visible
from routesparse.app.ui.tables import unbroken
from routesparse.engine.calibration.artifact import known
from routesparse.engine.errors import InputError
from routesparse.engine.method import families
from routesparse.engine.stats import comparison
from routesparse.engine.store import queries, verdicts
from routesparse.engine.store.owner_view import OwnerView

_KINDS = {"runs": "Runs", "calibrations": "Calibrations on one run"}


def render() -> None:
    """Draw the page."""
    way_back.restore("compare")
    store = access().store
    st.html('<div class="rs-title">Compare</div>')
    stored = queries.runs(store)
    if stored.empty:
        no_runs.empty(
            store,
            ["Comparing needs two stored runs, or one run and two calibrations.", "Analyse a prompt first."],
        )
        return
    kind = "calibrations" if "calibrations" in st.query_params else "runs"
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
    found = _runs(store, stored) if kind == "runs" else _calibrations(store, stored)
    if found is None:
        return
    sides = found
    for line in sides.problems:
        states.field_error(line)
    run_header.tab_title("Compare", f"{sides.other.label} against {sides.baseline.label}")
    _pins(sides)
    _sides_card(sides, stored)
    _units(store, sides)
    cards.intervals(sides)
    left, right = st.columns([1.25, 1], gap="small")
    with left:
        cards.entropy(store, sides, stored)
    with right:
        cards.settings(sides)
    tuned_prices.card(identity.owner(), sides.baseline.run.model_revision)


def _switch_kind() -> None:
    for name in ("baseline", "other", "metric"):
        st.query_params.pop(name, None)
    if st.session_state["kind-choice"] == "calibrations":
        st.query_params["calibrations"] = ",".join(known(identity.owner())[:2])
    else:
        st.query_params.pop("calibrations", None)


def _runs(store: OwnerView, stored: pd.DataFrame) -> Sides | None:
    labels = _labels(stored)
    wanted = selection.names("runs")
    found = selection.of_runs(store, wanted)
    chosen = [side.run.run_id for side in found.all] if isinstance(found, Sides) else _resolved(store, wanted)
    # The address decides what is chosen; the widget only changes it.
    st.session_state["runs-choice"] = chosen
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
        short = queries.short_id(store, run.run_id)
        navigate.link(
            "Analyse the prompt again under priced", "new", **{"from": short, "with_policy": "priced"}
        )
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
    keys = {side.key: side.label for side in sides.all}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="pins"):
        st.session_state["baseline-choice"] = sides.baseline.key
        st.selectbox(
            "Baseline",
            list(keys),
            format_func=keys.__getitem__,
            key="baseline-choice",
            on_change=lambda: view.write(baseline=st.session_state["baseline-choice"]),
        )
        others = [side.key for side in sides.all if side is not sides.baseline]
        st.session_state["other-choice"] = sides.other.key
        st.selectbox(
            "Shown against it",
            others,
            format_func=keys.__getitem__,
            key="other-choice",
            on_change=lambda: view.write(other=st.session_state["other-choice"]),
        )


def _sides_card(sides: Sides, stored: pd.DataFrame) -> None:
    others = [side for side in sides.all if side is not sides.baseline]
    rows = stored[stored["run_id"].isin([side.run.run_id for side in sides.all])]
    judged = dict(zip(rows["run_id"], verdicts.of_rows(rows), strict=True))
    times = {}
    for side in others:
        if not sides.replayed and sides.same_prompt(side):
            times[side.key] = conclusion.time_against(stored, sides.baseline.run, side.run)
    told = "".join(
        f"<p><b>{unbroken(side.label)}</b>: {unbroken(conclusion.sentence(sides, side, judged))}</p>"
        for side in others
    )
    st.html(f'<div class="rs-concludes">{told}</div>')
    with st.container(border=True, key="card-sides", gap="xsmall"):
        st.html(
            f'<div class="rs-h">{"Calibrations" if sides.replayed else "Runs"} against the baseline</div>'
        )
        st.html(tables.sides_html(sides, judged, times))
        exports.chart_foot("compared", tables.pairing(sides), tables.sides_rows(sides), "sides")


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
        _map_card(
            store,
            sides,
            pairs[(pairs["segment"] == segment) & (pairs["batch_index"] == 0)],
            segment,
            segments,
        )
    with right:
        _transition_card(sides, pairs)


def _map_card(store: OwnerView, sides: Sides, pairs: pd.DataFrame, segment: int, segments: int) -> None:
    theme = design.current_theme()
    metrics = {
        name: values[0]
        for name, values in figures.MAPS.items()
        if name == "choice"
        or not (sides.replayed and name in ("lower_mass", "audited_mass", "audited_error"))
    }
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
            navigate.go("head", **view.address_of(store, unit))
        st.html(tables.map_legend(metric, rows, shape[1], theme))
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
        changed = int(rows["changed"].sum())
        exports.chart_foot(
            f"difference-{metric}-{sides.baseline.key}-{sides.other.key}",
            f"n = {len(rows):,} units of segment {segment + 1}, {changed:,} with another choice · other minus "
            f"baseline, {figures.MAPS[metric][1]} · click a cell to open its head · source: "
            f"{'candidate_score, replayed' if sides.replayed else 'head_choice and audit'}",
            rows,
            "difference",
            chart="difference",
        )


def _transition_card(sides: Sides, pairs: pd.DataFrame) -> None:
    patterns = families.in_order({*pairs["pattern_a"], *pairs["pattern_b"]})
    counts = comparison.transitions(pairs, patterns)
    changed = int(pairs["changed"].sum())
    family = int((pairs["pattern_a"] != pairs["pattern_b"]).sum())
    with st.container(border=True, key="card-transition", gap="xsmall"):
        st.html('<div class="rs-h">From which pattern to which</div>')
        grid.show(
            figures.transition_matrix(counts, design.current_theme()),
            "transitions",
            "From which pattern, in rows, to which, in columns",
        )
        st.html(
            f'<div class="rs-sub">{numbers.share(changed / len(pairs))} of the units chose another candidate, '
            f"{numbers.share(family / len(pairs))} another family.</div>"
        )
        exports.chart_foot(
            f"transitions-{sides.baseline.key}-{sides.other.key}",
            f"n = {len(pairs):,} units of all segments · rows: {sides.baseline.label}, columns: {sides.other.label}",
            counts.reset_index(names="baseline"),
            "transitions",
            chart="transitions",
        )
