"""The columns of the Runs table: what they hold, what they are called, and what a header's hover explains."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app import numbers
from routesparse.app.glossary import TERMS
from routesparse.engine.records import RunRow
from routesparse.engine.store import queries


def rows(runs: pd.DataFrame, baseline: RunRow | None) -> pd.DataFrame:
    """The columns of the table, in its order; with a baseline, prefill time against it."""
    against = {} if baseline is None else {"against": baseline.total_ms / runs["total_ms"]}
    return pd.DataFrame(
        {
            "prompt": runs["prompt_name"].where(~runs["is_sample"], runs["prompt_name"] + "  · sample"),
            "domain": runs["domain"].fillna("–"),
            "tokens": runs["tokens"],
            **against,
            "model": runs["model"],
            "device": runs["device"].map(numbers.device),
            "policy": runs["policy"],
            "limit": runs["budget"].map(numbers.short_limit, na_action="ignore").fillna("none"),
            "tau": runs["tau"],
            "fallback": runs["fallback_share"] * 100,
            "coverage": runs["coverage"] * 100,
            "prefill": runs["total_ms"],
            "dense": runs["dense_ms"],
            "speedup": runs["speedup"],
            "density": runs["density"] * 100,
            "created": pd.to_datetime(runs["created_at"], utc=True, errors="coerce"),
            "run": runs["run_id"].map(queries.label),
        }
    )


def columns() -> dict[str, Any]:
    """Streamlit's column settings by column name."""
    column = st.column_config
    return {
        "prompt": column.TextColumn("Prompt", width=130),
        "domain": column.TextColumn("Domain", width=66),
        "tokens": column.NumberColumn("Tokens", format="localized", width=60),
        "model": column.TextColumn("Model", width=52),
        "device": column.TextColumn("Device", width=86),
        "policy": column.TextColumn("Policy", width=66),
        "limit": column.TextColumn("Tℓ", width=58, help=TERMS["budget"]),
        "tau": column.NumberColumn("τ", format="%.2f", width=46, help=TERMS["tau"]),
        "fallback": column.NumberColumn(
            "Fallback", format="%.1f %%", width=86, help="Units that became dense by fallback"
        ),
        "coverage": column.NumberColumn("Coverage", format="%.1f %%", width=86),
        "prefill": column.NumberColumn("Prefill ms", format="%.0f", width=70),
        "dense": column.NumberColumn("Dense ms", format="%.0f", width=86),
        "speedup": column.NumberColumn("Speedup", format="%.2f×", width=86),
        "against": column.NumberColumn(
            "vs baseline", format="%.2f×", width=86, help="Prefill time of the baseline over this run's"
        ),
        "density": column.NumberColumn(
            "Kept", format="%.1f %%", width=66, help="Kept share of the causal area, mean over units"
        ),
        "created": column.DatetimeColumn(
            "Created (UTC)", format="YYYY-MM-DD HH:mm", width=124, timezone="UTC"
        ),
        "run": column.TextColumn("Run", width=78),
    }
