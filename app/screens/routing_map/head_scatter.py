"""The heads of one segment by any two figures; a box dragged over them brushes the map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from routesparse.app.screens.routing_map import head_order
from routesparse.app.shell import address, switch, view
from routesparse.app.ui import design, elements, exports, numbers, plot
from routesparse.app.unit.shapes import COLUMNS
from routesparse.engine.method.shape import KINDS, PARTS
from routesparse.engine.rows import RunRow
from routesparse.engine.store import frames, queries
from routesparse.engine.store.owner_view import OwnerView

FIGURES = {
    "density": "area kept",
    "mass": "retained mass",
    "lower_mass": "certified mass",
    "loss_nats": "predicted loss, nats",
    "audited_error": "audited error",
    "disagreement": "disagreement",
    "risk": "risk",
    "entropy": "entropy, nats",
    "layer": "layer",
    **{column: f"attention: {part}" for part, column in zip(PARTS, COLUMNS, strict=True)},
}
_HEIGHT = 300
_GLYPHS = {"circle": "●", "square": "■", "triangle-up": "▲", "diamond": "◆", "hexagon": "⬢"}
_SYMBOLS = dict(zip(KINDS, (*_GLYPHS, "circle"), strict=True))


@dataclass(frozen=True)
class Brush:
    """Two figures, and the box over them, (x0, x1, y0, y1); None: nothing is brushed."""

    x: str
    y: str
    box: tuple[float, float, float, float] | None

    def within(self, choices: pd.DataFrame) -> np.ndarray:
        """bool [heads]: which lie in the box; all where there is none."""
        if self.box is None:
            return np.ones(len(choices), bool)
        x0, x1, y0, y1 = self.box
        found = choices[self.x].between(x0, x1) & choices[self.y].between(y0, y1)
        return found.to_numpy(bool)

    def cells(self, choices: pd.DataFrame, heads: int) -> list[int] | None:
        """The brushed cells of the map, layer by layer."""
        some = choices[self.within(choices)]
        return None if self.box is None else (some["layer"] * heads + some["head"]).tolist()


def read(choices: pd.DataFrame, known: dict[str, str]) -> Brush:
    """What the address says; known: the figures that are offered."""
    y = switch.chosen("y", [head_order.lost(choices) or "risk", *known])
    return Brush(switch.chosen("x", known), y, _box(st.query_params.get("brush", "")))


def offered(choices: pd.DataFrame) -> dict[str, str]:
    """The figures that some heads have."""
    return {name: label for name, label in FIGURES.items() if choices[name].notna().any()}


def _box(text: str) -> tuple[float, float, float, float] | None:
    try:
        x0, x1, y0, y1 = map(float, text.split(","))
        ends = (*sorted((x0, x1)), *sorted((y0, y1)))
    except ValueError:
        ends = (math.nan,) * 4
    if all(map(math.isfinite, ends)):
        return ends  # type: ignore[return-value]
    address.absent("brush", text)
    return None


def card(
    store: OwnerView,
    run: RunRow,
    choices: pd.DataFrame,
    known: dict[str, str],
    brush: Brush,
    picked: tuple[int, int],
) -> None:
    """Draw it; a click opens a head. known: the figures that are offered."""
    with elements.card("head-scatter", "Heads by two figures"):
        with st.container(horizontal=True, gap="small"):
            for axis, label in (("x", "across"), ("y", "up")):
                switch.field(
                    axis, label, list(known), getattr(brush, axis), format_func=known.__getitem__, width=170
                )
        theme = design.current_theme()
        first = choices.iloc[0]
        drawn = store.made(
            "head scatter",
            [int(first["segment"]), int(first["batch_index"]), brush, theme.name],
            lambda: drawing(choices, brush, theme),
            of=[run.run_id],
        )
        here = choices[(choices["layer"] == picked[0]) & (choices["head"] == picked[1])]
        ring = plot.points(
            here[brush.x].astype(float).tolist(),
            here[brush.y].astype(float).tolist(),
            "none",
            "",
            [],
            size=17,
            edge=theme.ink,
            edge_width=2.2,
        )
        chosen = plot.show(
            {**drawn, "marks": [*drawn["marks"], ring]},
            "head-scatter",
            f"{len(choices):,} heads, {known[brush.y]} against {known[brush.x]}",
            picks=True,
            on_window=_take_box,
        )
        st.html(legend(choices, theme))
        if chosen is not None:
            view.write(layer=int(chosen[0]), head=int(chosen[1]))  # type: ignore[call-overload]
            st.rerun()
        if brush.box is None:
            elements.note("Drag a box to dim the others.")
        else:
            count = int(brush.within(choices).sum())
            with st.container(horizontal=True, gap="small", vertical_alignment="center"):
                elements.note(
                    f"{count:,} of {len(choices):,} heads are in the box and stay bright on the map."
                )
                st.button("Clear", key="quiet-brush-clear", type="tertiary", on_click=_take_box, args=([],))
        missing = int(choices[[brush.x, brush.y]].isna().any(axis=1).sum())
        left_out = f", {missing:,} without both figures left out" if missing else ""
        exports.chart_foot(
            f"heads-{queries.label(run.run_id)}-{brush.x}-{brush.y}",
            f"n = {len(choices) - missing:,} heads{left_out} · source: head_choice and audit",
            choices.loc[
                brush.within(choices), ["layer", "head", "shape", *dict.fromkeys((brush.x, brush.y))]
            ],
            "head-scatter",
            chart="head-scatter",
        )


def drawing(choices: pd.DataFrame, brush: Brush, theme: design.Theme) -> dict[str, Any]:
    """A sign a head, of its shape; those outside of the box are pale."""
    marks, within = [], brush.within(choices)
    kinds = choices["shape"].where(choices["shape"].notna(), "shape not measured")
    hover = f"layer {{0}}, head {{1}}: {{2}}\n{FIGURES[brush.x]} {{3}}\n{FIGURES[brush.y]} {{4}}"
    for part, opacity in ((~within, 0.2), (within, 0.9)):
        for kind, rows in choices[part].groupby(kinds[part], sort=False):
            symbol, color = sign(str(kind), theme)
            x, y = (rows[name].astype(float).tolist() for name in (brush.x, brush.y))
            told = [
                (row.layer, row.head, kind, *(_told(row, name) for name in (brush.x, brush.y)))
                for row in frames.rows(rows)
            ]
            marks.append(plot.points(x, y, color, hover, told, symbol, 9, edge=theme.panel, opacity=opacity))
    if brush.box is not None:
        x0, x1, y0, y1 = brush.box
        marks.append(
            plot.line([x0, x1, x1, x0, x0], [y0, y0, y1, y1, y0], theme.accent, 1.2, "4 3", ring=True)
        )
    x, y = (plot.around(FIGURES[name], choices[name]) for name in (brush.x, brush.y))
    return plot.chart(x, y, marks, _HEIGHT, theme)


def sign(kind: str, theme: design.Theme) -> tuple[str, str]:
    """Symbol and colour of a shape."""
    return _SYMBOLS.get(kind, "circle"), dict(zip(PARTS, theme.shapes, strict=True)).get(kind, theme.null)


def legend(choices: pd.DataFrame, theme: design.Theme) -> str:
    """HTML: which sign is which shape, of those that are there."""
    items = [
        f'<span><b style="color:{sign(kind, theme)[1]}">{_GLYPHS[_SYMBOLS[kind]]}</b>&nbsp;{kind}</span>'
        for kind in KINDS
        if (choices["shape"] == kind).any()
    ]
    return f'<div class="rs-legend">{"".join(items)}</div>'


def _told(row: Any, name: str) -> str:
    value = getattr(row, name)
    return numbers.NOT_MEASURED if numbers.is_missing(value) else f"{value:.4g}"


def _take_box(box: Sequence[float]) -> None:
    """What a browser sent becomes part of the address; nothing takes it out."""
    if isinstance(box, list) and len(box) == 4:
        view.write(brush=",".join(f"{float(end):.6g}" for end in box))
    else:
        st.query_params.pop("brush", None)
