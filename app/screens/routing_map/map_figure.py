"""The layer x head map as data for map.js: cells, letters, fallback marks, hovers, the margin, and its legends."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.screens.routing_map import head_order
from routesparse.app.ui import design, elements, glossary, numbers
from routesparse.app.unit import shapes
from routesparse.app.unit.shapes import COLUMNS
from routesparse.engine.method import families
from routesparse.engine.method.shape import PARTS
from routesparse.engine.rows import outcome
from routesparse.engine.store import frames

FALLBACK_STEPS = ("kept", "dense by the router", "expanded", "dense by fallback", "ran uncertified")
_STEPS = 64  # of the sequential scale; more can't be told apart
_MARKS = {"dense": "d", "expand": "e"}
_FORMATS = {
    "density": ("share of the causal area kept", numbers.share),
    "mass": ("mean retained mass over the routing rows", numbers.mass),
    "lower_mass": ("in-prompt certificate of the body's mean mass", numbers.bound),
    "disagreement": ("standard deviation u of the row groups' means", numbers.mass),
    "risk": ("risk R of equation 4", numbers.mass),
    "entropy": ("entropy in nats, mean over the probe rows", lambda v: numbers.mass(v, 2)),
    "loss_nats": (
        "what the predicted loss owes to the head, thousandths of a nat a token",
        lambda v: numbers.small(1000 * v),
    ),
    "audited_error": ("relative output error, mean over the audited rows", lambda v: numbers.mass(v, 4)),
}
_IN_EVERY_HOVER = ("pattern", "density", "mass", "lower_mass", "fallback")


@dataclass(frozen=True)
class Cells:
    """Colours of all cells, row by row, and what the colour means."""

    colors: np.ndarray  # object [layers, heads], #rrggbb
    values: np.ndarray | None  # float [layers, heads]; None for the pattern
    unit: str
    low: float
    high: float


def cells(choices: pd.DataFrame, metric: str, theme: design.Theme, layers: int, heads: int) -> Cells:
    """The colour of every (layer, head); grey where the metric was not measured."""
    colors = np.full((layers, heads), theme.null, object)
    at = choices["layer"].to_numpy(), choices["head"].to_numpy()
    if metric == "shape":
        return Cells(colors, None, "where attention lies", 0, 1)
    if metric == "pattern":
        kinds = list(zip(choices["pattern"], choices["density"], strict=True))
        known_colors = {kind: design.pattern_color(theme, *kind) for kind in set(kinds)}
        colors[at] = [known_colors[kind] for kind in kinds]
        return Cells(colors, None, "pattern, stronger where more is kept", 0, 1)
    values = np.full((layers, heads), np.nan)
    if metric == "fallback":
        values[at] = [
            float(FALLBACK_STEPS.index("ran uncertified" if u else outcome(p, f)))
            for p, f, u in choices[["pattern", "fallback", "uncertified"]].itertuples(index=False)
        ]
        unit, low, high = "fallback of the unit", 0.0, len(FALLBACK_STEPS) - 1.0
    else:
        values[at] = choices[metric].astype(float)
        unit = _FORMATS[metric][0]
        known = values[~np.isnan(values)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    scale = np.array([design.scale_color(theme, i / (_STEPS - 1)) for i in range(_STEPS)], object)
    measured = ~np.isnan(values)
    colors[measured] = scale[
        np.rint((values[measured] - low) / ((high - low) or 1.0) * (_STEPS - 1)).astype(int)
    ]
    return Cells(colors, values, unit, low, high)


def value_text(metric: str, value: float) -> str:
    """A metric's value as printed in cells, legends and hovers."""
    if metric == "fallback":
        return FALLBACK_STEPS[int(value)]
    return _FORMATS[metric][1](value)


