"""Shares per prompt, summarised by group: mean, spread, worst prompt and an interval clustered by prompt text.

The unit of evidence is the prompt, never the head: heads of a prompt share its rows. Runs of the same text are one
cluster, so analysing a prompt twice does not narrow the interval. Where every prompt is alike there is no interval:
resampling would say 100 % to 100 %.
"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from routesparse.engine.stats.coverage import clustered_interval

COLUMNS = ("group", "runs", "prompts", "units", "mean", "sd", "least", "most", "low", "high")


def by_group(per_prompt: pd.DataFrame, group: str, value: str) -> pd.DataFrame:
    """One row per group, with COLUMNS; rows whose value is NULL are left out, not counted as 0.

    per_prompt: one row per run with the columns ``group``, ``value``, ``prompt_sha256`` and ``units``. ``low`` and
    ``high`` are NULL with fewer than two prompts: one prompt has no interval.
    """
    known = per_prompt.dropna(subset=[value])
    rows = [
        _row(str(name), tuple(part[value]), tuple(part["prompt_sha256"]), int(part["units"].sum()))
        for name, part in known.groupby(group, sort=False)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


@st.cache_data(max_entries=512, show_spinner=False)
def _row(name: str, values: tuple[float, ...], prompts: tuple[str, ...], units: int) -> tuple[object, ...]:
    """The row of one group; kept, because the interval resamples the prompts thousands of times."""
    series = pd.Series(values)
    low, high = clustered_interval(values, prompts) if len(set(prompts)) > 1 else (None, None)
    return (
        name,
        len(values),
        len(set(prompts)),
        units,
        float(series.mean()),
        float(series.std(ddof=1)) if len(values) > 1 else None,
        float(series.min()),
        float(series.max()),
        low,
        high,
    )
