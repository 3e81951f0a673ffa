"""A latency profile on the page: the measured surface, and predicted beside measured layer times."""

from __future__ import annotations

from html import escape
from pathlib import Path

import pandas as pd
import streamlit as st

from routesparse.app.screens.calibration import profile_figures
from routesparse.app.shell import view
from routesparse.app.ui import design, exports, glossary, numbers, plot, states
from routesparse.app.ui.error_words import wrong
from routesparse.engine import paths
from routesparse.engine.errors import ProfileError
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.store import calibration_queries, queries
from routesparse.engine.store.owner_view import OwnerView


def files() -> dict[str, Path]:
    """The profiles measured here and the ones that ship, by name; a measured one wins."""
    found = [*(paths.DATA / "profiles").glob("*.json"), *paths.profiles().glob("*.json")]
    return {path.stem: path for path in found}


def cards(store: OwnerView) -> None:
    """Both cards of the profile that the address names, else of the one that stored runs use most."""
    known = files()
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
    text = st.query_params.get("profile", "")
    name = text if text in names else names[0]
    st.session_state["profile-choice"] = name
    st.selectbox(
        "Profile",
        names,
        key="profile-choice",
        label_visibility="collapsed",
        width=460,
        on_change=lambda: view.write(profile=st.session_state["profile-choice"]),
    )
    left, right = st.columns([1.25, 1], gap="small")
    with left:
        _surface_card(name, known.get(name))
    with right:
        _times_card(store, name)


def _surface_card(name: str, path: Path | None) -> None:
    with st.container(border=True, key="card-surface", gap="xsmall"):
        st.html(
            f'<div class="rs-h">Measured kernel time, and what FLOPs alone predict{glossary.mark("flops")}</div>'
        )
        if path is None:
            st.html(
                '<div class="rs-sub">Not on this machine: the runs that used it were made elsewhere. Only their '
                "predicted and measured times are here.</div>"
            )
            return
        try:
            profile = LatencyProfile.load(path)
        except ProfileError as error:
            lines = [f"{wrong(error)}.", "Measure it again on the page Models. Stored runs are not affected."]
            states.problem("This profile can’t be read", lines)
            return
        measured = profile_figures.cells(profile)
        if measured.empty:
            st.html('<div class="rs-sub">The profile keeps no measurements, only the fitted costs.</div>')
            return
        st.html(f'<div class="rs-note">{escape(_words(profile, measured))}</div>')
        # Closed, the browser loads no Plotly; who comes for one profile wants to see it.
        explored = st.expander(
            "Explore the times by length and mix",
            expanded="profile" in st.query_params,
            key="surface-explored",
            on_change="rerun",
        )
        if explored.open:
            with explored:
                st.plotly_chart(
                    profile_figures.surface(measured, design.current_theme()),
                    key="surface",
                    theme=None,
                    config=profile_figures.config(f"latency-{name}"),
                )
        exports.chart_foot(
            f"latency-{name}",
            f"n = {len(measured)} mixes · median and {measured['upper'].iloc[0]} of "
            f"{_repeats(measured)} repeats, ms · sparse plan: keys chosen for every head, made up to be measured · "
            f"{numbers.device(profile.device)}, {profile.dtype}, {profile.threads} threads, "
            f"{profile.created_at[:16].replace('T', ' ')} · source: {name}.json",
            measured,
            "surface",
            chart="surface" if explored.open else None,
        )


def _words(profile: LatencyProfile, measured: pd.DataFrame) -> str:
    """How far FLOPs alone would have been off, and how well the fitted model does."""
    checked = profile.validation_error
    missed = numbers.share(profile.median_error)
    fitted = f"The fitted model misses the {profile.plans} plans of the fit by {missed} (median)" + (
        "." if checked is None else f", others of that kind by {numbers.share(checked)}."
    )
    known = measured[measured["flops_us"].notna() & (measured["mix"] != profile_figures.DENSE)]
    if known.empty:
        return f"{fitted} FLOPs are not recorded in this profile; measure it again to see them."
    off = (known["flops_us"] / known["median_us"] - 1).abs().median()
    return (
        f"{fitted} FLOPs alone, at the speed of the longest dense measurement (dotted and hollow in the picture), "
        f"miss the sparse ones by {numbers.share(float(off))}."
    )


def _repeats(measured: pd.DataFrame) -> str:
    known = measured["repeats"].dropna()
    return str(int(known.iloc[0])) if len(known) else "the"


def _times_card(store: OwnerView, name: str) -> None:
    times = calibration_queries.layer_times(store, name)
    with st.container(border=True, key="card-times", gap="xsmall"):
        st.html(f'<div class="rs-h">Predicted against measured layer time{glossary.mark("planned")}</div>')
        if times.empty:
            st.html('<div class="rs-sub">No stored run used this profile.</div>')
            return
        newest = str(times.iloc[-1]["run_id"])
        drawn = profile_figures.plan_against_clock(times, newest, design.current_theme())
        plot.show(drawn, "plan-clock", "Predicted against measured time, a mark a layer")
        off = ((times["planned_us"] - times["measured_us"]).abs() / times["measured_us"]).median()
        st.html(
            f'<div class="rs-note">Median |predicted − measured| / measured: {numbers.share(float(off))}; the target '
            "is 5 %. On a shared machine the clock also counts other people’s work.</div>"
        )
        exports.chart_foot(
            f"planned-measured-{name}",
            f"n = {len(times)} layers of the newest {numbers.several(times['run_id'].nunique(), 'run')}, run "
            f"{queries.label(newest)} filled · probe, index, routing and kernel · source: layer_run",
            times,
            "times",
            chart="plan-clock",
        )