def drawing(
    choices: pd.DataFrame,
    layer_rows: pd.DataFrame,
    metric: str,
    picked: tuple[int, int],
    theme: design.Theme,
    shape: tuple[int, int],
    tau_layer: float | None = None,
    order: str = "layer",
) -> tuple[dict[str, Any], Cells]:
    """The map of one segment and, per layer, measured and planned time against T_l. ``tau_layer``: policy "priced";
    the layers' certificates stand in a column beside the map. order: of head_order.ORDERS; the layers' times stand
    beside the one by layer. ``version`` changes with everything but ``picked`` and ``brushed``: the browser then only
    moves the ring and dims what is not brushed."""
    layers, heads = shape
    shown = cells(choices, metric, theme, layers, heads)
    row_px = 44 if layers <= 12 else max(17, 560 // layers)
    palette = list(dict.fromkeys(shown.colors.ravel()))
    index = {color: i for i, color in enumerate(palette)}
    letters, marks = np.full(shape, " "), np.full(shape, " ")
    at = choices["layer"].to_numpy(), choices["head"].to_numpy()
    is_shape = metric == "shape"
    letter = (
        choices["shape"].map(design.SHAPE_LETTERS).fillna("?")
        if is_shape
        else choices["pattern"].map(design.letter)
    )
    letters[at] = letter.to_numpy()
    marks[at] = [_MARKS.get(str(fallback), " ") for fallback in choices["fallback"]]
    marks[at] = np.where(choices["uncertified"], "u", marks[at])
    tips = np.full(shape, None, object)
    tips[at] = list(_hovers(choices, metric, None if tau_layer is None else layer_rows))
    data: dict[str, Any] = {
        "shape": [layers, heads],
        "row_px": row_px,
        "label": f"Routing map, {layers} layers by {heads} heads, colour: {shown.unit}",
        "theme": {
            **{name: getattr(theme, name) for name in ("ink", "mute", "line", "warn", "panel")},
            "bar": design.blend(theme.panel, theme.accent, 0.72),
            "font": design.FONT,
        },
        "fills": palette,
        "inks": [design.text_on(color) for color in palette],
        "cells": [index[color] for color in shown.colors.ravel()],
        "letters": "".join(letters.ravel()),
        "marks": "".join(marks.ravel()),
        "values": _values(shown, metric) if heads <= 12 and row_px >= 40 else None,
        "tips": tips.ravel().tolist(),
        "times": _times(layer_rows, choices, tau_layer),
        "glyphs": _glyphs(choices, shape) if is_shape else None,
        "shapes": theme.shapes,
        "places": None,
    }
    if order != "layer":
        data.update(_places(choices, order, shape))
    data["version"] = zlib.crc32(json.dumps(data).encode())
    data["picked"] = list(picked)
    return data, shown


def _glyphs(choices: pd.DataFrame, shape: tuple[int, int]) -> list[list[int] | None]:
    """Per cell the shares of shape.PARTS and the height, per cent; None where they were not measured."""
    found = np.full(shape, None, object)
    heights = [100 * (0.15 + 0.85 * design.strength(density)) for density in choices["density"]]
    parts = 100 * choices[list(COLUMNS)].to_numpy(float)
    for row, part, height in zip(frames.rows(choices), parts, heights, strict=True):
        if np.isfinite(part).all():
            found[row.layer, row.head] = [*np.rint(part).astype(int).tolist(), round(height)]
    return found.ravel().tolist()


def _places(choices: pd.DataFrame, order: str, shape: tuple[int, int]) -> dict[str, Any]:
    """Where cells stand in another order than by layer: ``places`` [row, column] a cell, None where there is none;
    ``row_names``; ``names`` of the cells."""
    columns = max(12, min(24, shape[1]))
    cells = (choices["layer"] * shape[1] + choices["head"]).to_numpy()
    places: list[list[int] | None] = [None] * (shape[0] * shape[1])
    row_names: list[str] = []
    for name, group in head_order.ordered(choices, order):
        for number, row in enumerate(group):
            if number % columns == 0:
                row_names.append("" if number else name)
            places[cells[row]] = [len(row_names) - 1, number % columns]
    names = [f"{cell // shape[1]}·{cell % shape[1]}" for cell in range(shape[0] * shape[1])]
    return {
        "places": places,
        "columns": columns,
        "row_names": row_names,
        "names": names,
        "row_px": 34,
        "values": None,
    }


def _values(shown: Cells, metric: str) -> list[str] | None:
    """What stands below the letters, where there is room."""
    if shown.values is None or metric == "fallback":
        return None
    return ["–" if np.isnan(value) else value_text(metric, value) for value in shown.values.ravel()]


def _hovers(choices: pd.DataFrame, metric: str, certified: pd.DataFrame | None) -> Iterator[str]:
    """certified: the layers, where the policy certifies them."""
    of_layer = {} if certified is None else {row.layer: row.lower_mass for row in frames.rows(certified)}
    tau = "τ" if certified is None else "τ head"
    for row in frames.rows(choices):
        is_dense = row.pattern == families.DENSE
        certified_mass = "needs no certificate" if is_dense else f"certified {numbers.bound(row.lower_mass)}"
        lines = [
            f"layer {row.layer}, head {row.head} · {design.name(row.pattern)}",
            f"keeps {numbers.share(row.density)} of the body's causal area",
            f"retained mass {numbers.mass(row.mass)} · {certified_mass}",
            f"predicted {numbers.micros(row.kernel_us)}",
        ]
        if metric == "shape":
            lines.insert(1, shapes.words(row, "attention on"))
        elif metric not in _IN_EVERY_HOVER:
            told = value_text(metric, getattr(row, metric))
            if is_dense and metric == "audited_error":
                told = "none: a dense head reads every key"
            name = (
                "predicted loss, thousandths of a nat," if metric == "loss_nats" else metric.replace("_", " ")
            )
            lines.append(f"{name} {told}")
        if row.fallback in _MARKS:
            lines.append(outcome(row.pattern, row.fallback))
        if row.uncertified:
            lines.append(f"ran uncertified: its certificate is below {tau}")
        if row.layer in of_layer:
            known = not numbers.is_missing(of_layer[row.layer])
            lines.append(f"layer’s certified mean {numbers.mass(of_layer[row.layer]) if known else 'none'}")
        yield "\n".join(lines)


def _times(rows: pd.DataFrame, choices: pd.DataFrame, tau_layer: float | None) -> dict[str, Any]:
    """Per layer milliseconds measured, planned and allowed; the axis they share; the hover's lines.

    rows: the layers, over all segments; choices: the units drawn beside them, of which ``fallen`` fell back.
    With tau_layer also the layer's ``certificate``: its text, and whether it ran uncertified.
    """
    fallen = choices.loc[choices["fallback"].isin(("dense", "expand")), "layer"].value_counts()
    parts = ("probe_us", "index_us", "route_us", "kernel_us")
    measured = sum((rows[part] for part in parts), pd.Series(0.0, rows.index)) / 1000
    planned, limit = rows["planned_us"] / 1000, rows["limit_us"].astype(float) / 1000
    known = [*measured.dropna(), *planned.dropna(), *limit.dropna()]
    longest = max(known, default=1.0) or 1.0
    step = _round_step(longest)
    return {
        "longest": longest * 1.02,
        "ticks": [[step * i, f"{step * i:,g}"] for i in range(int(longest / step) + 1)],
        "rows": [
            {
                "layer": int(row.layer),
                "measured_ms": _drawn(m),
                "planned_ms": _drawn(row.planned_us / 1000),
                "limit_ms": _drawn(row.limit_us / 1000),
                "fallen": int(fallen.get(row.layer, 0)),
                "certificate": None if tau_layer is None else _certificate(row),
                "tip": _layer_hover(row, float(m), tau_layer),
            }
            for row, m in zip(frames.rows(rows), measured, strict=True)
        ],
    }


def _drawn(ms: float) -> float | None:
    """Where a time stands on the axis, which begins at 0; None where there is none."""
    return None if numbers.is_missing(ms) else round(max(0.0, float(ms)), 4)


def _certificate(row: Any) -> dict[str, Any]:
    """What stands beside the layer's row: mass and climbed levels."""
    if numbers.is_missing(row.lower_mass):
        return {"text": "none" if row.layer_uncertified else "–", "bad": bool(row.layer_uncertified)}
    climbed = _climbed(row)
    text = numbers.bound(row.lower_mass).lstrip("0") if row.lower_mass < 1 else "1"
    return {"text": text + (f" ↑{climbed}" if climbed else ""), "bad": bool(row.layer_uncertified)}


def _climbed(row: Any) -> int:
    return 0 if numbers.is_missing(row.raised) else int(row.raised)


def _layer_hover(row: Any, measured_ms: float, tau_layer: float | None) -> str:
    limit = "none" if numbers.is_missing(row.limit_us) else numbers.micros(row.limit_us)
    lines = [
        f"layer {row.layer}",
        f"measured {numbers.millis(measured_ms)}: kernel {numbers.micros(row.kernel_us)}, "
        f"probe {numbers.micros(row.probe_us)},",
        f"index {numbers.micros(row.index_us)}, routing {numbers.micros(row.route_us)}",
        f"predicted {numbers.micros(row.planned_us)} · Tℓ {limit}",
        f"dense, predicted {numbers.micros(row.dense_us)}",
    ]
    if not numbers.is_missing(row.units):
        lines.append(
            f"all segments: {int(row.dense_fallback)} of {int(row.units)} units dense by fallback, "
            f"{int(row.expanded)} expanded"
        )
        if row.uncertified:
            lines.append(numbers.uncertified(row.uncertified, row.units))
    if tau_layer is None:
        return "\n".join(lines)
    if not numbers.is_missing(row.lower_mass):
        tau = numbers.threshold(tau_layer)
        lines.append(f"certified mean mass {numbers.bound(row.lower_mass)} · τ layer {tau}")
    elif not row.layer_uncertified:
        lines.append("all heads dense: no certificate needed")
    if climbed := _climbed(row):
        lines.append(f"raised {numbers.several(climbed, 'level')} by its certificate")
    return "\n".join([*lines, "the layer ran uncertified"] if row.layer_uncertified else lines)


def _round_step(longest: float) -> float:
    """A tick distance of 1, 2 or 5 times a power of ten that gives two to four ticks."""
    power = 10.0 ** np.floor(np.log10(max(longest, 1e-9)))
    return float(next(s * power for s in (0.2, 0.5, 1.0, 2.0, 5.0) if longest / (s * power) <= 3.2))


def legend(choices: pd.DataFrame, shown: Cells, metric: str, theme: design.Theme) -> str:
    """What the colours mean, then the letters with their number of units, and the corners."""
    if metric == "shape":
        return _legend_shape(choices, shown.colors.size - len(choices), theme)
    counts = choices["pattern"].value_counts()
    letters = []
    for pattern in families.in_order(counts.index[counts > 0]):
        color = theme.pattern(pattern) if metric == "pattern" else theme.panel
        style = f"background:{color};color:{design.text_on(color)}"
        name = f"{design.name(pattern)} {counts.get(pattern, 0):,}"
        letters.append(f'<span><i style="{style}">{design.letter(pattern)}</i>{name}</span>')
    grey = shown.colors.size - len(choices)
    if metric == "pattern" and grey:
        letters.append(_swatch(theme.null, f"not recorded {grey:,}"))
    scale = "" if metric == "pattern" else _legend_scale(shown, metric, theme)
    return f'{scale}<div class="rs-legend">{"".join(letters)}{_corners(choices)}</div>'


def _legend_shape(choices: pd.DataFrame, grey: int, theme: design.Theme) -> str:
    """Letter, colour and number of heads of each shape; grey: cells that were not recorded."""
    counts = choices["shape"].value_counts()
    colors = dict(zip(PARTS, theme.shapes, strict=True)) | {"dense": theme.panel}
    items = [
        f'<span><i style="background:{color};color:{design.text_on(color)}">{design.SHAPE_LETTERS[kind]}</i>'
        f"{kind} {counts[kind]:,}</span>"
        for kind, color in colors.items()
        if kind in counts
    ]
    if missing := int(choices["shape"].isna().sum()):
        items.append(f"<span>? not measured {missing:,}</span>")
    if grey:
        items.append(_swatch(theme.null, f"not recorded {grey:,}"))
    return f'<div class="rs-legend">{"".join(items)}{_corners(choices)}</div>'


def reading(cell: int) -> str:
    """HTML: how a cell of the lens shape is read. cell: tokens of a cell of the probe."""
    coarse = " Coarse: this run kept its probe in large cells." if cell > 128 else ""
    return (
        f'<div class="rs-note" title="Sink: first {cell:,} tokens; local: newest {cell:,} to {2 * cell:,}">Widths: '
        f"where attention lies{glossary.mark('shape')}; height: how much is read.{coarse}</div>"
    )


def margin(layers: pd.DataFrame, several_segments: bool, theme: design.Theme) -> str:
    """HTML: what stands right of the map. layers: rows of queries.layers."""
    everywhere = ", all segments" if several_segments else ""
    marks = ['<i class="rs-bar"></i> measured', "<b>|</b> predicted"]
    if layers["limit_us"].notna().any():
        marks.append(f'<b style="color:{theme.warn}">|</b> Tℓ')
    return f"ms a layer{everywhere}: {', '.join(marks)}"


def _corners(choices: pd.DataFrame) -> str:
    """What the marks in the corners of cells mean, of those that are there."""
    fallback = choices["fallback"]
    told = {
        "■ dense by fallback": (fallback == "dense").any(),
        "◥ expanded": (fallback == "expand").any(),
        "◢ uncertified": choices["uncertified"].any(),
    }
    return "".join(f"<span>{mark}</span>" for mark, there in told.items() if there)


def _swatch(color: str, name: str) -> str:
    return f'<span><i style="background:{color}"></i>{name}</span>'


def _legend_scale(shown: Cells, metric: str, theme: design.Theme) -> str:
    """A metric's ends, and grey for not measured."""
    if metric == "fallback":
        last = len(FALLBACK_STEPS) - 1
        steps = (_swatch(design.scale_color(theme, i / last), name) for i, name in enumerate(FALLBACK_STEPS))
        return f'<div class="rs-legend">{"".join(steps)}</div>'
    # A dense head has no certificate and no error: that is no gap in what was measured.
    told = "not measured, or a dense head" if metric in ("lower_mass", "audited_error") else "not measured"
    grey = _swatch(theme.null, told)
    if shown.values is None or np.isnan(shown.values).all():
        return f'<div class="rs-legend">{grey}</div>'
    low, high = value_text(metric, shown.low), value_text(metric, shown.high)
    return elements.scale_html(low, high, theme.scale, grey)
