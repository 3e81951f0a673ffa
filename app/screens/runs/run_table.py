"""The columns of the Runs table: what they hold, what they are called, and what a header's hover explains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import outcome, setting_words
from routesparse.app.ui import design, numbers
from routesparse.app.ui.colored import colored
from routesparse.app.ui.glossary import TERMS
from routesparse.app.ui.plain_text import visible
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


# What is shown at first and fits 1280 pixels; the address may name other columns.
SHOWN = (
    "verdict",
    "settings",
    "calibration",
    "tokens",
    "density",
    "kl",
    "worst_row",
    "certified",
    "fallback",
    "prefill",
    "speedup",
)
# Column -> its heading, in the table's order.
LABELS = {
    "prompt": "Prompt",
    "verdict": outcome.LABELS["verdict"],
    "differs": "Differs by",
    "tags": "Tags",
    "settings": "Settings",
    "quality": "Quality",
    "calibration": "Calibration",
    "domain": "Domain",
    "tokens": "Tokens",
    "model": "Model",
    "device": "Device",
    "policy": "Policy",
    "limit": "Tℓ",
    "tau": "τ",
    "density": "Kept",
    "next_token": "Next token",
    "kl": "KL, nats",
    "same_tokens": "Same tokens",
    "first_difference": "Differs at",
    "error": outcome.LABELS["error"],
    "worst_head": "Worst head",
    "worst_row": "Worst row",
    "certified": outcome.LABELS["certified"],
    "fallback": "Fallback",
    "uncertified": "Uncertified",
    "uncertified_layers": "Layers unc.",
    "coverage": "Coverage",
    "prefill": "Prefill, ms",
    "dense": "Dense, ms",
    "speedup": "Speedup",
    "against": "vs pinned, ms",
    "notes": "Notes",
    "created": "Created, UTC",
    "run": "Run",
}
_MOST_WHOLE = 100  # rows of a table that is sent with the columns that are hidden
_MOST_STYLED = 5_000  # rows: more than that pandas does not style


def rows(
    runs: pd.DataFrame, found: Sequence[Verdict], baseline: RunRow | None, grouped: bool = False
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table's columns, and the settings that all runs share, by their names; found: a verdict a run.

    With a baseline, the prefill times of the other runs of its prompt are held against its own; of runs of one prompt
    that stand together (grouped) a column says how they differ.
    """
    records = runs[list(setting_words.NAMES)].to_dict("records")
    words = [setting_words.parts(row) for row in records]
    outcomes = outcome.columns(runs, found)
    table = pd.DataFrame(
        {
            "prompt": _names(runs, grouped),
            "differs": _differs(runs, words),
            "verdict": outcomes["verdict"],
            "tags": runs["tags"],
            "notes": runs["notes"],
            "settings": [
                setting_words.in_one_line(told, row["budget"], row["probe_mode"])
                for told, row in zip(words, records, strict=True)
            ],
            "quality": runs["tuned_price"],
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
                numbers.threshold(head) if numbers.is_missing(layer) else f"{numbers.threshold(layer)} layer"
                for head, layer in zip(runs["tau"], runs["tau_layer"], strict=True)
            ],
            "calibration": runs["calibration"].fillna("none"),
            "density": runs["density"] * 100,
            "next_token": [
                None if numbers.is_missing(agreed) else "as dense" if agreed == 1 else "differs"
                for agreed in runs["top1_agreement"]
            ],
            "kl": runs["kl_nats"].astype(float),
            "same_tokens": runs["same_tokens"].astype(float),
            "first_difference": [
                None
                if numbers.is_missing(same)
                else "none"
                if numbers.is_missing(first)
                else f"token {first:.0f}"
                for same, first in zip(runs["same_tokens"], runs["first_difference"], strict=True)
            ],
            "error": outcomes["error"],
            "worst_head": runs["worst_unit_error"].astype(float),
            "worst_row": runs["max_error"].astype(float),
            "certified": outcomes["certified"],
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
    for name in ("tags", "notes", "quality"):
        if table[name].isna().all():
            table = table.drop(columns=name)
    if baseline is not None:
        # Another prompt takes another time with the same settings, too.
        same = runs["prompt_sha256"] == baseline.prompt_sha256
        table["against"] = (runs["total_ms"] - baseline.total_ms).where(same).round()
    shared = [name for name in _SETTINGS if len(table) > 1 and table[name].nunique() == 1]
    return table.drop(columns=shared), {_SETTINGS[name]: table[name].iloc[0] for name in shared}


def order(table: pd.DataFrame, chosen: Sequence[str], grouped: bool) -> list[str]:
    """The columns to show: the prompt, what grouping and a baseline add, tags and quality targets where there are any,
    and the chosen."""
    added = {"prompt", "against", "tags", "quality", *(["differs"] if grouped else [])}
    return [name for name in LABELS if name in table and name in added | set(chosen)]


def sent(table: pd.DataFrame, chosen: Sequence[str], found: Sequence[Verdict]) -> Any:
    """What goes to the browser: of a long list the chosen columns alone and each text once; verdicts in their colour.

    The table's own menu can show the hidden columns of a short list; the page's menu Columns those of any.
    """
    if len(table) <= _MOST_WHOLE:
        return _colored(table, found)
    table = table[list(chosen)]
    texts = table.select_dtypes(["object", "string"]).columns
    table = table.astype(dict.fromkeys(texts, "category"))
    return _colored(table, found) if "verdict" in table and len(table) <= _MOST_STYLED else table


def _colored(table: pd.DataFrame, found: Sequence[Verdict]) -> Any:
    colors = design.current_theme().levels
    styles = [[("color", colors[one.level]), ("font-weight", "600")] for one in found]
    return colored(table, "verdict", styles)


def _names(runs: pd.DataFrame, grouped: bool) -> list[str]:
    """What a run is called: by its owner, else by its prompt; within a group a mark for those after the first."""
    names = runs["name"].fillna(runs["prompt_name"]).map(visible)
    names = names.where(~runs["is_sample"], names + "  · sample")
    later = runs["prompt_sha256"].eq(runs["prompt_sha256"].shift()) & grouped
    pins = runs["pinned"].map({True: "⚑ ", False: ""})
    return list(later.map({True: "└ ", False: ""}) + pins + names)


def _differs(runs: pd.DataFrame, words: list[dict[str, str]]) -> list[str]:
    """Per run the settings that tell it from the other listed runs of its prompt."""
    told = [""] * len(runs)
    for places in runs.groupby("prompt_sha256", sort=False).indices.values():
        for place, text in zip(places, setting_words.differing([words[p] for p in places]), strict=True):
            told[place] = text if text or len(places) == 1 else "the same settings"
    return told


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
    error = "Output error relative to dense, over the audited rows: "
    made: dict[str, tuple[Any, int, str | None]] = {
        "prompt": (column.TextColumn, 118, "Your name for the run, else the prompt's; ⚑: pinned"),
        "differs": (column.TextColumn, 110, "The settings that tell the listed runs of one prompt apart"),
        "verdict": (column.TextColumn, 150, outcome.HELP["verdict"]),
        "tags": (column.TextColumn, 70, None),
        "settings": (
            column.TextColumn,
            130,
            "Policy with its price, the quality target that set the price, what a certificate must reach, audit depth",
        ),
        "quality": (column.TextColumn, 84, "The quality target that set the price; –: chosen by hand"),
        "calibration": (column.TextColumn, 62, TERMS["calibration"]),
        "domain": (column.TextColumn, 54, None),
        "tokens": (_number("localized"), 54, None),
        "model": (column.TextColumn, 46, None),
        "device": (column.TextColumn, 62, None),
        "policy": (column.TextColumn, 63, "With its price, where the policy has one"),
        "limit": (column.TextColumn, 44, TERMS["time_limit"]),
        "tau": (column.TextColumn, 60, TERMS["tau"]),
        "density": (_number("%.1f %%"), 52, TERMS["kept"]),
        "next_token": (column.TextColumn, 66, TERMS["answer"]),
        "kl": (_number("%.2g"), 58, TERMS["answer"]),
        "same_tokens": (_number("%d"), 76, f"Leading tokens equal to dense's. {TERMS['continuation']}"),
        "first_difference": (
            column.TextColumn,
            70,
            "The first continued token that differs from dense's, counted from 1",
        ),
        "error": (_number(outcome.FORMATS["error"]), 54, outcome.HELP["error"]),
        "worst_head": (_number("%.2g"), 64, f"{error}the worst head's mean"),
        "worst_row": (_number("%.2g"), 60, f"{error}the worst row"),
        "certified": (_number(outcome.FORMATS["certified"]), 58, outcome.HELP["certified"]),
        "fallback": (_number("%.1f %%"), 56, "Units that became dense by fallback"),
        "uncertified": (_number(), 72, TERMS["uncertified"]),
        "uncertified_layers": (column.TextColumn, 72, TERMS["uncertified_layers"]),
        "coverage": (
            _number("%.1f %%"),
            62,
            "Share of this prompt's audited sparse units whose retained mass is at least the certified one. One "
            "prompt has no interval; the Audit page has one over prompts",
        ),
        "prefill": (_number("localized"), 62, "Whole prefill, first token included; measured once"),
        "dense": (_number("localized"), 66, "The same prefill with dense attention; measured once"),
        "speedup": (
            _number("%.2f×"),
            58,
            "Dense prefill over this one of the same prompt. Each was measured once, so how far the ratio varies from "
            "run to run is unknown",
        ),
        "against": (
            _number("%+,d"),
            74,
            "Prefill minus the pinned run's: below 0 it was faster; –: another prompt. Each was measured once: how far "
            "it varies from run to run is unknown",
        ),
        "notes": (column.TextColumn, 140, None),
        "run": (column.TextColumn, 68, None),
    }
    made_columns = {
        name: make(LABELS[name], width=width, help=told) for name, (make, width, told) in made.items()
    }
    made_columns["created"] = column.DatetimeColumn(
        LABELS["created"], format="MM-DD HH:mm", width=77, timezone="UTC"
    )
    return made_columns


def _number(form: str | None = None) -> Any:
    return partial(st.column_config.NumberColumn, format=form)
