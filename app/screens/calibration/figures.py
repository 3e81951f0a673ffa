"""The pictures of calibrations: residuals by length with delta_q, and drift of stored runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import design, numbers, plot
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.calibration.drift import DriftReference

_DOT_SHARE = 0.75  # of a dot's colour over the panel: three times its contrast in both themes


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


def _with_air(values: Iterable[float], share: float) -> tuple[float, float]:
    """The ends of an axis: of the finite values, and a share of their range beside them."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    air = share * (high - low) or 0.5
    return low - air, high + air
