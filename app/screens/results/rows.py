"""The numbers of an evaluation as rows to download, and its tables as HTML."""

from __future__ import annotations

from dataclasses import asdict
from html import escape

import pandas as pd

from routesparse.app.ui import numbers
from routesparse.app.ui.tables import framed
from routesparse.engine.results.evaluations import Estimate, Evaluation
from routesparse.engine.results.tables import Table

_VOID = (numbers.NOT_MEASURED, "–", "not run")
_LONG = 34  # characters of a cell of words that may wrap
_WIDE = 12  # of any other cell, where the window is too narrow for all columns


def method_rows(found: Evaluation) -> pd.DataFrame:
    """One row a length and method; what was not measured is empty."""
    rows = []
    for length in found.lengths:
        for row in found.at(length):
            values = asdict(row)
            for name in ("tasks", "good_tasks", "newcombe", "difference", "ratio", "worst_decile"):
                values.pop(name)
            low, high = row.newcombe or (None, None)
            rows.append(
                {
                    "suite": found.suite,
                    **values,
                    **_spread("difference", row.difference),
                    **_spread("perplexity_ratio", row.ratio),
                    **_spread("worst_decile", row.worst_decile),
                    "newcombe_low": low,
                    "newcombe_high": high,
                    "tasks_where_dense_reaches_80": None if row.good_tasks is None else len(row.good_tasks),
                    "seed": found.seed,
                    "devices": ", ".join(found.devices) or None,
                }
            )
    return pd.DataFrame(rows)


def task_rows(found: Evaluation) -> pd.DataFrame:
    """One row a length, method and task."""
    rows = [
        {
            "suite": found.suite,
            "length": length,
            "method": row.method,
            "setting": row.setting,
            "task": one.task,
            "n": one.n,
            "few_clusters": one.few_clusters,
            "score": one.score,
            "dense": one.dense,
            **_spread("difference", one.difference),
            "harmed": one.harmed,
        }
        for length in found.lengths
        for row in found.at(length)
        for one in row.tasks
    ]
    return pd.DataFrame(rows)


def of_table(table: Table) -> pd.DataFrame:
    """A table's cells as they stand."""
    return pd.DataFrame(list(table.rows), columns=list(table.heads))


def html(table: Table, picked: str | None = None) -> str:
    """A table in the frame of pages; grey where nothing was measured. picked: the row of this method is marked."""
    head = "".join(
        f"<th{' class=l' if place in table.left else ''}>{_breakable(name)}</th>"
        for place, name in enumerate(table.heads)
    )
    lines = []
    for row in table.rows:
        cells = "".join(
            f'<td class="{_class(place, cell, table)}">{_breakable(cell)}</td>'
            for place, cell in enumerate(row)
        )
        lines.append(f"<tr{' class=pick' if picked is not None and picked in row[:2] else ''}>{cells}</tr>")
    return framed(f"<tr>{head}</tr>{''.join(lines)}")


def _class(place: int, cell: str, table: Table) -> str:
    names = ["l"] if place in table.left else []
    long = place in table.left and len(cell) > _LONG
    names += ["say"] if long else ["wrap"] if len(cell) > _WIDE else []
    names += ["no"] if cell in _VOID else []
    return " ".join(names)


def _breakable(text: str) -> str:
    """As HTML; a name may break behind its underscores."""
    return escape(text).replace("_", "_<wbr>")


def _spread(name: str, found: Estimate | None) -> dict[str, float | None]:
    parts = (None, None, None) if found is None else (found.value, found.low, found.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), parts, strict=True))
