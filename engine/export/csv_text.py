"""Tables as CSV for spreadsheets, which take a cell that begins with ``=``, ``+``, ``-`` or ``@`` for a formula.

The rule: a text that begins with one of these, also behind blanks or in its wide form, or with a tab or a line's end,
gets an apostrophe in front; names of columns too. Numbers stay numbers, and so does a text that is one, such as "-1.5".
Parquet keeps every text as it is.
"""

from __future__ import annotations

import csv
import re
from typing import Any

import pandas as pd

_FORMULA = re.compile(r"[\t\r\n]|\s*[=+\-@＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def as_csv(rows: pd.DataFrame, **options: Any) -> str:
    """The rows without their index, texts quoted: in some a line's end would begin another row. options: of to_csv."""
    texts = rows.select_dtypes(exclude=["number", "bool"]).columns
    told = rows.assign(**{name: rows[name].map(_inert) for name in texts}).rename(columns=_inert)
    return told.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC, **options)


def _inert(value: Any) -> Any:
    formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if formula else value
