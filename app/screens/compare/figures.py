"""The pictures of a comparison: what changed per head, which pattern became which, and where domains disagree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import design, grid, numbers

MOST_HEADS_WITH_TEXT = 16  # a wider map has room for a letter only
# metric of the difference map -> (name, unit of the difference, how a value is printed)
MAPS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "choice": ("Choice", "changed candidate", str),
    "density": ("Kept", "points of the body’s causal area kept", lambda v: f"{100 * v:+.1f}"),
    "gate_statistic": ("Gate statistic", "gate statistic g", lambda v: f"{v:+.3f}"),
    "lower_mass": ("Certified", "certified retained mass (in-prompt)", lambda v: f"{v:+.3f}"),
    "conformal_lower_mass": ("Conformal", "conformal lower bound", lambda v: f"{v:+.3f}"),
    "audited_mass": ("Audited mass", "audited retained mass", lambda v: f"{v:+.3f}"),
    "audited_error": ("Error", "relative output error", lambda v: f"{v:+.3f}"),
}


def difference_map(
    pairs: pd.DataFrame, metric: str, shape: tuple[int, int], theme: design.Theme
) -> tuple[dict[str, Any], pd.DataFrame]:
    """One segment's pairs on the layer x head grid; also the rows drawn, with ``difference`` (other - baseline)."""
    layers, heads = shape
    height = grid.row_height(layers)
    wide = heads <= MOST_HEADS_WITH_TEXT
    if metric == "choice":
        rows = pairs.assign(difference=np.nan)
        color = [
            design.pattern_color(theme, row.pattern_b, row.density_b)
            if row.changed
            else design.blend(theme.panel, theme.line, 0.6)
            for row in rows.itertuples()
        ]
        text = [_change(row.pattern_a, row.pattern_b, row.changed, wide) for row in rows.itertuples()]
    else:
        rows = pairs.assign(
            difference=pairs[f"{metric}_b"].astype(float) - pairs[f"{metric}_a"].astype(float)
        )
        known = rows["difference"].dropna().abs()
        largest = float(known.max()) if len(known) else 0.0
        show = MAPS[metric][2]
        color = [theme.null if np.isnan(d) else grid.diverging(d, largest, theme) for d in rows["difference"]]
        text = ["–" if np.isnan(d) else show(d) if wide else "" for d in rows["difference"]]
    cells = pd.DataFrame(
        {
            "row": rows["layer"],
            "column": rows["head"],
            "color": color,
            "text": text,
            "strong": rows["changed"] if metric == "choice" else False,
            "hover": [_hover(row, metric) for row in rows.itertuples()],
        }
    )
    axes = (
        grid.Axis("layer", [str(i) for i in range(layers)]),
        grid.Axis("head", [str(i) for i in range(heads)]),
    )
    return grid.drawing(cells, *axes, theme, height), rows


def transition_matrix(counts: pd.DataFrame, theme: design.Theme) -> dict[str, Any]:
    """Units by baseline's pattern (rows) and the other's (columns); the diagonal kept its family."""
    names = [f"{design.letter(p)} · {design.name(p)}" for p in counts.index]
    most = int(counts.to_numpy().max()) or 1
    rows = []
    for i, before in enumerate(counts.index):
        for j, after in enumerate(counts.index):
            count = int(counts.loc[before, after])
            base = theme.mute if i == j else theme.accent
            rows.append(
                {
                    "row": i,
                    "column": j,
                    "color": design.blend(
                        theme.panel, base, 0.05 + (0.45 if i == j else 0.75) * count / most
                    ),
                    "text": f"{count:,}" if count else "·",
                    "strong": False,
                    "hover": f"{design.name(before)} → {design.name(after)}\n{numbers.several(count, 'unit')}",
                }
            )
    axes = (grid.Axis("", names), grid.Axis("", [design.letter(p) for p in counts.index]))
    return grid.drawing(pd.DataFrame(rows), *axes, theme, 40)


def most_bits(rows: pd.DataFrame) -> float:
    """What the strongest shade of ``entropy_map`` stands for: the largest value, at least one bit."""
    return max(1.0, float(rows["bits"].max()))


def entropy_map(rows: pd.DataFrame, theme: design.Theme) -> dict[str, Any]:
    """Bits of each head's choice over domains: pale heads choose alike everywhere."""
    layers, heads = int(rows["layer"].max()) + 1, int(rows["head"].max()) + 1
    top = most_bits(rows)
    height = grid.row_height(layers)
    cells = pd.DataFrame(
        {
            "row": rows["layer"],
            "column": rows["head"],
            "color": [design.scale_color(theme, bits / top) for bits in rows["bits"]],
            "text": [
                f"{design.letter(row.usual)} {row.bits:.1f}"
                if heads <= MOST_HEADS_WITH_TEXT
                else design.letter(row.usual)
                for row in rows.itertuples()
            ],
            "strong": False,
            "hover": [
                f"layer {row.layer}, head {row.head}\n{row.bits:.2f} bits over {row.domains} domains"
                f"\nmostly {design.name(row.usual)}: {numbers.share(row.usual_share, 0)}"
                for row in rows.itertuples()
            ],
        }
    )
    axes = (
        grid.Axis("layer", [str(i) for i in range(layers)]),
        grid.Axis("head", [str(i) for i in range(heads)]),
    )
    return grid.drawing(cells, *axes, theme, height)


def _change(before: str, after: str, changed: bool, wide: bool) -> str:
    one, other = design.letter(before), design.letter(after)
    if not changed:
        return one
    if one == other:
        return f"{one}′"
    return f"{one}→{other}" if wide else other


def _hover(row: object, metric: str) -> str:
    values = row._asdict()  # type: ignore[attr-defined]
    lines = [f"layer {values['layer']}, head {values['head']}"]
    for name, side in (("baseline", "a"), ("other", "b")):
        value = "" if metric == "choice" else f", {numbers.mass(values[f'{metric}_{side}'], 4)}"
        lines.append(f"{name}: {design.name(values[f'pattern_{side}'])} ({values[f'budget_{side}']}){value}")
    return "\n".join(lines)
