"""The tables of a comparison as HTML and as rows: the sides, the mean differences, the settings that differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd

from routesparse.app.screens.compare.selection import Side, Sides
from routesparse.app.shell import navigate, setting_words, verdict_bar
from routesparse.app.ui import drift_note, glossary, numbers
from routesparse.app.ui.tables import table, unbroken
from routesparse.engine.stats.comparison import METRICS
from routesparse.engine.verdict import Verdict

_METRIC_NAMES = {
    "density": "kept share of a unit’s body",
    "gate_statistic": "gate statistic g",
    "lower_mass": "certified retained mass (in-prompt)",
    "conformal_lower_mass": "conformal lower bound",
    "audited_mass": "retained mass (audited)",
    "audited_error": "output error (audited)",
    "kernel_us": "predicted kernel time, µs a unit",
}
# Columns of settings: one that is the same on all sides is said once. Narrow windows leave out what names hold.
_SETTINGS = ("calibration", "λ", "price", "domain", "tokens")
_COLUMNS = (
    *("side", "verdict", "kept", "loss, nats", "KL, nats", "error", "prefill", "speedup", "against"),
    *(*_SETTINGS, "sparse", "fallback", "uncertified", "conformal"),
)
_OF_RUN = (
    "run_id prompt_name domain tokens price budget routed calibration gate_threshold density loss_nats loss_bound "
    "kl_nats mean_error audit_rows fallback_share coverage total_ms dense_ms speedup"
)


def sides_rows(sides: Sides, verdicts: Mapping[str, Verdict]) -> pd.DataFrame:
    """One row per side: what it is, and its totals. verdicts: by run id."""
    rows = []
    for side in sides.all:
        run = side.run
        sparse = side.choices[side.choices["pattern"] != "dense"]
        conformal = sparse["conformal_lower_mass"].dropna()
        row: dict[str, Any] = {"letter": sides.letter(side), "side": side.label}
        row |= {name: getattr(run, name) for name in _OF_RUN.split()}
        row |= {
            "baseline": side is sides.baseline,
            "sparse_units": len(sparse),
            "units": len(side.choices),
            "kernel_us": float(side.choices["kernel_us"].sum()),
            # tau_head would make a priced run look better than the others.
            "conformal_at_tau": None
            if run.tau_layer is not None or conformal.empty
            else float((conformal >= run.tau).mean()),
            "uncertified_units": int(side.choices["uncertified"].sum()),
            "uncertified_layers": side.uncertified_layers,
            "verdict": verdict_bar.cell(verdicts[run.run_id]) if run.run_id in verdicts else None,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def sides_html(sides: Sides, rows: pd.DataFrame, times: Mapping[str, str]) -> str:
    """The sides as a table; the baseline is marked. What is the same for all of them is said once below it.

    rows: ``sides_rows``; times: prefill against the baseline, by side.
    """
    heads = {
        "kept": glossary.heading("kept", "kept"),
        "loss, nats": glossary.heading("loss, nats", "loss"),
        "KL, nats": glossary.heading("KL, nats", "answer"),
        "error": glossary.heading("error, mean", "error"),
        "against": '<th class="l">prefill against the baseline</th>',
        "speedup": glossary.heading("speedup", "speedup"),
        "sparse": "<th>sparse units</th>",
        "conformal": "<th>conformal ≥ τ</th>",
        "uncertified": "<th>mass not certified</th>",
        "λ": '<th class="l">λ</th>',
        **{name: f'<th class="l">{name}</th>' for name in ("side", "verdict")},
        **{name: f'<th class="l twice">{name}</th>' for name in _SETTINGS if name != "λ"},
    }
    records = rows.astype(object).where(rows.notna(), None).to_dict("records")
    cells = [_cells(side, row, times) for side, row in zip(sides.all, records, strict=True)]
    same = [name for name in _SETTINGS if len({made[name] for made in cells}) == 1]
    void = [] if rows["conformal_at_tau"].notna().any() else ["conformal"]
    void += [] if rows["loss_nats"].notna().any() else ["loss, nats"]
    shown = [name for name in _COLUMNS if name not in (*same, *void)]
    # Named one by one too, for a phone's window, which has no room for a row of headings.
    td = {name: f'<td data-of="{re.sub("<a.*|<[^>]*>", "", heads.get(name, name))}"' for name in shown}
    lines = [[made[name].replace("<td", td[name], 1) for name in shown] for made in cells]
    told = {name: cells[0][name].partition(">")[2].removesuffix("</td>") for name in same}
    alike = " · ".join(f"{name} {value}" for name, value in told.items() if value != "–")
    note = f'<div class="rs-note">The same for all: {alike}</div>' if alike else ""
    made = table([heads.get(name, name) for name in shown], lines, (), [sides.all.index(sides.baseline)])
    return made + note


def _cells(side: Side, row: dict[str, Any], times: Mapping[str, str]) -> dict[str, str]:
    """Column -> the cell of one side."""
    pin = " · baseline" if row["baseline"] else ""
    void = "" if row["conformal_at_tau"] is None else drift_note.html(side.run)
    address = escape(navigate.address("map", run=side.key))
    link = f'<a href="{address}" target="_self" title="its routing map">{unbroken(side.label)}{pin}</a>'
    layers = row["uncertified_layers"]
    more = f", {numbers.several(int(layers), 'layer')}" if layers else ""
    most = f" ≤ {numbers.small(row['loss_bound'])}" if side.run.loss_bounded else ""
    whole = '<td class="no">all, not routed</td>'
    # Under the policy priced every head has its own λ.
    none = "per head" if side.run.tau_layer is not None else "–"
    return {
        "side": f'<td class="l"><b>{row["letter"]}</b> {link}</td>',
        "kept": _td(row["density"], numbers.share) if row["routed"] else whole,
        "calibration": _td(row["calibration"], str, "l twice"),
        "λ": _td(row["gate_threshold"], lambda value: f"{value:.3f}", "l", none),
        "price": _td(row.get("price"), lambda value: f"{value:g}", "l twice"),
        "domain": _td(row["domain"], str, "l twice"),
        "tokens": _td(row["tokens"], lambda value: f"{int(value):,}", "l twice"),
        "sparse": f"<td>{row['sparse_units']:,} of {row['units']:,}</td>",
        "conformal": _td(row["conformal_at_tau"], numbers.share).replace("</td>", f"{void}</td>"),
        "verdict": _td(row["verdict"], str, "l"),
        "loss, nats": _td(row["loss_nats"], lambda value: f"{numbers.small(value)}{most}"),
        "KL, nats": _td(row["kl_nats"], numbers.small),
        "error": _td(row["mean_error"], numbers.small),
        "prefill": _td(row["total_ms"], numbers.millis),
        "speedup": _td(row["speedup"], numbers.times),
        "against": f'<td class="l against">{unbroken(times.get(side.key, "" if pin else "other prompt"))}</td>',
        "fallback": _td(row["fallback_share"], numbers.share),
        "uncertified": f"<td>{row['uncertified_units']:,}{more}</td>",
    }


def _td(value: Any, show: Any, style: str = "", none: str = "–") -> str:
    style += " no" if value is None else ""
    return f'<td class="{style.strip()}">{escape(none if value is None else str(show(value)))}</td>'


def pairing(sides: Sides) -> str:
    """In words: paired or not, and why."""
    unpaired = [side.label for side in sides.others if not sides.same_prompt(side)]
    cut = [side.label for side in sides.others if sides.same_prompt(side) and not sides.same_segments(side)]
    if not unpaired and not cut:
        return (
            "Paired: all runs are of the same prompt, so every head is compared with itself on the same text."
        )
    if len(unpaired) == len(sides.others):
        return (
            "Unpaired: the prompts differ from the baseline’s. A difference may come from the prompt as much as from "
            "the setting, so only means can be compared, and their intervals are wider."
        )
    whole = len(unpaired) + len(cut) == len(sides.others)
    told = [] if whole else ["Paired where prompt and segments are the baseline’s."]
    told += [f"Unpaired, because the prompt differs: {', '.join(unpaired)}."] if unpaired else []
    told += [f"Unpaired, because the segments differ: {', '.join(cut)}."] if cut else []
    return " ".join(told)


def intervals_html(sides: Sides, found: pd.DataFrame) -> str:
    """Metrics down, sides across; bold where the interval excludes 0. found: ``comparison.differences`` by ``side``."""
    heads = ["mean over units", "baseline"]
    for side in sides.others:
        paired = "paired" if sides.paired(side) else "unpaired"
        heads.append(f'<th title="{escape(side.label)}">{sides.letter(side)}<br>{paired}</th>')
    lines = []
    for metric, rows in found.groupby("metric", sort=False):
        cells = rows.set_index("side").to_dict("index")
        name = str(metric)
        mean = f"{number(name, rows['baseline'].iloc[0])}{conformal_void(name, sides.baseline)}"
        others = (
            f"{_interval(name, cells.get(side.key))}{conformal_void(name, side)}" for side in sides.others
        )
        lines.append([f'<td class="l">{_METRIC_NAMES[name]}</td>', mean, *others])
    return table(heads, lines)


def conformal_void(metric: str, side: Side) -> str:
    """A mark, where this metric is the conformal claim and this side's run voids it."""
    return drift_note.html(side.run) if metric == "conformal_lower_mass" else ""


