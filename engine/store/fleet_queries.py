"""What the page Fleet reads: the requests that servers recorded, with their verdicts, and their figures by day.

A server records one in so many of the requests that it routes (``served`` in a run's configuration). Days are UTC.
Prompts that were not routed leave no record, so every share is one of routed requests.
"""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd

from routesparse.engine.store import queries, verdicts
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.verdict import LEVELS


def recorded_days(store: OwnerView) -> tuple[str, str] | None:
    """The first and the last day on which a request was recorded; None if there never was one."""
    [(first, last)] = store.rows(
        "SELECT min(utc_day(created_at)), max(utc_day(created_at)) FROM run "
        "WHERE served_one_in(config_json) IS NOT NULL"
    )
    return None if first is None else (str(first), str(last))


def requests(store: OwnerView, last_day: str, days: int) -> pd.DataFrame:
    """The requests recorded on so many days up to the last one, with the columns of queries.runs and

    ``level`` (of the verdict), ``red``, ``fell_back`` (share of units that were expanded or became dense by fallback),
    ``deciding_ms`` (probe, index and route).
    """
    last = datetime.date.fromisoformat(last_day)
    wanted = tuple((last - datetime.timedelta(back)).isoformat() for back in range(days))
    found = queries.runs(store, queries.RunFilter(sources=("server request",), days=wanted))
    levels = [verdict.level for verdict in verdicts.of_rows(found)]
    units = found["units"].where(found["units"] > 0)
    return found.assign(
        level=levels,
        red=[level == "red" for level in levels],
        drift_alarm=found["drift_alarm"].astype("boolean").astype("Float64").to_numpy(float, na_value=np.nan),
        fell_back=(found["expanded_units"] + found["dense_fallback_units"]) / units,
        deciding_ms=found["probe_ms"] + found["index_ms"] + found["route_ms"],
    )


def by_day(found: pd.DataFrame) -> pd.DataFrame:
    """The figures of each model and day, of what ``requests`` found. Shares of units are over all units of a day."""
    groups = found.groupby(["model", "day"])
    sums = groups[
        ["units", "sparse_units", "expanded_units", "dense_fallback_units", "uncertified_units"]
    ].sum()
    units, sparse = (sums[name].where(sums[name] > 0) for name in ("units", "sparse_units"))
    keys = [found["model"], found["day"]]
    counts: dict[str, pd.Series] = {level: (found["level"] == level).groupby(keys).sum() for level in LEVELS}
    return pd.DataFrame(
        {
            "requests": groups.size(),
            "least_one_in": groups["one_in"].min(),
            "most_one_in": groups["one_in"].max(),
            "median_tokens": groups["tokens"].median(),
            "p95_tokens": groups["tokens"].quantile(0.95),
            "median_density": groups["density"].median(),
            "worst_density": groups["density"].max(),
            "fell_back": (sums["expanded_units"] + sums["dense_fallback_units"]) / units,
            "expanded": sums["expanded_units"] / units,
            "dense_by_fallback": sums["dense_fallback_units"] / units,
            **counts,
            "certified": 1 - sums["uncertified_units"] / sparse,
            "drift_alarms": groups["drift_alarm"].sum(),
            "drift_assessed": groups["drift_alarm"].count(),
            "median_deciding_ms": groups["deciding_ms"].median(),
            "median_kernel_ms": groups["kernel_ms"].median(),
        }
    ).reset_index()
