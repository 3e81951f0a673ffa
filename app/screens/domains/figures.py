"""The pictures of domains: their heads as small multiples, what differs head by head, and loss over price."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.screens.domains.heads import PARTS
from routesparse.app.screens.domains.words import parts_text
from routesparse.app.ui import design, grid, numbers, plot
from routesparse.engine.calibration.fitted import DEFAULT_LOSS, Fitted

_ROW_PX = 15
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "hexagon", "circle")
LENSES = {"shape": "What heads read", "density": "How much", "loss_nats": "Predicted loss"}


def part_colors(theme: design.Theme) -> dict[str, str]:
    """The colour of each share of a head's attention."""
    return dict(zip(PARTS, theme.shapes, strict=True))


def heads_of(rows: pd.DataFrame, lens: str, largest: float, theme: design.Theme) -> dict[str, Any]:
    """One domain's heads, a cell each. rows: heads.by_domain of it; largest: of the lens over all domains.

    Lens "shape": widths are shares of a head's attention, the height design.strength of its density.
    """
    rows = rows.reset_index(drop=True)
    layers, columns = int(rows["layer"].max()) + 1, int(rows["head"].max()) + 1
    left, bottom = rows["head"] + 0.04, rows["layer"] + 0.95
    marks = []
    known = rows[PARTS[0]].notna()
    if lens == "shape":
        edges = rows[PARTS].fillna(0).cumsum(axis=1).clip(upper=1) * 0.92
        top = bottom - 0.9 * rows["density"].map(design.strength)
        before = left
        for part, color in part_colors(theme).items():
            after = left + edges[part]
            marks.append(
                plot.bars(np.column_stack([before, after, bottom, top])[known].tolist(), color, "", [])
            )
            before = after
        cover: str | list[str] = ["#0000" if one else theme.null for one in known]
    else:
        values = rows[lens].astype(float)
        cover = [
            theme.null if np.isnan(value) else design.scale_color(theme, min(1.0, value / (largest or 1.0)))
            for value in values
        ]
    told = [[row["layer"], row["head"], _told(row)] for row in rows.to_dict("records")]
    cells = np.column_stack([left, left + 0.92, bottom, bottom - 0.9]).tolist()
    marks.append(plot.bars(cells, cover, "layer {0}, head {1}\n{2}", told))
    x = plot.Axis("head", (0, columns), [(i + 0.5, str(i)) for i in range(columns)], grid=False)
    y = plot.Axis("layer", (layers, 0), [(i + 0.6, str(i)) for i in range(0, layers, 5)], grid=False)
    return plot.chart(x, y, marks, _ROW_PX * layers + 42, theme, top=2)


def _told(row: dict[Any, Any]) -> str:
    lines = [f"reads {numbers.share(row['density'])} of the causal area", parts_text(row)]
    if not numbers.is_missing(row["loss_nats"]):
        lines.append(f"predicted loss {1000 * row['loss_nats']:.2f} thousandths of a nat")
    return "\n".join(lines)


def difference_map(rows: pd.DataFrame, names: tuple[str, str], theme: design.Theme) -> dict[str, Any]:
    """domains.changes on the grid of layers and heads; a dot where prompts of one domain differ as much."""
    shape = int(rows["layer"].max()) + 1, int(rows["head"].max()) + 1
    largest = float(rows["difference"].abs().max())
    drawn = (rows["more"] != "") | rows["spread"].isna()
    color = [
        grid.diverging(d, largest, theme) if shown else theme.panel
        for d, shown in zip(rows["difference"], drawn, strict=True)
    ]
    text = [
        numbers.signed(100 * d, 0) if shown else "·"
        for d, shown in zip(rows["difference"], drawn, strict=True)
    ]
    hover = [
        f"layer {row['layer']}, head {row['head']}\n{names[0]} reads {numbers.share(row['one'])}, {names[1]} "
        f"{numbers.share(row['other'])}: {100 * row['difference']:+.1f} points"
        + (
            ""
            if numbers.is_missing(row["spread"])
            else f"\nprompts of one domain differ by {100 * row['spread']:.1f}"
        )
        for row in rows.to_dict("records")
    ]
    return grid.by_head(rows, shape, theme, color=color, text=text, strong=False, hover=hover)


def loss_over_price(fit: Fitted, theme: design.Theme) -> dict[str, Any]:
    """The mean true loss of a fit's windows at each price, a line a kind of text, and the default target."""
    rows = [row for row in fit.summary() if row["kind"] in fit.domains]
    known = [kl for row in rows for kl in row["kl"].values()] + [DEFAULT_LOSS]
    x = plot.logarithmic("price", min(fit.prices) / 1.12, max(fit.prices) * 1.55)
    y = plot.logarithmic("KL to dense, nats a token", min(known) / 1.3, max(known) * 1.3)
    marks = [
        plot.line(x.range, [DEFAULT_LOSS] * 2, theme.warn, 1.3, "8 5"),
        plot.label(x.range[0], DEFAULT_LOSS, f"target {DEFAULT_LOSS:g}", theme.warn, dx=4, dy=-5),
    ]
    colors = (theme.accent, theme.warn, theme.hues[1], theme.hues[0], theme.ink, theme.mute)
    ends: list[float] = []
    for row, color, symbol in zip(rows, colors, _SYMBOLS, strict=False):
        prices, kl = list(row["kl"]), list(row["kl"].values())
        told = [[row["kind"], f"{price:g}", f"{one:.4f}", row["windows"]] for price, one in row["kl"].items()]
        marks.append(plot.line(prices, kl, color, 1.6))
        marks.append(
            plot.points(prices, kl, color, "{0} at price {1}\nKL {2}, n = {3} windows", told, symbol, 7)
        )
        near = next((other for other in ends if abs(np.log(kl[-1] / other)) < 0.2), None)
        dy = 4 if near is None else 14 if kl[-1] < near else -6
        marks.append(plot.label(prices[-1], kl[-1], row["kind"], theme.ink, dx=8, dy=dy, strong=True))
        ends.append(kl[-1])
    return plot.chart(x, y, marks, 330, theme)
