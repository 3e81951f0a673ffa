"""A latency profile: kernel times beside what FLOPs alone predict, and predicted beside measured layer times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from routesparse.app.shell import switch
from routesparse.app.ui import design, elements, exports, numbers, plot, states
from routesparse.app.ui.states import wrong
from routesparse.engine import paths
from routesparse.engine.errors import ProfileError
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.store import calibration_queries, queries
from routesparse.engine.store.owner_view import OwnerView

DENSE, RECORDED = "dense", "recorded"


def cards(store: OwnerView) -> None:
    """Both cards of the profile that the address names, else of the one that stored runs use most."""
    found = [*(paths.DATA / "profiles").glob("*.json"), *paths.profiles().glob("*.json")]
    known = {path.stem: path for path in found}  # one measured here wins over one that ships
    used = calibration_queries.profiles_in_use(store)
    names = list(dict.fromkeys([*(name for name in used if name in known), *sorted(known), *used]))
    st.html('<div class="rs-title" style="font-size:1.2rem;margin-top:10px">Latency profile</div>')
    if not names:
        states.empty(
            "No latency profile yet",
            ["The first analysis measures a quick one; the full one takes a minute or two on a CPU."],
            f"{states.PROGRAM} profile",
        )
        return
    name = switch.chosen("profile", names)
    switch.field("profile", "Profile", names, name, label_visibility="collapsed", width=460)
    left, right = st.columns([1.25, 1], gap="small")
    with left:
        _surface_card(name, known.get(name))
    with right:
        _times_card(store, name)


def _surface_card(name: str, path: Path | None) -> None:
    with elements.card("surface", "Kernel time, and what FLOPs alone predict", "flops"):
        if path is None:
            elements.sub(
                f"Measured on another machine: stored runs name it, {name}.json is not here. Copy it into "
                f"{paths.profiles()} to see its kernel times; those of the runs’ layers stand beside."
            )
            return
        try:
            profile = LatencyProfile.load(path)
        except ProfileError as error:
            lines = [f"{wrong(error)}.", "Measure it again above. Stored runs are not affected."]
            states.problem("This profile can’t be read", lines)
            return
        measured = cells(profile)
        if measured.empty:
            elements.sub("The profile keeps no measurements, only the fitted costs.")
            return
        elements.note(_words(profile, measured))
        # Closed, the browser loads no Plotly; who comes for one profile wants to see it.
        explored = st.expander(
            "Explore the times by length and mix",
            expanded="profile" in st.query_params,
            key="surface-explored",
            on_change="rerun",
        )
        if explored.open:
            with explored:
                st.plotly_chart(surface(measured, design.current_theme()), key="surface")
        repeats = measured["repeats"].dropna()
        exports.chart_foot(
            f"latency-{name}",
            f"n = {len(measured)} mixes · median and {measured['upper'].iloc[0]} of "
            f"{int(repeats.iloc[0]) if len(repeats) else 'the'} repeats, ms · sparse plan: keys chosen for every head, "
            f"made up to be measured · {numbers.device(profile.device)}, {profile.dtype}, {profile.threads} threads, "
            f"{profile.created_at[:16].replace('T', ' ')} · source: {name}.json",
            measured,
            "surface",
            chart="surface" if explored.open else None,
        )


def cells(profile: LatencyProfile) -> pd.DataFrame:
    """The measurements: ``tokens``, ``mix``, ``median_us``, ``upper_us`` with ``upper`` its name, ``flops_us``.

    ``flops_us``: what a clock that only counts multiply-adds says, set to the longest dense measurement; NaN for the
    probe and for profiles that did not record what a mix reads. Plans of prompts are left out: each is another mix.
    """
    names = ["n", "mix", "median_us", "repeats", "tiles", "columns"]
    rows = pd.DataFrame([cell for cell in profile.cells if cell["mix"] != RECORDED])
    upper = next((name for name in ("p95_us", "p80_us") if name in rows), "median_us")
    found = rows.reindex(columns=names).rename(columns={"n": "tokens"})
    found = found.assign(upper_us=rows.get(upper), upper=upper.removesuffix("_us"))
    dense = found[found["mix"] == DENSE].sort_values("tokens")
    keys = (found["tiles"] * profile.block_k + found["columns"]).astype(float)
    scale = dense["median_us"].iloc[-1] / keys[dense.index[-1]] if len(dense) else np.nan
    return found.assign(flops_us=keys * scale).drop(columns=["tiles", "columns"])


def surface(measured: pd.DataFrame, theme: design.Theme) -> Any:
    """Median over length per mix, whiskers to the upper percentile; dotted: FLOPs alone.

    Plotly's, because it is explored: a click in the legend takes a mix away, a drag enlarges a part.
    """
    import plotly.express as px

    rows = measured.sort_values("tokens", kind="stable").assign(
        mix=measured["mix"].str.replace("^synthetic", "sparse plan", regex=True),
        above=(measured["upper_us"] - measured["median_us"]) / 1000,
        below=0.0,
    )
    clocks = [rows.assign(ms=rows["median_us"] / 1000, clock="measured")]
    clocks.append(
        rows.assign(ms=rows["flops_us"] / 1000, above=0.0, clock="FLOPs alone").dropna(subset="flops_us")
    )
    chart = px.line(
        pd.concat(clocks),
        x="tokens",
        y="ms",
        error_y="above",
        error_y_minus="below",
        color="mix",
        symbol="mix",  # hue alone does not tell lines apart
        line_dash="clock",
        line_dash_map={"measured": "solid", "FLOPs alone": "dot"},
        log_x=True,
        log_y=True,
        labels={"ms": "ms, all heads of a layer"},
        template="plotly_dark" if theme is design.DARK else "plotly_white",
        height=420,
    )
    ticks = sorted(measured["tokens"].unique())
    chart.update_xaxes(tickvals=ticks, ticktext=[f"{n:,}" for n in ticks])
    return chart.update_layout(
        legend_title=None, paper_bgcolor=theme.panel, plot_bgcolor=theme.panel, margin={"t": 8, "r": 8}
    )


def _words(profile: LatencyProfile, measured: pd.DataFrame) -> str:
    """How far FLOPs alone would have been off, and how well the fitted model does."""
    checked = profile.validation_error
    missed = numbers.share(profile.median_error)
    fitted = f"The fitted model misses the {profile.plans} plans of the fit by {missed} (median)" + (
        "." if checked is None else f", others of that kind by {numbers.share(checked)}."
    )
    known = measured[measured["flops_us"].notna() & (measured["mix"] != DENSE)]
    if known.empty:
        return f"{fitted} FLOPs are not recorded in this profile; measure it again to see them."
    off = (known["flops_us"] / known["median_us"] - 1).abs().median()
    return (
        f"{fitted} FLOPs alone, at the speed of the longest dense measurement (dotted in the picture), miss the sparse "
        f"ones by {numbers.share(float(off))}."
    )


def _times_card(store: OwnerView, name: str) -> None:
    times = calibration_queries.layer_times(store, name)
    with elements.card("times", "Predicted against measured layer time", "planned"):
        if times.empty:
            elements.sub("No stored run used this profile.")
            return
        newest = str(times.iloc[-1]["run_id"])
        drawn = plan_against_clock(times, newest, design.current_theme())
        plot.show(drawn, "plan-clock", "Predicted against measured time, a mark a layer")
        off = ((times["planned_us"] - times["measured_us"]).abs() / times["measured_us"]).median()
        elements.note(
            f"Median |predicted − measured| / measured: {numbers.share(float(off))}; the target "
            "is 5 %. On a shared machine the clock also counts other people’s work."
        )
        exports.chart_foot(
            f"planned-measured-{name}",
            f"n = {len(times)} layers of the newest {numbers.several(times['run_id'].nunique(), 'run')}, run "
            f"{queries.label(newest)} filled · probe, index, routing and kernel · source: layer_run",
            times,
            "times",
            chart="plan-clock",
        )


def plan_against_clock(times: pd.DataFrame, here: str | None, theme: design.Theme) -> dict[str, Any]:
    """Predicted and measured time of every layer, and y = x; the newest run is filled."""
    planned, measured = times["planned_us"] / 1000, times["measured_us"] / 1000
    ends = (0.0, float(max(planned.max(), measured.max())) * 1.1 or 1.0)
    pale = design.blend(theme.panel, theme.accent, 0.3)
    told = [
        [row.prompt_name, row.layer, numbers.micros(row.planned_us), numbers.micros(row.measured_us)]
        for row in times.itertuples()
    ]
    colors = [theme.accent if run == here else pale for run in times["run_id"]]
    hover = "{0}, layer {1}\npredicted {2}, measured {3}"
    marks = [
        plot.line(ends, ends, theme.mute, 1.2, "1.5 3"),
        plot.points(planned, measured, colors, hover, told, size=7, edge=theme.panel),
    ]
    x, y = plot.linear("predicted, ms a layer", *ends), plot.linear("measured, ms a layer", *ends)
    return plot.chart(x, y, marks, 360, theme)
