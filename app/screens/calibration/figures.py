"""The pictures of calibrations: residuals with delta_q, drift of stored runs, the error predictor's curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.screens.calibration.wording import QUANTILES
from routesparse.app.ui import design, numbers, plot
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.calibration.drift import DriftReference

_DASHES = dict(zip(QUANTILES, ("1.5 3", "6 4", ""), strict=True))
_LABEL_ROOM = 0.42  # of the axis left of the largest δ, for the label on its right
_DOT_SHARE = 0.75  # of a dot's colour over the panel: three times its contrast in both themes
_FEATURES = {
    "gate_statistic": "gate statistic g",
    "disagreement": "disagreement u",
    "entropy": "entropy, nats",
}


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


def residuals(rows: pd.DataFrame, deltas: pd.DataFrame, theme: design.Theme) -> dict[str, Any]:
    """One histogram above the other on the same axis, each with its own deltas."""
    columns = [f"delta_{q}" for q in QUANTILES]
    largest = deltas.groupby("calibration")[columns].agg(lambda found: found.astype(float).max())
    low, high = _with_air([*rows["low"], *rows["high"], *largest.to_numpy().ravel()], 0.02)
    rightmost = max((delta for delta in largest.to_numpy().ravel() if math.isfinite(delta)), default=high)
    ends = low, max(high, rightmost + _LABEL_ROOM * (rightmost - low))
    top = float(rows["share"].max()) * 1.25 or 1.0
    charts = []
    for name, part in rows.groupby("calibration", sort=False):
        air = (part["high"] - part["low"]) * 0.02
        at = np.column_stack([part["low"] + air, part["high"] - air, np.zeros(len(part)), part["share"]])
        told = [
            [name, f"{row.low:.4f}", f"{row.high:.4f}", numbers.share(row.share)] for row in part.itertuples()
        ]
        color = design.blend(theme.panel, theme.accent, 0.72)
        marks, names = [plot.bars(at.tolist(), color, "{0}: g − g* from {1} to {2}\n{3}", told)], []
        for i, (q, delta) in enumerate(zip(QUANTILES, largest.loc[name], strict=True)):
            if not math.isfinite(delta):
                continue
            # The larger δ, the lower its line ends, so that a label right of its own line crosses no other.
            height = top * (1 - 0.13 * i)
            marks.append(plot.line([delta] * 2, [0, height], theme.warn, 1.4, _DASHES[q]))
            names.append(plot.label(delta, height, f"q {q}: δ {delta:.4f}", theme.warn, dx=4, dy=9))
        x = plot.linear("residual g − g*; positive: the probe overstated g", *ends)
        y = plot.linear(f"{name}, share", 0, top, percent=True, most=3)
        charts.append(plot.chart(x, y, [*marks, *names], 180, theme))
    return plot.panels(charts, stacked=True)


def prompt_rows(calibrations: Sequence[Calibration]) -> pd.DataFrame:
    """One row per calibration window: its fold, document, length, density, and its residuals' mean, q95 and max."""
    rows = [{"calibration": one.name, **prompt} for one in calibrations for prompt in one.prompts]
    columns = ["calibration", "fold", "document", "tokens", "units", "mean", "q95", "max", "density"]
    return pd.DataFrame(rows, columns=columns)


def by_length(
    prompts: pd.DataFrame, deltas: pd.DataFrame, confidence: float, theme: design.Theme
) -> dict[str, Any]:
    """Per calibration: each window of fold B at its length and 95th percentile of residuals, and its bucket's delta."""
    column = f"delta_{confidence:g}"
    deltas = deltas.astype({column: float})
    known = prompts[prompts["fold"] == "B"].dropna(subset=["q95"])
    low, high = _with_air([0.0, *known["q95"], *deltas[column]], 0.05)
    charts: list[dict[str, Any]] = []
    for name, buckets in deltas.groupby("calibration", sort=False):
        part, sure = known[known["calibration"] == name], buckets[np.isfinite(buckets[column])]
        half = (high - low) / 300
        at = np.column_stack([sure[["min_tokens", "max_tokens"]], sure[column] - half, sure[column] + half])
        told = [[name, f"{row[column]:.4f}", row["windows"]] for row in sure.to_dict("records")]
        marks = [
            plot.points(
                part["tokens"],
                part["q95"],
                design.blend(theme.panel, theme.accent, _DOT_SHARE),
                "{0}: {1}, {2} units\n{3} tokens\n95th percentile of g − g* {4}",
                [
                    [name, row.document, row.units, f"{row.tokens:,}", f"{row.q95:.4f}"]
                    for row in part.itertuples()
                ],
                size=6,
            ),
            plot.bars(at.tolist(), theme.warn, "{0}: δ {1}, K = {2} windows", told),
        ]
        ends = _with_air([*part["tokens"], *buckets["min_tokens"], *buckets["max_tokens"]], 0.04)
        y = plot.linear("" if charts else "g − g*, share of mass", low, high)
        charts.append(plot.chart(plot.linear(f"{name}: tokens", *ends, most=4), y, marks, 260, theme))
    return plot.panels(charts)


