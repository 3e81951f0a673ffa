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
            "color": [
                theme.warn if block == picked else theme.null if nothing else plain
                for block, nothing in zip(readers["key_block"], unknown, strict=True)
            ],
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
        yaxis={"range": [0, 1.02], "tickformat": ".0%", "nticks": 3, "fixedrange": True},
        xaxis={"tickformat": ",", "title": {"text": "key token"}, "fixedrange": True, "showgrid": False},
        height=150,
        margin={"l": 44, "r": 6, "t": 6, "b": 38},
        bargap=0,
        barcornerradius=0,
    )
