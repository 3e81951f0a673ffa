"""Compare: runs, or the settings of a sweep, against a pinned baseline.

First what can be compared: what is read, what is lost, the shape; then the price of it, and head by head.
"""

from __future__ import annotations

import contextlib

import pandas as pd
import streamlit as st

from routesparse.app.screens.compare import conclusion, curve, figures, selection, sweep, tables
from routesparse.app.screens.compare.selection import Sides
from routesparse.app.shell import address, certificate_link, navigate, run_header, setting_words, switch, view
from routesparse.app.shell.access import access
from routesparse.app.ui import design, elements, exports, grid, numbers, states
from routesparse.app.ui.tables import of_rows, unbroken
from routesparse.engine.errors import InputError
from routesparse.engine.export.plain_text import visible
from routesparse.engine.stats import comparison
from routesparse.engine.store import queries, verdicts
from routesparse.engine.store.owner_view import OwnerView

_KINDS = {"runs": "Runs", "sweep": "Settings of a sweep"}


@address.names("runs sweep baseline other segment metric error by below layer head")
def render() -> None:
    """Draw the page."""
    navigate.restore("compare")
    store = access().store
    st.html('<div class="rs-title">Compare</div>')
    stored = queries.runs(store)
    kind = "sweep" if "sweep" in st.query_params else "runs"
    if stored.empty and kind != "sweep":
        run_header.no_runs(store, ["Comparing needs two stored runs.", "Analyse a prompt first."])
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
    sides, pending = _sweep(store) if kind == "sweep" else (_runs(store, stored), False)
    if sides is None:
        return
    for line in sides.problems:
        states.field_error(line)
    run_header.tab_title("Compare", f"{sides.other.label} against {sides.baseline.label}")
    _pins(sides)
    rows = _sides_card(sides, stored)
    if all(map(sides.same_prompt, sides.all)):
        curve.cards(store, rows, pending)
    _units(store, sides)
    _intervals_card(sides)
    _settings_card(sides)


def _switch_kind() -> None:
    for name in ("baseline", "other", "metric", "sweep"):
        st.query_params.pop(name, None)
    if st.session_state["kind-choice"] == "sweep":
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
        elements.sub("One setting has a run: a comparison needs two.")
        navigate.link("Open its routing map", "map", run=queries.short_id(store, ids[0]))
    return None, pending


def _runs(store: OwnerView, stored: pd.DataFrame) -> Sides | None:
    labels = {
        row["run_id"]: " · ".join(
            [
                visible(row["prompt_name"] if numbers.is_missing(row["name"]) else row["name"]),
                setting_words.of_run(row),
                queries.label(row["run_id"]),
            ]
        )
        for row in stored.to_dict("records")
    }
    wanted = selection.names("runs")
    found = selection.of_runs(store, wanted)
    switch.many(
        "runs",
        "Runs, two to six",
        list(labels),
        [side.run.run_id for side in found.all] if isinstance(found, Sides) else _resolved(store, wanted),
        address=lambda run_id: queries.short_id(store, run_id),
        format_func=labels.__getitem__,
        max_selections=selection.MOST,
        placeholder="Choose two to six runs",
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
        if sides.same_prompt(side)
    }
    said = [(side, unbroken(conclusion.sentence(sides, side, judged))) for side in sides.others]
    told = "".join(
        f"<p><b>{sides.letter(side)} {unbroken(side.label)}</b>: {text}</p>" for side, text in said
    )
    st.html(f'<div class="rs-concludes">{told}</div>')
    rows = tables.sides_rows(sides, judged)
    with elements.card("sides", "Runs against the baseline"):
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
    if not sides.same_model(other):
        states.empty(
            "Two models have no head in common",
            [
                f"{side.label}: {side.run.model}, revision {side.run.model_revision[:8]}."
                for side in (base, other)
            ],
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
    segment = view.number("segment", segments) or 0
    here = pairs[(pairs["segment"] == segment) & (pairs["batch_index"] == 0)]
    _map_card(store, sides, here, segment, segments)


def _map_card(store: OwnerView, sides: Sides, pairs: pd.DataFrame, segment: int, segments: int) -> None:
    theme = design.current_theme()
    metrics = {name: values[0] for name, values in figures.MAPS.items()}
    metric = switch.chosen("metric", metrics)
    run = sides.other.run
    shape = (max(run.layers, sides.baseline.run.layers), max(run.heads, sides.baseline.run.heads))
    with elements.card("difference", "What differs, head by head"):
        if not sides.same_prompt(sides.other):
            states.note(
                "These are different prompts: a head may differ because of the prompt as much as of a setting."
            )
        switch.buttons("metric", metrics, metric)
        chart, rows = figures.difference_map(pairs, metric, shape, theme)
        label = f"What differs, {shape[0]} layers by {shape[1]} heads"
        picked = grid.show(chart, "difference", label, picks=True)
        if picked is not None:
            navigate.remember("compare")
            navigate.go("map", **view.address_of(store, queries.Unit(run.run_id, *picked, segment)))
        st.html(figures.legend(metric, rows, shape[1], theme))
        for side in (sides.baseline, sides.other):
            if void := tables.conformal_void(metric, side):
                st.html(f'<div class="rs-note">{unbroken(side.label)}:{void}</div>')
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            run_header.segment_slider(segment, segments)
        exports.chart_foot(
            f"difference-{metric}-{sides.baseline.key}-{sides.other.key}",
            f"n = {len(rows):,} units of segment {segment + 1} · other minus baseline, {figures.MAPS[metric][1]} · "
            "click a cell to open its head · source: head_choice and audit",
            rows,
            "difference",
            chart="difference",
        )


def _intervals_card(sides: Sides) -> None:
    """Mean differences to the baseline with their intervals, paired where the prompt is the same."""
    differences = (
        comparison.differences(sides.baseline.choices, side.choices, sides.paired(side)).assign(side=side.key)
        for side in sides.others
    )
    found = pd.concat(
        [part for part in differences if len(part)] or [pd.DataFrame(columns=["metric", "side"])]
    )
    with elements.card("intervals", "Mean differences", "paired"):
        st.html(tables.intervals_html(sides, found))
        exports.chart_foot(
            f"differences-{sides.baseline.key}",
            "other minus baseline, mean over units · 95 % interval, resampled by layer: how the difference varies "
            "over heads, not over prompts · bold: the interval excludes 0 · source: head_choice and audit",
            found,
            "intervals",
        )


def _settings_card(sides: Sides) -> None:
    """The settings that differ; equal ones are hidden."""
    settings = comparison.settings_table({side.key: side.settings for side in sides.all})
    different = settings[~settings["equal"]]
    with elements.card("settings", "Settings that differ"):
        if different.empty:
            elements.sub("None: the same settings, model, machine and versions.")
        else:
            st.html(of_rows(tables.settings_cells(sides, different), left=range(1 + len(sides.all))))
        exports.chart_foot(
            "settings",
            f"{len(settings) - len(different)} equal settings are hidden; the files hold all {len(settings)}",
            settings.astype(str),
            "settings",
        )