def drift_threshold(distances: Sequence[float], level: float) -> float:
    """The largest distance without an alarm: beyond it p = (1 + #{reference >= d})/(K + 1) <= level; inf: never one."""
    allowed = math.floor(level * (len(distances) + 1)) - 1
    return sorted(distances)[len(distances) - 1 - allowed] if allowed >= 0 else math.inf


def drift(references: dict[str, DriftReference], runs: pd.DataFrame, theme: design.Theme) -> dict[str, Any]:
    """Per calibration a strip of its own prompts' distances, the alarm's threshold, and the stored runs as marks."""
    marks = []
    seen = list(runs["drift_distance"].dropna())
    for place, (name, reference) in enumerate(references.items()):
        distances = reference.distances
        shift = np.random.default_rng(place).uniform(0.08, 0.34, len(distances))
        told = [[name, f"{distance:.2f}"] for distance in distances]
        hover = "calibration window of {0}: {1}"
        marks.append(
            plot.points(
                distances, (place + shift).tolist(), theme.mute, hover, told, size=4, opacity=_DOT_SHARE
            )
        )
        threshold = drift_threshold(distances, reference.level)
        seen += [*distances, threshold]
        if math.isfinite(threshold):
            marks.append(plot.line([threshold] * 2, [place - 0.38, place + 0.42], theme.warn, 1.5, "5 4"))
            said = f"alarm beyond {threshold:.2f}"
            anchor = "end" if threshold > max(seen) / 2 else "middle"
            marks.append(plot.label(threshold, place - 0.38, said, theme.warn, anchor, dy=-3))
        mine = runs[(runs["calibration"] == name) & runs["drift_distance"].notna()]
        shift = np.random.default_rng(100 + place).uniform(0.08, 0.34, len(mine))
        alarm = mine["drift_alarm"].fillna(False).astype(bool).to_numpy()
        for here, color, symbol in ((~alarm, theme.accent, "circle"), (alarm, theme.warn, "triangle-up")):
            told = [
                [
                    row.prompt_name,
                    "no domain" if numbers.is_missing(row.domain) else row.domain,
                    f"{row.tokens:,}",
                    f"{row.drift_distance:.2f}, p = {row.drift_p:.3f}",
                ]
                for row in mine[here].itertuples()
            ]
            hover = "{0} ({1}), {2} tokens\ndistance {3}" + (", alarm" if symbol != "circle" else "")
            at = (mine["drift_distance"][here], (place - shift)[here])
            marks.append(plot.points(*at, color, hover, told, symbol, 9, edge=theme.panel))
    rows = (len(references) - 0.5, -0.5)
    x = plot.linear("distance of the prompt’s descriptors (typical: 1)", *_with_air(seen, 0.04))
    y = plot.Axis("", rows, list(enumerate(references)), grid=False)
    return plot.chart(x, y, marks, 70 + 90 * len(references), theme, top=14)


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


def curves(rows: pd.DataFrame, theme: design.Theme) -> dict[str, Any]:
    """e along each feature, the others at their medians; a line style per calibration."""
    names = list(dict.fromkeys(rows["calibration"]))
    top = float(rows["e"].max()) * 1.06 or 1.0
    charts: list[dict[str, Any]] = []
    for feature, curved in rows.groupby("feature", sort=False):
        marks, said = [], _FEATURES.get(feature, feature)
        for name, color, dash in zip(names, (theme.accent, theme.warn), ("", "7 5"), strict=False):
            part = curved[curved["calibration"] == name].sort_values("x")
            told = [[name, said, f"{row.x:.3f}", f"{row.e:.4f}"] for row in part.itertuples()]
            marks.append(plot.line(*plot.steps(part["x"], part["e"]), color, 2, dash))
            marks.append(
                plot.points(part["x"], part["e"], color, "{0}\n{1} {2}: e = {3}", told, size=8, opacity=0)
            )
        x = plot.linear(said, *_with_air(curved["x"], 0.03), most=4)
        y = plot.linear("" if charts else "predicted error e", 0, top, most=4)
        charts.append(plot.chart(x, y, marks, 250, theme))
    return plot.panels(charts)


def _with_air(values: Iterable[float], share: float) -> tuple[float, float]:
    """The ends of an axis: of the finite values, and a share of their range beside them."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    air = share * (high - low) or 0.5
    return low - air, high + air
