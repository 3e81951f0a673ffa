"""The pictures of calibrations: residuals with delta_q, drift of stored runs, the error predictor's curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from routesparse.app.screens.calibration.wording import QUANTILES
from routesparse.app.ui import design, numbers
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.calibration.drift import DriftReference

_DASHES = dict(zip(QUANTILES, ("dot", "dash", "solid"), strict=True))


def residual_rows(calibrations: Sequence[Calibration]) -> pd.DataFrame:
    """Histogram rows of every calibration, all its buckets together, weighted by their prompts; empty without any."""
    rows = []
    for one in calibrations:
        buckets = [bucket for bucket in one.buckets if bucket.histogram and bucket.prompts]
        total = sum(bucket.prompts for bucket in buckets)
        for bucket in buckets:
            edges = bucket.histogram["edges"]
            for low, high, share in zip(edges[:-1], edges[1:], bucket.histogram["share"], strict=True):
                rows.append((one.name, low, high, share * bucket.prompts / total))
    frame = pd.DataFrame(rows, columns=["calibration", "low", "high", "share"])
    return frame.groupby(["calibration", "low", "high"], sort=False, as_index=False)["share"].sum()


def residuals(rows: pd.DataFrame, deltas: pd.DataFrame, theme: design.Theme) -> go.Figure:
    """One histogram above the other on the same axis, each with its own deltas."""
    names = list(dict.fromkeys(rows["calibration"]))
    chart = make_subplots(len(names), 1, shared_xaxes=True, vertical_spacing=0.1)
    top = float(rows["share"].max()) * 1.25
    for place, name in enumerate(names, start=1):
        part = rows[rows["calibration"] == name]
        chart.add_bar(
            x=(part["low"] + part["high"]) / 2,
            y=part["share"],
            width=(part["high"] - part["low"]) * 0.96,
            marker={"color": design.blend(theme.panel, theme.accent, 0.72), "line": {"width": 0}},
            customdata=part[["low", "high"]],
            hovertemplate="g − g* from %{customdata[0]:.4f} to %{customdata[1]:.4f}<br>%{y:.1%}<extra></extra>",
            row=place,
            col=1,
        )
        for q in QUANTILES:
            delta = deltas.loc[deltas["calibration"] == name, f"delta_{q}"].max()
            if numbers.is_missing(delta):
                continue
            chart.add_scatter(
                x=[delta, delta],
                y=[0, top],
                mode="lines",
                line={"color": theme.warn, "width": 1.4, "dash": _DASHES[q]},
                hovertemplate=f"δ at q = {q}: {delta:.4f}<extra></extra>",
                row=place,
                col=1,
            )
        chart.update_yaxes(
            title=f"{escape(name)}, share",
            tickformat=".0%",
            range=[0, top],
            fixedrange=True,
            nticks=4,
            row=place,
            col=1,
        )
    chart.update_xaxes(fixedrange=True)
    chart.update_xaxes(title="residual g − g*; positive: the probe overstated g", row=len(names), col=1)
    return _layout(chart, theme, 70 + 150 * len(names))


def prompt_rows(calibrations: Sequence[Calibration]) -> pd.DataFrame:
    """One row per calibration window: its fold, document, length, density, and its residuals' mean, q95 and max."""
    rows = [{"calibration": one.name, **prompt} for one in calibrations for prompt in one.prompts]
    columns = ["calibration", "fold", "document", "tokens", "units", "mean", "q95", "max", "density"]
    return pd.DataFrame(rows, columns=columns)


def by_length(
    prompts: pd.DataFrame, deltas: pd.DataFrame, confidence: float, theme: design.Theme
) -> go.Figure:
    """Per calibration: each window of fold B at its length and 95th percentile of residuals, and its bucket's delta."""
    names = list(dict.fromkeys(deltas["calibration"]))
    chart = make_subplots(1, len(names), shared_yaxes=True, horizontal_spacing=0.04)
    for place, name in enumerate(names, start=1):
        part = prompts[(prompts["calibration"] == name) & (prompts["fold"] == "B")].dropna(subset=["q95"])
        chart.add_scatter(
            x=part["tokens"],
            y=part["q95"],
            mode="markers",
            marker={"size": 6, "color": design.blend(theme.panel, theme.accent, 0.6)},
            text=[f"{escape(str(row.document))}, {row.units} units" for row in part.itertuples()],
            hovertemplate="%{text}<br>%{x:,} tokens<br>95th percentile of g − g* %{y:.4f}<extra></extra>",
            row=1,
            col=place,
        )
        for row in deltas[deltas["calibration"] == name].to_dict("records"):
            delta = row[f"delta_{confidence:g}"]
            if numbers.is_missing(delta):
                continue
            chart.add_scatter(
                x=[row["min_tokens"], row["max_tokens"]],
                y=[delta, delta],
                mode="lines",
                line={"color": theme.warn, "width": 2},
                hovertemplate=f"δ {delta:.4f}, K = {row['windows']} windows<extra></extra>",
                row=1,
                col=place,
            )
        chart.update_xaxes(title=f"{escape(name)}: tokens", fixedrange=True, tickformat=",", row=1, col=place)
    chart.update_yaxes(fixedrange=True)
    chart.update_yaxes(title="g − g*, share of mass", row=1, col=1)
    return _layout(chart, theme, 260)


