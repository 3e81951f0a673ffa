"""The prompt as bars of key blocks: which share of heads still reads each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import design, numbers, plot


def figure(readers: pd.DataFrame, theme: design.Theme, block_tokens: int, picked: int) -> dict[str, Any]:
    """Per cell of key blocks the share of heads whose plan reads it; grey where no recorded row comes after it."""
    plain = design.blend(theme.panel, theme.accent, 0.72)
    left = readers["key_block"] * block_tokens
    right = left + 0.9 * readers["blocks"] * block_tokens
    unknown = readers["heads_share"].isna()
    at = np.column_stack([left, right, np.zeros(len(readers)), readers["heads_share"].fillna(1.0)])
    told = [
        [f"{token:,}", "read by the dense tail alone" if nothing else f"{numbers.share(share, 0)} of heads"]
        for token, nothing, share in zip(left, unknown, readers["heads_share"], strict=True)
    ]
    hover, colors = "keys from token {0}\n{1}", [theme.null if nothing else plain for nothing in unknown]
    here = (readers["key_block"] == picked).to_numpy()
    marks = [
        plot.bars(at.tolist(), colors, hover, told),
        plot.bars(at[here].tolist(), theme.warn, "", [], hatch="/", ring=True),
    ]
    x_axis = replace(plot.linear("key token", 0, float(right.max())), grid=False)
    y_axis = plot.linear("heads that read it", 0, 1.02, percent=True, most=3)
    return plot.chart(x_axis, y_axis, marks, 150, theme, top=6)
