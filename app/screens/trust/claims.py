"""What is said over prompts: the three claims, how often the audit found each true, and the rate of fallbacks.

The unit of evidence is the prompt, never the head: heads of a prompt share its rows. Runs of the same text are one
cluster, so analysing a prompt twice does not narrow the interval. Where every prompt is alike there is no interval:
resampling would say 100 % to 100 %.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
import streamlit as st

from routesparse.app.shell import scope
from routesparse.app.ui import design, drift_note, glossary, numbers
from routesparse.engine.stats.clusters import clustered_interval

GROUPS = {"domain": "Domain", "length": "Length", "family": "Family", "layer": "Layer"}
_COLUMNS = ("group", "runs", "prompts", "units", "mean", "sd", "least", "most", "low", "high")
FALLBACK = "fallback"  # beside the claims: the share of units that became dense by fallback


class Claim(NamedTuple):
    """One certificate: its name, its term, and what its coverage is called."""

    name: str
    term: str
    figure: str


CLAIMS = {
    "in_prompt": Claim("In-prompt certificate", "certificate", "coverage"),
    "conformal": Claim("Conformal, head", "conformal", "empirical coverage"),
    "row": Claim("Row statement", "row_statement", "rows covered"),
}


def per_prompt(coverage: pd.DataFrame, runs: pd.DataFrame, claim: str, by: str | None) -> pd.DataFrame:
    """One row per run (and group): the covered share ``value`` of its ``units``; runs without the claim left out.

    coverage: rows of audit_queries.coverage, for FALLBACK of fallback_queries.kinds_by_layer; by: one of GROUPS, or
    None for whole prompts.
    """
    if claim == FALLBACK:
        rows = coverage.assign(covered=coverage["units"].where(coverage["kind"] == "dense by fallback", 0))
    else:
        rows = coverage.assign(units=coverage[f"{claim}_units"], covered=coverage[f"{claim}_covered"])
        rows = rows[rows["units"] > 0]
    rows = rows.merge(runs[["run_id", "prompt_name", "prompt_sha256", "domain", "tokens"]], on="run_id")
    order = {"length": rows["tokens"], "layer": rows["layer"]}.get(by or "", pd.Series(0, rows.index))
    rows = rows.assign(group="all prompts" if by is None else _group(rows, by), order=order)
    keys = ["run_id", "prompt_name", "prompt_sha256", "tokens", "group"]
    summed = rows.groupby(keys, as_index=False).agg(
        units=("units", "sum"), covered=("covered", "sum"), order=("order", "min")
    )
    summed["value"] = summed["covered"] / summed["units"].where(summed["units"] > 0)
    return summed.sort_values(["order", "group", "run_id"], kind="stable", ignore_index=True)


def _group(rows: pd.DataFrame, by: str) -> pd.Series:
    """The group of each row, in words; a word is made once for all rows that have it."""
    if by == "domain":
        return rows["domain"].fillna("no domain")
    column, told = {
        "length": ("tokens", scope.length_bucket),
        "family": ("pattern", lambda p: f"{design.letter(p)} · {design.name(p)}"),
        "layer": ("layer", "layer {}".format),
    }[by]
    return rows[column].map({value: told(value) for value in rows[column].unique()})


def cards_html(coverage: pd.DataFrame, runs: pd.DataFrame, gaps: pd.Series, confidence: float) -> str:
    """The three claims side by side."""
    boxes = []
    for key, claim in CLAIMS.items():
        groups = by_group(per_prompt(coverage, runs, key, None))
        void = drift_note.of_several(runs) if key == "conformal" else ""
        boxes.append(_card(claim, groups, _gap(key, gaps), confidence, void))
    return f'<div class="rs-claims rs-three">{"".join(boxes)}</div>'


def _card(claim: Claim, groups: pd.DataFrame, gap: str, confidence: float, void: str) -> str:
    q = numbers.share(confidence, 0)
    figures = '<b class="none">coverage not measured</b>'
    if not groups.empty:
        row = groups.iloc[0]
        met = row["mean"] >= confidence - 1e-9
        figures = (
            f'<b>{numbers.share(row["mean"], 2)}</b><em class="{"" if met else "bad"}">{claim.figure}, '
            f"{'at or above' if met else 'below'} the nominal {q}</em><small>{_spread(row)}{gap}</small>{void}"
        )
    return f"<div><span>{claim.name}{glossary.mark(claim.term)}</span>{figures}</div>"


def _spread(row: pd.Series) -> str:
    count = f"{numbers.several(int(row['prompts']), 'prompt')}, {int(row['units']):,} sparse units"
    if numbers.is_missing(row["low"]):
        return f"{count}; one prompt has no interval. "
    if row["sd"] == 0:
        return f"{count}; every prompt has the same share, so there is no interval. "
    return (
        f"{count}; 95 % interval {numbers.share(row['low'], 2)} to {numbers.share(row['high'], 2)}, spread "
        f"{numbers.share(row['sd'], 2)}, lowest prompt {numbers.share(row['least'], 1)}. "
    )


def _gap(claim: str, gaps: pd.Series) -> str:
    if claim == "row" or numbers.is_missing(gaps[f"{claim}_gap"]):
        return ""
    return (
        f"Audited minus claimed: median {numbers.mass(gaps[f'{claim}_gap'])}, "
        f"95th percentile {numbers.mass(gaps[f'{claim}_gap_p95'])}."
    )


def by_group(per_prompt: pd.DataFrame) -> pd.DataFrame:
    """One row per group, with _COLUMNS; rows whose ``value`` is NULL are left out, not counted as 0.

    per_prompt: one row per run with the columns ``group``, ``value``, ``prompt_sha256`` and ``units``. ``low`` and
    ``high`` are NULL with fewer than two prompts: one prompt has no interval.
    """
    known = per_prompt.dropna(subset=["value"])
    rows = [
        _summary(str(name), tuple(part["value"]), tuple(part["prompt_sha256"]), int(part["units"].sum()))
        for name, part in known.groupby("group", sort=False)
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


@st.cache_data(max_entries=512, show_spinner=False)
def _summary(
    name: str, values: tuple[float, ...], prompts: tuple[str, ...], units: int
) -> tuple[object, ...]:
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
