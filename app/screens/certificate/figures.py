"""What was certified, head by head, on a layer x head grid: stronger where more was lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from routesparse.app.ui import design, grid, numbers

MOST_HEADS_WITH_TEXT = 16


@dataclass(frozen=True)
class Metric:
    """One column of the claims as a map. lost: how much a value loses; least: what the strongest colour is at least."""

    name: str
    unit: str
    lost: Callable[[float], float]
    least: float
    text: Callable[[float], str]


METRICS = {
    "mean_error": Metric(
        "Output error", "mean relative output error, each row counted up to 1", float, 0.01, numbers.small
    ),
    "largest_error": Metric(
        "Worst row", "largest relative output error of the rows drawn", float, 0.01, "{:.2g}".format
    ),
    "mass": Metric(
        "Retained mass", "mean retained mass of the plan", lambda mass: 1.0 - mass, 0.05, numbers.mass
    ),
    "hit_rate": Metric(
        "Largest key",
        "share of rows whose largest key the plan reads",
        lambda hit: 1.0 - hit,
        0.05,
        lambda hit: numbers.share(hit, 0),
    ),
}


def metrics(heads: pd.DataFrame) -> dict[str, Metric]:
    """Those that were measured."""
    return {name: metric for name, metric in METRICS.items() if heads[name].notna().any()}


def worst_of_batch(heads: pd.DataFrame, name: str) -> pd.DataFrame:
    """One row a layer and head: of several prompts the one that lost most by this metric."""
    lost = heads[name].astype(float).map(METRICS[name].lost).fillna(-1.0)
    order = heads.assign(lost=lost).sort_values("lost", ascending=False, kind="stable")
    return order.drop_duplicates(["layer", "head"]).sort_values(["layer", "head"])


def head_map(heads: pd.DataFrame, name: str, shape: tuple[int, int], theme: design.Theme) -> dict[str, Any]:
    """heads: claims of scope "head". Infinite errors have the strongest colour; the text says that they are."""
    metric, rows = METRICS[name], worst_of_batch(heads, name)
    lost = rows["lost"].clip(lower=0.0)
    finite = lost[lost < float("inf")]
    top = max(metric.least, float(finite.max()) if len(finite) else 0.0)
    wide = shape[1] <= MOST_HEADS_WITH_TEXT
    values = rows[name].astype(float)
    cells = pd.DataFrame(
        {
            "row": rows["layer"],
            "column": rows["head"],
            "color": [design.scale_color(theme, min(1.0, one / top)) for one in lost],
            "text": ["–" if pd.isna(v) else metric.text(v) if wide else "" for v in values],
            "strong": False,
            "hover": [_hover(row) for row in rows.itertuples()],
        }
    )
    layers, heads_count = shape
    axes = (
        grid.Axis("layer", [str(i) for i in range(layers)]),
        grid.Axis("head", [str(i) for i in range(heads_count)]),
    )
    return grid.drawing(cells, *axes, theme, grid.row_height(layers))


def _hover(row: object) -> str:
    values = row._asdict()  # type: ignore[attr-defined]
    lines = [
        f"layer {values['layer']}, head {values['head']}",
        f"output error {numbers.small(values['mean_error'])}, worst row {values['largest_error']:.2g}",
    ]
    if not numbers.is_missing(values["mass"]):
        told = f"retained mass {numbers.mass(values['mass'])}"
        lines.append(f"{told}, largest key in {numbers.share(values['hit_rate'], 0)} of rows")
    return "\n".join(lines)