def settings_cells(sides: Sides, different: pd.DataFrame) -> pd.DataFrame:
    """The settings that differ, a column per side, the baseline first. Hashes and floors of heads are cut."""
    cells: dict[str, list[str]] = {"setting": [name.replace("_", " ") for name in different["setting"]]}
    for side in (sides.baseline, *sides.others):
        texts = map(setting_words.value, different[side.key])
        long = different["setting"].str.endswith(("sha256", "head_floors"))
        cells[sides.letter(side)] = [
            f"{text[:12]}…" if cut else text for text, cut in zip(texts, long, strict=True)
        ]
    return pd.DataFrame(cells)


def _interval(metric: str, cell: Mapping[Any, Any] | None) -> str:
    if cell is None or numbers.is_missing(cell["difference"]):
        return "–"
    text = number(metric, cell["difference"], signed=True)
    if numbers.is_missing(cell["low"]):
        return text
    low, high = (number(metric, cell[end], signed=True) for end in ("low", "high"))
    text = f"{text} [{low.removesuffix(' points')}, {high}]"
    return f"<b>{text}</b>" if cell["low"] > 0 or cell["high"] < 0 else text


def number(metric: str, value: float, signed: bool = False) -> str:
    """A value of one of METRICS, or a difference of two."""
    assert metric in METRICS
    if numbers.is_missing(value):
        return "–"
    if metric == "kernel_us":
        return numbers.signed(value, 0) if signed else f"{value:,.0f}"
    if metric == "density":
        return f"{numbers.signed(100 * value, 1)} points" if signed else f"{100 * value:.1f} %"
    return numbers.signed(value, 4) if signed else f"{value:.4f}"