def drift_threshold(distances: Sequence[float], level: float) -> float:
    """The largest distance without an alarm: beyond it p = (1 + #{reference >= d})/(K + 1) <= level; inf: never one."""
    allowed = math.floor(level * (len(distances) + 1)) - 1
    return sorted(distances)[len(distances) - 1 - allowed] if allowed >= 0 else math.inf


def drift(references: dict[str, DriftReference], runs: pd.DataFrame, theme: design.Theme) -> go.Figure:
    """Per calibration a strip of its own prompts' distances, the alarm's threshold, and the stored runs as marks."""
    chart = go.Figure()
    names = list(references)
    for place, name in enumerate(names):
        distances = references[name].distances
        shift = np.random.default_rng(place).uniform(0.08, 0.34, len(distances))
        chart.add_scatter(
            x=distances,
            y=place + shift,
            mode="markers",
            marker={"size": 4, "color": theme.mute, "opacity": 0.45},
            hovertemplate=f"calibration window of {escape(name)}: %{{x:.2f}}<extra></extra>",
        )
        threshold = drift_threshold(distances, references[name].level)
        if math.isfinite(threshold):
            chart.add_scatter(
                x=[threshold, threshold],
                y=[place - 0.42, place + 0.42],
                mode="lines",
                line={"color": theme.warn, "width": 1.5, "dash": "dash"},
                hovertemplate=f"alarm beyond {threshold:.2f}<extra></extra>",
            )
        mine = runs[(runs["calibration"] == name) & runs["drift_distance"].notna()]
        shift = np.random.default_rng(100 + place).uniform(0.08, 0.34, len(mine))
        alarm = mine["drift_alarm"].fillna(False).astype(bool).tolist()
        chart.add_scatter(
            x=mine["drift_distance"],
            y=place - shift,
            mode="markers",
            marker={
                "size": 9,
                "symbol": ["x" if a else "circle" for a in alarm],
                "color": [theme.warn if a else theme.accent for a in alarm],
                "line": {"width": 1, "color": theme.panel},
            },
            text=[
                f"{escape(row.prompt_name)} ({escape(str(row.domain))}), {row.tokens:,} tokens<br>distance "
                f"{row.drift_distance:.2f}, p = {row.drift_p:.3f}{', alarm' if row.drift_alarm else ''}"
                for row in mine.itertuples()
            ],
            hovertemplate="%{text}<extra></extra>",
        )
    chart.update_xaxes(title="distance of the prompt's descriptors (typical: 1)", fixedrange=True)
    chart.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=[escape(name) for name in names],
        range=[len(names) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        fixedrange=True,
        automargin=True,
    )
    return _layout(chart, theme, 70 + 90 * len(names))


def curve_rows(calibrations: Sequence[Calibration]) -> pd.DataFrame:
    """The predictor's curves: ``calibration``, ``feature``, ``x``, ``e``; empty where no predictor was fitted."""
    rows = [
        (one.name, feature, x, e)
        for one in calibrations
        if one.predictor is not None
        for feature, curve in one.predictor.fit.get("curves", {}).items()
        for x, e in zip(curve["x"], curve["e"], strict=True)
    ]
    return pd.DataFrame(rows, columns=["calibration", "feature", "x", "e"])


def monotone(rows: pd.DataFrame) -> dict[tuple[str, str], bool]:
    """Per calibration and feature whether the curve keeps its direction: down in g, up in u and entropy."""
    found = {}
    for (name, feature), part in rows.groupby(["calibration", "feature"], sort=False):
        steps = np.diff(part.sort_values("x")["e"])
        found[str(name), str(feature)] = bool(
            (steps <= 1e-12).all() if feature == "gate_statistic" else (steps >= -1e-12).all()
        )
    return found


def curves(rows: pd.DataFrame, theme: design.Theme) -> go.Figure:
    """e along each feature, the others at their medians; a line style per calibration."""
    features = list(dict.fromkeys(rows["feature"]))
    names = list(dict.fromkeys(rows["calibration"]))
    chart = make_subplots(1, len(features), shared_yaxes=True, horizontal_spacing=0.05)
    titles = {
        "gate_statistic": "gate statistic g",
        "disagreement": "disagreement u",
        "entropy": "entropy, nats",
    }
    for column, feature in enumerate(features, start=1):
        for name, color, dash in zip(names, (theme.accent, theme.warn), ("solid", "dash"), strict=False):
            part = rows[(rows["calibration"] == name) & (rows["feature"] == feature)].sort_values("x")
            chart.add_scatter(
                x=part["x"],
                y=part["e"],
                mode="lines",
                line={"color": color, "dash": dash, "width": 2, "shape": "hv"},
                hovertemplate=f"{escape(name)}<br>%{{x:.3f}}: e = %{{y:.4f}}<extra></extra>",
                row=1,
                col=column,
            )
        chart.update_xaxes(title=titles.get(feature, feature), fixedrange=True, row=1, col=column)
    chart.update_yaxes(title="predicted error e", fixedrange=True, rangemode="tozero", row=1, col=1)
    return _layout(chart, theme, 250)


def _layout(chart: go.Figure, theme: design.Theme, height: int) -> go.Figure:
    chart.update_layout(
        template=design.template(theme),
        height=height,
        showlegend=False,
        bargap=0,
        barcornerradius=0,
        margin={"l": 58, "r": 10, "t": 8, "b": 40},
    )
    return chart
