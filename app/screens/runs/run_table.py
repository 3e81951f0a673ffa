"""The columns of the Runs table: what they hold, what they are called, and what a header's hover explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from routesparse.app.shell import setting_words, verdict_bar
from routesparse.app.ui import design, numbers
from routesparse.app.ui.glossary import TERMS
from routesparse.engine.export.plain_text import visible
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries
from routesparse.engine.store.verdicts import loss_bounds
from routesparse.engine.verdict import Verdict

# What is shown at first and fits 1280 pixels; the address may name other columns.
SHOWN = ("verdict", "settings", "tokens", "model", "device", "density", "loss", "speedup")
_MOST_WHOLE = 100  # rows of a table that is sent with the columns that are hidden, and in colours
_ONCE = "Each was measured once: how far it varies from run to run is unknown"
_ERROR = "Output error relative to dense, over the audited rows: "
# Column -> heading, pixels, the format of its numbers ("": words), and what a hover says; in the table's order.
_COLUMNS: dict[str, tuple[str, int, str, str | None]] = {
    "prompt": ("Prompt", 126, "", "Your name for the run, else the prompt's; ⚑: pinned"),
    "verdict": ("Verdict", 165, "", TERMS["verdict"]),
    "differs": ("Differs by", 110, "", "The settings that tell the listed runs of one prompt apart"),
    "tags": ("Tags", 70, "", None),
    "settings": ("Settings", 205, "", "Policy, price, quality target, what a certificate must reach, audit"),
    "quality": ("Quality", 84, "", "The quality target that set the price; –: chosen by hand"),
    "calibration": ("Calibration", 62, "", TERMS["calibration"]),
    "domain": ("Domain", 54, "", None),
    "tokens": ("Tokens", 54, "localized", None),
    "model": ("Model", 165, "", None),
    "device": ("Device", 92, "", None),
    "policy": ("Policy", 63, "", "With its price, where the policy has one"),
    "limit": ("Tℓ", 44, "", TERMS["time_limit"]),
    "tau": ("τ", 60, "", TERMS["tau"]),
    "density": ("Kept", 52, "%.1f %%", TERMS["kept"]),
    "loss": ("Loss, nats", 62, "%.2g", f"{TERMS['loss']} Nats a token"),
    "loss_bound": ("At most", 58, "%.2g", TERMS["loss_bound"]),
    "loss_true": ("True loss", 62, "%.2g", "Dense attention's KL at the replayed rows, nats a token"),
    "next_token": ("Next token", 66, "", TERMS["answer"]),
    "kl": ("KL, nats", 58, "%.2g", TERMS["answer"]),
    "same_tokens": ("Same tokens", 76, "%d", f"Leading tokens equal to dense's. {TERMS['continuation']}"),
    "first_difference": ("Differs at", 70, "", "The first continued token that differs from dense's, from 1"),
    "error": ("Error", 54, "%.2g", f"{_ERROR}mean over heads"),
    "worst_head": ("Worst head", 64, "%.2g", f"{_ERROR}the worst head's mean"),
    "worst_row": ("Worst row", 60, "%.2g", f"{_ERROR}the worst row"),
    "certified": (
        "Units ≥ τ",
        58,
        "%.1f %%",
        "Sparse units whose own certificate reaches its τ, rounded down",
    ),
    "fallback": ("Fallback", 56, "%.1f %%", "Units that became dense by fallback"),
    "uncertified": ("Units < τ", 72, "%d", TERMS["uncertified"]),
    "uncertified_layers": ("Layers < τ", 72, "", TERMS["uncertified_layers"]),
    "coverage": ("Coverage", 62, "%.1f %%", f"{TERMS['coverage']} One prompt has no interval"),
    "prefill": ("Prefill, ms", 62, "localized", "Whole prefill, first token included; measured once"),
    "dense": ("Dense, ms", 66, "localized", "The same prefill with dense attention; measured once"),
    "speedup": ("Speedup", 58, "%.2f×", f"Dense prefill over this one of the same prompt. {_ONCE}"),
    "against": ("vs pinned, ms", 74, "%+,d", f"Prefill minus the pinned run's; –: another prompt. {_ONCE}"),
    "notes": ("Notes", 140, "", None),
    "created": ("Created, UTC", 77, "", None),
    "run": ("Run", 68, "", None),
}
LABELS = {name: row[0] for name, row in _COLUMNS.items()}


def rows(
    runs: pd.DataFrame, found: Sequence[Verdict], baseline: RunRow | None, grouped: bool = False
) -> pd.DataFrame:
    """The table's columns; NaN is not measured. found: a verdict a run.

    With a baseline, the prefill times of the other runs of its prompt are held against its own; of runs of one prompt
    that stand together (grouped) a column says how they differ.
    """
    records = runs.to_dict("records")
    # Of lost decisions nobody knows whether they were certified.
    sparse = runs["sparse_units"].where((runs["sparse_units"] > 0) & (runs["stored_units"] >= runs["units"]))

    def words(name: str, said: Callable[[Any], str], other: Any) -> pd.Series:
        return runs[name].map(said, na_action="ignore").astype(object).fillna(other)

    tau = runs["tau"].map(numbers.threshold)
    table = pd.DataFrame(
        {
            "prompt": _names(runs, grouped),
            "differs": _differs(runs, [setting_words.parts(row) for row in records]),
            "verdict": [verdict_bar.cell(one) for one in found],
            "tags": runs["tags"],
            "notes": runs["notes"],
            "settings": [setting_words.of_run(row) for row in records],
            "quality": runs["tuned_price"],
            "domain": runs["domain"].fillna("–"),
            "tokens": runs["tokens"],
            "model": runs["model"],
            "device": runs["device"].map(numbers.device),
            "policy": runs["policy"] + words("price", " {:g}".format, ""),
            "limit": words("budget", numbers.short_limit, "none"),
            # A priced run's own for heads is a floor far below the others': the layer's is what counts.
            "tau": words("tau_layer", lambda least: f"{numbers.threshold(least)} layer", tau),
            "calibration": runs["calibration"].fillna("none"),
            "density": runs["density"] * 100,
            "next_token": runs["top1_agreement"].map(
                lambda agreed: "as dense" if agreed == 1 else "differs", na_action="ignore"
            ),
            "kl": runs["kl_nats"].astype(float),
            "loss": runs["loss_nats"].astype(float),
            "loss_bound": loss_bounds(runs),
            "loss_true": runs["loss_true"].astype(float),
            "same_tokens": runs["same_tokens"].astype(float),
            "first_difference": words("first_difference", "token {:.0f}".format, "none").where(
                runs["same_tokens"].notna(), None
            ),
            "error": runs["mean_error"].astype(float),
            "worst_head": runs["worst_unit_error"].astype(float),
            "worst_row": runs["max_error"].astype(float),
            # Rounded down: 100 % must mean all of them.
            "certified": np.floor(1000 * (1 - runs["uncertified_units"] / sparse)) / 10,
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
    if baseline is not None:
        # Another prompt takes another time with the same settings, too.
        same = runs["prompt_sha256"] == baseline.prompt_sha256
        table["against"] = (runs["total_ms"] - baseline.total_ms).where(same).round()
    sparse = ("tags", "notes", "quality", "loss", "loss_bound", "loss_true")
    return table.drop(columns=[name for name in sparse if table[name].isna().all()])


def order(table: pd.DataFrame, chosen: Sequence[str], grouped: bool) -> list[str]:
    """The columns to show: the prompt, what grouping and a baseline add, tags and quality targets where there are any,
    and the chosen."""
    added = {"prompt", "against", "tags", "quality", *(["differs"] if grouped else [])}
    return [name for name in LABELS if name in table and name in added | set(chosen)]


def sent(table: pd.DataFrame, chosen: Sequence[str], found: Sequence[Verdict]) -> Any:
    """What goes to the browser: a short list with its hidden columns, which the table's own menu can show, and verdicts
    in their colour, whose sign they also carry; of a long one the chosen columns alone and each text once."""
    if len(table) > _MOST_WHOLE:
        table = table[list(chosen)]
        texts = table.select_dtypes(["object", "string"]).columns
        return table.astype(dict.fromkeys(texts, "category"))
    return colored(table, [one.level for one in found])


def colored(table: pd.DataFrame, levels: Sequence[Any]) -> Any:
    """The table with its column of verdicts in the colours of their levels."""
    colors = [f"color: {design.current_theme().levels[level]}; font-weight: 600" for level in levels]
    # A name of its own would make the same table another one at every rerun.
    return table.style.set_uuid("verdicts").apply(lambda column: colors, subset=["verdict"])


def columns() -> dict[str, Any]:
    """Streamlit's column settings by column name; those of SHOWN together fit 1280 pixels."""
    kinds, made = st.column_config, {}
    for name, (label, width, form, told) in _COLUMNS.items():
        if name == "created":
            made[name] = kinds.DatetimeColumn(label, format="MM-DD HH:mm", width=width, timezone="UTC")
        elif form:
            made[name] = kinds.NumberColumn(label, format=form, width=width, help=told)
        else:
            made[name] = kinds.TextColumn(label, width=width, help=told)
    return made


def _names(runs: pd.DataFrame, grouped: bool) -> pd.Series:
    """What a run is called: by its owner, else by its prompt; behind its domain, where others call theirs the same;
    within a group a mark for those after the first."""
    names = runs["name"].fillna(runs["prompt_name"]).map(visible)
    domains = runs["domain"].fillna("no domain").map(visible)
    alike = domains.groupby(names).transform("nunique") > 1
    names = names.where(~alike, domains + "/" + names)
    names = names.where(~runs["is_sample"], names + "  · sample")
    later = runs["prompt_sha256"].eq(runs["prompt_sha256"].shift()) & grouped
    pins = runs["pinned"].map({True: "⚑ ", False: ""})
    return later.map({True: "└ ", False: ""}) + pins + names


def _differs(runs: pd.DataFrame, words: list[dict[str, str]]) -> list[str]:
    """Per run the settings that tell it from the other listed runs of its prompt."""
    told = [""] * len(runs)
    for places in runs.groupby("prompt_sha256", sort=False).indices.values():
        for place, text in zip(places, setting_words.differing([words[p] for p in places]), strict=True):
            told[place] = text if text or len(places) == 1 else "the same settings"
    return told
