"""The columns of the Runs table: what they hold, what they are called, and what a header's hover explains."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import verdict_bar
from routesparse.app.ui import design, numbers
from routesparse.app.ui.glossary import TERMS
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries
from routesparse.engine.verdict import Verdict

# Columns of settings; one that is the same in all runs is said once above the table.
_SETTINGS = {
    "domain": "domain",
    "model": "model",
    "device": "device",
    "policy": "policy",
    "limit": "Tℓ",
    "tau": "τ",
    "calibration": "calibration",
}


# What is shown at first and fits 1280 pixels; the table's own menu has the other columns.
SHOWN = (
    "prompt",
    "verdict",
    "tokens",
    "model",
    "policy",
    "density",
    "next_token",
    "kl",
    "error",
    "fallback",
    "prefill",
    "speedup",
    "against",
    "run",
)
_MOST_STYLED = 5_000  # rows: more than that pandas does not style


def rows(
    runs: pd.DataFrame, found: Sequence[Verdict], baseline: RunRow | None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table's columns in their order, and the settings that all runs share, by their names; found: a verdict a run.

    With a baseline, prefill time is against it instead of against dense.
    """
    table = pd.DataFrame(
        {
            "prompt": runs["prompt_name"].where(~runs["is_sample"], runs["prompt_name"] + "  · sample"),
            "verdict": [verdict_bar.cell(one) for one in found],
            "domain": runs["domain"].fillna("–"),
            "tokens": runs["tokens"],
            "model": runs["model"],
            "device": runs["device"].map(numbers.device),
            "policy": [
                policy if numbers.is_missing(price) else f"{policy} {price:g}"
                for policy, price in zip(runs["policy"], runs["price"], strict=True)
            ],
            "limit": runs["budget"].map(numbers.short_limit, na_action="ignore").fillna("none"),
            # A priced run's own for heads is a floor far below the others': the layer's is what counts.
            "tau": [
                f"{head:.2f}" if numbers.is_missing(layer) else f"{layer:.2f} layer"
                for head, layer in zip(runs["tau"], runs["tau_layer"], strict=True)
            ],
            "calibration": runs["calibration"].fillna("none"),
            "density": runs["density"] * 100,
            "next_token": [
                None if numbers.is_missing(agreed) else "as dense" if agreed == 1 else "differs"
                for agreed in runs["top1_agreement"]
            ],
            "kl": runs["kl_nats"].astype(float),
            "error": runs["mean_error"].astype(float),
            "worst_row": runs["max_error"].astype(float),
            "certified": 100
            * (1 - runs["uncertified_units"] / runs["sparse_units"].where(runs["sparse_units"] > 0)),
            "fallback": runs["fallback_share"] * 100,
            "uncertified": runs["uncertified_units"],
            "uncertified_layers": [
                "–" if numbers.is_missing(count) else f"{int(count)} of {layers}"
                for count, layers in zip(runs["uncertified_layers"], runs["layers"], strict=True)
            ],
            "coverage": runs["coverage"] * 100,
            "prefill": runs["total_ms"].round(),
            "dense": runs["dense_ms"].round(),
            "speedup": runs["speedup"],
            "created": pd.to_datetime(runs["created_at"], utc=True, format="ISO8601", errors="coerce"),
            "run": runs["run_id"].map(queries.label),
        }
    )
    if not runs["uncertified_units"].fillna(0).any():
        table = table.drop(columns="uncertified")
    if not runs["uncertified_layers"].fillna(0).any():
        table = table.drop(columns="uncertified_layers")
    if baseline is not None:
        against = baseline.total_ms / runs["total_ms"]
        table = table.drop(columns="dense")
        table.insert(table.columns.get_loc("speedup"), "against", against)
    shared = [name for name in _SETTINGS if len(table) > 1 and table[name].nunique() == 1]
    return table.drop(columns=shared), {_SETTINGS[name]: table[name].iloc[0] for name in shared}


def colored(table: pd.DataFrame, found: Sequence[Verdict]) -> Any:
    """The table with each verdict in its colour, and the columns that it shows at first."""
    order = [name for name in SHOWN if name in table]
    if len(table) > _MOST_STYLED:
        return table, order
    colors = design.current_theme().levels
    styles = [f"color: {colors[one.level]}; font-weight: 600" for one in found]
    return table.style.apply(lambda column: styles, subset=["verdict"]), order


def shared_html(shared: dict[str, Any]) -> str:
    """The settings that all listed runs have in common, in one line."""
    facts = [
        f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in shared.items()
    ]
    return f'<div class="rs-note">The same for all: {escape(" · ".join(facts))}</div>'


def columns() -> dict[str, Any]:
    """Streamlit's column settings by column name; those of SHOWN together fit 1280 pixels."""
    column = st.column_config
    return {
        "prompt": column.TextColumn("Prompt", width=112),
        "verdict": column.TextColumn("Verdict", width=162, help=TERMS["verdict"]),
        "domain": column.TextColumn("Domain", width=54),
        "tokens": column.NumberColumn("Tokens", format="localized", width=54),
        "model": column.TextColumn("Model", width=46),
        "device": column.TextColumn("Device", width=62),
        "policy": column.TextColumn("Policy", width=63, help="With its price, where the policy has one"),
        "limit": column.TextColumn("Tℓ", width=44, help=TERMS["time_limit"]),
        "tau": column.TextColumn("τ", width=60, help=TERMS["tau"]),
        "density": column.NumberColumn(
            "Kept", format="%.1f %%", width=52, help="Kept share of the causal area, mean over units"
        ),
        "calibration": column.TextColumn("Calibration", width=70, help=TERMS["calibration"]),
        "next_token": column.TextColumn("Next token", width=66, help=TERMS["answer"]),
        "kl": column.NumberColumn("KL, nats", format="%.4f", width=60, help=TERMS["answer"]),
        "error": column.NumberColumn("Error", format="%.4f", width=54, help=TERMS["error"]),
        "worst_row": column.NumberColumn(
            "Worst row", format="%.3f", width=64, help="Output error of the worst audited row, relative"
        ),
        "certified": column.NumberColumn(
            "Certified", format="%.0f %%", width=62, help="Sparse units whose own certificate reaches its τ"
        ),
        "fallback": column.NumberColumn(
            "Fallback", format="%.1f %%", width=62, help="Units that became dense by fallback"
        ),
        "uncertified": column.NumberColumn("Uncertified", width=72, help=TERMS["uncertified"]),
        "uncertified_layers": column.TextColumn("Layers unc.", width=72, help=TERMS["uncertified_layers"]),
        "coverage": column.NumberColumn(
            "Coverage",
            format="%.1f %%",
            width=62,
            help="Share of this prompt's audited sparse units whose retained mass is at least the certified one. One "
            "prompt has no interval; the Audit page has one over prompts",
        ),
        "prefill": column.NumberColumn(
            "Prefill, ms", format="localized", width=66, help="Whole prefill, first token included"
        ),
        "dense": column.NumberColumn(
            "Dense, ms", format="localized", width=66, help="The same prefill with dense attention"
        ),
        "speedup": column.NumberColumn(
            "Speedup", format="%.2f×", width=62, help="Dense prefill over this one"
        ),
        "against": column.NumberColumn(
            "vs pinned", format="%.2f×", width=66, help="Prefill time of the baseline over this run's"
        ),
        "created": column.DatetimeColumn("Created, UTC", format="MM-DD HH:mm", width=77, timezone="UTC"),
        "run": column.TextColumn("Run", width=68),
    }
