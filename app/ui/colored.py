"""A table with one column in colours, for Streamlit's dataframe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

Pair = tuple[str, str]


def colored(table: pd.DataFrame, column: str, styles: Sequence[Sequence[Pair]]) -> Styler:
    """A ``Styler`` that says what Streamlit asks of one, and no more: the cells' styles, and the values as printed.

    pandas makes an HTML table of every cell as well, and Streamlit puts its words cell by cell into a table of texts:
    most of what the page Runs cost. styles: of each row's cell in ``column``, as pairs of property and value.
    """
    made = Styler(_Printed(table))
    selectors: dict[tuple[Pair, ...], list[str]] = defaultdict(list)
    for row, pairs in enumerate(styles):
        selectors[tuple(pairs)].append(f"row{row}_col{table.columns.get_loc(column)}")
    told = {"cellstyle": [{"props": list(pairs), "selectors": cells} for pairs, cells in selectors.items()]}
    # Streamlit takes nothing but this very class for a Styler, so these two methods are the object's own.
    made._compute = lambda: made  # type: ignore[attr-defined]
    made._translate = lambda *_, **__: told  # type: ignore[attr-defined]
    return made


class _Printed(pd.DataFrame):
    """A table whose values as texts are those that a Styler prints: six digits after the point."""

    def astype(self, dtype: Any, *arguments: Any, **options: Any) -> Any:
        if dtype is not str:
            return super().astype(dtype, *arguments, **options)
        told = {name: pd.array(_texts(column), "str") for name, column in self.items()}
        return pd.DataFrame(told, self.index)


def _texts(column: pd.Series) -> list[str]:
    values = column.tolist()
    if column.dtype.kind == "f":
        return [f"{value:.6f}" for value in values]
    return [f"{value:.6f}" if isinstance(value, float) else str(value) for value in values]
