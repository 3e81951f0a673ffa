"""A coloured table tells Streamlit what a Styler of pandas would. No GPU."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from streamlit.dataframe_util import convert_anything_to_arrow_bytes
from streamlit.elements.lib.pandas_styler_utils import marshall_styler
from streamlit.proto.ArrowData_pb2 import ArrowData

from routesparse.app.ui.colored import colored

ROWS = 7
COLORS = [f"#00000{row % 3}" for row in range(ROWS)]
TABLE = pd.DataFrame(
    {
        "prompt": ["a", None, "c", "d", "e", "f", "<b>"],
        "verdict": pd.Series([f"word {row}" for row in range(ROWS)], dtype=object),
        "share": [1e-9, None, 1e12, -0.5, 1 / 3, float("inf"), 2.0],
        "single": np.ones(ROWS, np.float32),
        "count": range(ROWS),
        "perhaps": pd.Series([None, "y", 1.5, True, 3, None, "z"], dtype=object),
        "created": pd.to_datetime(["2026-01-01 10:00", *[None] * (ROWS - 1)], utc=True),
        "kind": pd.Series(["x", None] * 3 + ["y"], dtype="category"),
        "flag": [True, False] * 3 + [True],
        "nullable": pd.Series([1, None] * 3 + [2], dtype="Int64"),
    }
)


def told(styler):
    proto = ArrowData()
    marshall_styler(proto, styler, "same")
    return proto.styler


@pytest.mark.parametrize("rows", [ROWS, 1, 0])
def test_styles_and_printed_values_are_those_of_pandas(rows):
    table, colors = TABLE[:rows], COLORS[:rows]
    wanted = table.style.apply(
        lambda _: [f"color: {color}; font-weight: 600" for color in colors], subset=["verdict"]
    ).set_uuid("same")
    mine = colored(table, "verdict", [[("color", color), ("font-weight", "600")] for color in colors])
    assert told(mine.set_uuid("same")) == told(wanted)
    assert mine.data.equals(table)
    assert convert_anything_to_arrow_bytes(mine) == convert_anything_to_arrow_bytes(wanted)
