"""The prompt as bars of key blocks: which share of heads still reads each."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from routesparse.app.ui import design


def figure(readers: pd.DataFrame, theme: design.Theme, block_tokens: int, picked: int) -> go.Figure:
    """Per cell of key blocks the share of heads whose plan reads it; grey where no recorded row comes after it."""
    plain = design.blend(theme.panel, theme.accent, 0.72)
    unknown = readers["heads_share"].isna()
    bars = {
        "type": "bar",
        "x": (readers["key_block"] * block_tokens).tolist(),
        "y": readers["heads_share"].fillna(1.0).tolist(),
        "width": (readers["blocks"] * block_tokens * 0.9).tolist(),
        "offset": 0,
        "marker": {
            "color": [theme.null if nothing else plain for nothing in unknown],
            "line": {"width": 0},
        },
        "customdata": [
            "read by the dense tail alone" if u else f"{s:.0%} of heads"
            for u, s in zip(unknown, readers["heads_share"], strict=True)
        ],
        "hovertemplate": "keys from token %{x:,}<br>%{customdata}<extra></extra>",
    }
    return design.chart(
        theme,
        [bars],
        yaxis={
            "range": [0, 1.02],
            "tickformat": ".0%",
            "nticks": 3,
            "fixedrange": True,
            "title": {"text": "heads that read it"},
        },
        xaxis={"tickformat": ",", "title": {"text": "key token"}, "fixedrange": True, "showgrid": False},
        height=150,
        margin={"l": 62, "r": 6, "t": 6, "b": 38},
        shapes=[
            {
                "type": "rect",
                "name": "picked",  # left out of saved pictures
                "x0": row.key_block * block_tokens,
                "x1": (row.key_block + 0.9 * row.blocks) * block_tokens,
                "y0": 0,
                "y1": row.height,
                "fillcolor": theme.warn,
                "line": {"width": 0},
            }
            for row in readers.assign(height=bars["y"]).itertuples()
            if row.key_block == picked
        ],
        bargap=0,
        barcornerradius=0,
    )
