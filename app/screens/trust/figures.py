"""Pictures of the page Trust: errors and masses against their bounds, errors by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import design, numbers, plot
from routesparse.engine.method import families

MOST_DRAWN = 600  # more of them hide one another, and each costs the browser
_HEIGHT = 340
_NAMES = {"bound_paper": "paper's bound", "bound_tight": "tight bound", "audited_mass": "audited mass"}
UNIT = ["run_id", "layer", "head", "segment", "batch_index"]


def drawn(units: pd.DataFrame) -> pd.DataFrame:
    """The units of a scatter, every one below a claim among them."""
    return few(units, (units["covered"] == False) | (units["violations"] > 0))  # noqa: E712  NULL is not below


def few(rows: pd.DataFrame, kept: pd.Series) -> pd.DataFrame:
    """At most MOST_DRAWN rows: all that are ``kept``, and a fixed random choice of the others."""
    if len(rows) <= MOST_DRAWN:
        return rows
    rest = rows[~kept].sample(max(0, MOST_DRAWN - int(kept.sum())), random_state=0)
    return pd.concat([rows[kept], rest]).sort_index()


def error_figure(units: pd.DataFrame, theme: design.Theme) -> dict[str, Any]:
    """Worst-row error against both bounds on logarithmic axes; a point below y = x would be a violation."""
    values = units[["max_error", "bound_tight", "bound_paper"]]
    known = units[(units["max_error"] > 0) & np.isfinite(values).all(axis=1)]
    ends = _log_range(values.loc[known.index])
    paper = plot.points(
        known["max_error"], known["bound_paper"], "none", _hover("bound_paper"), _told(known, "bound_paper")
    )
    marks = [
        plot.line(ends, ends, theme.mute, 1.2, "1.5 3"),
        {**paper, "size": 6, "edge": theme.mute, "opacity": 0.55},
        *_by_pattern(known, "max_error", "bound_tight", theme),
    ]
    x_axis = plot.logarithmic("error of the worst audited row", *ends)
    return plot.chart(x_axis, plot.logarithmic("bound", *ends), marks, _HEIGHT, theme)


def mass_figure(
    units: pd.DataFrame, tau: float | None, theme: design.Theme, name: str = "τ"
) -> dict[str, Any]:
    """Audited retained mass of the body against the in-prompt certificate; a point below y = x is not covered.

    tau: the line, None for none; name: what it is called.
    """
    known = units.dropna(subset=["lower_mass"])
    values = pd.concat([known["lower_mass"], known["audited_mass"]])
    ends = (float(values.min()) - 0.01 if len(values) else 0.8, 1.002)
    marks = [plot.line(ends, ends, theme.mute, 1.2, "1.5 3")]
    if tau is not None and ends[0] <= tau <= ends[1]:
        marks.append(plot.line([tau] * 2, ends, theme.warn, 1.2, "5 4"))
        marks.append(plot.label(tau, ends[0], f"{name} = {tau:.2f}", theme.warn, dx=4, dy=-6))
    marks += _by_pattern(known, "lower_mass", "audited_mass", theme)
    x_axis = plot.linear("certified retained mass (in-prompt)", *ends)
    return plot.chart(x_axis, plot.linear("audited retained mass", *ends), marks, _HEIGHT, theme)


def forward_figure(errors: pd.DataFrame, theme: design.Theme) -> dict[str, Any]:
    """One bar per layer: how far its attention output is from the dense forward's."""
    layers, values = errors["layer"], errors["forward_error"]
    at = np.column_stack([layers - 0.3, layers + 0.3, np.zeros(len(errors)), values])
    told = [[layer, numbers.mass(value, 4)] for layer, value in zip(layers, values, strict=True)]
    color = design.blend(theme.panel, theme.accent, 0.72)
    x_axis = plot.linear("layer", -0.5, float(layers.max()) + 0.5, most=16, least_step=1)
    y_axis = plot.linear("relative error", 0, float(values.max()) * 1.06 or 1.0, most=4)
    bars = plot.bars(at.tolist(), color, "layer {0}\n{1}", told)
    return plot.chart(replace(x_axis, grid=False), y_axis, [bars], 220, theme)


def pattern_legend(units: pd.DataFrame, theme: design.Theme, *more: str) -> str:
    """HTML: the mark, letter and name of each family, those of the units among them, and further marks."""
    items = [
        f'<span><b style="color:{theme.pattern(pattern)};margin-right:5px">{families.look(pattern).mark}</b>'
        f"{design.letter(pattern)} · {design.name(pattern)}</span>"
        for pattern in families.in_order(units["pattern"])
        if pattern != families.DENSE
    ]
    return f'<div class="rs-legend">{"".join(items)}{"".join(f"<span>{text}</span>" for text in more)}</div>'


def _by_pattern(units: pd.DataFrame, x: str, y: str, theme: design.Theme) -> Iterator[plot.Mark]:
    """Points for each family of the units, in its colour and with its mark."""
    for family, rows in units.groupby("pattern", sort=False):
        pattern = str(family)
        yield plot.points(
            rows[x],
            rows[y],
            theme.pattern(pattern),
            _hover(y, pattern),
            _told(rows, y),
            families.look(pattern).symbol,
            edge=theme.panel,
            opacity=0.85,
        )


def _told(rows: pd.DataFrame, y: str) -> list[list[object]]:
    """What a point carries: the unit (UNIT), and the values of its hover as printed."""
    return [
        [
            *unit,
            unit[3] + 1,
            numbers.mass(error, 4),
            numbers.bound(least),
            numbers.mass(mass),
            f"{height:.3g}",
        ]
        for unit, error, least, mass, height in zip(
            rows[UNIT].itertuples(index=False, name=None),
            rows["max_error"],
            rows["lower_mass"],
            rows["audited_mass"],
            rows[y],
            strict=True,
        )
    ]


def _hover(y: str, pattern: str | None = None) -> str:
    """The template of a hover: said once for all points, because every point's own words outweigh the chart."""
    family = "" if pattern is None else f" · {design.name(pattern)}"
    return (
        f"layer {{1}}, head {{2}}, segment {{5}}{family}\nerror, worst row {{6}}\ncertified {{7}}, audited {{8}}"
        f"\n{_NAMES[y]} {{9}}"
    )


def _log_range(values: pd.DataFrame) -> tuple[float, float]:
    positive = values.to_numpy()[values.to_numpy() > 0]
    if not len(positive):
        return 1e-3, 10.0
    return float(positive.min()) / 1.4, float(positive.max()) * 1.4
