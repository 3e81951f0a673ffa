"""The tables of a comparison as HTML and as rows: the sides, the mean differences, the settings that differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from html import escape
from typing import Any

import pandas as pd

from routesparse.app.screens.compare import conclusion, figures
from routesparse.app.screens.compare.selection import Side, Sides
from routesparse.app.shell import navigate, setting_words, verdict_bar
from routesparse.app.ui import design, drift_note, glossary, grid, numbers
from routesparse.app.ui.tables import framed, unbroken
from routesparse.engine.stats.comparison import METRICS, Difference
from routesparse.engine.store import queries
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


# Columns of settings: one that is the same on all sides is said once.
_SETTINGS = ("calibration", "λ", "price", "domain", "tokens")
_REPLAYED = ("side", "kept", *_SETTINGS, "sparse", "planned", "conformal")
_COLUMNS = (
    *(
        "side",
        "verdict",
        "kept",
        "error",
        "prefill",
        "against",
        *_SETTINGS,
        "sparse",
        "fallback",
        "uncertified",
    ),
    *("planned", "conformal", "run"),
)


def sides_rows(sides: Sides) -> pd.DataFrame:
    """One row per side: what it is, and its totals; NULL where a replay can't know."""
    rows = []
    for side in sides.all:
        run, replayed = side.run, side.calibration is not None
        sparse = side.choices[side.choices["pattern"] != "dense"]
        rows.append(
            {
                "side": side.label,
                "run_id": None if replayed else run.run_id,
                "baseline": side is sides.baseline,
                "prompt_name": run.prompt_name,
                "domain": run.domain,
                "tokens": run.tokens,
                "calibration": side.key if side.calibration else run.calibration,
                "gate_threshold": side.calibration.gate_threshold if side.calibration else run.gate_threshold,
                "price": None if replayed else run.price,
                "density": conclusion.kept(side),
                "sparse_units": len(sparse),
                "units": len(side.choices),
                "kernel_us": float(side.choices["kernel_us"].sum()),
                # tau_head would make a priced run look better than the others.
                "conformal_at_tau": None
                if run.tau_layer is not None
                else _share(sparse["conformal_lower_mass"], run.tau),
                "fallback_share": None if replayed else run.fallback_share,
                "uncertified_units": None if replayed else int(side.choices["uncertified"].sum()),
                "uncertified_layers": side.uncertified_layers,
                "coverage": None if replayed else run.coverage,
                "mean_error": None if replayed else run.mean_error,
                "total_ms": None if replayed else run.total_ms,
            }
        )
    return pd.DataFrame(rows)


def sides_html(sides: Sides, verdicts: Mapping[str, Verdict], times: Mapping[str, str]) -> str:
    """The sides as a table; the baseline is marked. What is the same for all of them is said once below it.

    verdicts: by run id; times: prefill against the baseline, by side.
    """
    rows = sides_rows(sides)
    kept = glossary.heading(*(("kept, body", "density") if sides.replayed else ("kept", "kept")))
    heads = {
        "side": '<th class="l">side</th>',
        **({} if sides.replayed else {"verdict": '<th class="l">verdict</th>'}),
        "kept": kept,
        "error": "<th>error, mean<br>over units</th>",
        "prefill": "<th>prefill,<br>this run</th>",
        "against": '<th class="l">prefill against the baseline</th>',
        **{name: f'<th class="l{_told_twice(name)}">{name}</th>' for name in _SETTINGS},
        "sparse": "<th>sparse units</th>",
        "planned": "<th>predicted time</th>",
        "conformal": "<th>conformal ≥ τ</th>",
    }
    cells = [
        _cells(side, row, verdicts, times)
        for side, row in zip(sides.all, rows.to_dict("records"), strict=True)
    ]
    same = [name for name in _SETTINGS if len({made[name] for made in cells}) == 1]
    shown = [name for name in (_REPLAYED if sides.replayed else _COLUMNS) if name not in same]
    heads.update({name: f"<th>{name}</th>" for name in shown if not heads.get(name)})
    body = [
        f'<tr class="{"pick" if side is sides.baseline else ""}">{"".join(made[name] for name in shown)}</tr>'
        for side, made in zip(sides.all, cells, strict=True)
    ]
    head = "".join(heads[name] for name in shown)
    told = {name: cells[0][name].partition(">")[2].removesuffix("</td>") for name in same}
    alike = " · ".join(f"{name} {value}" for name, value in told.items() if value != "–")
    note = f'<div class="rs-note">The same for all: {alike}</div>' if alike else ""
    return framed(f"<tr>{head}</tr>{''.join(body)}") + note


def _cells(
    side: Side, row: dict[str, Any], verdicts: Mapping[str, Verdict], times: Mapping[str, str]
) -> dict[str, str]:
    """Column -> the cell of one side; the measured ones are drawn for stored runs alone."""
    judged = verdicts.get(side.run.run_id)
    pin = " · baseline" if row["baseline"] else ""
    void = "" if numbers.is_missing(row["conformal_at_tau"]) else drift_note.html(side.run)
    return {
        "side": f'<td class="l">{unbroken(side.label)}{pin}</td>',
        "verdict": f'<td class="l">{"–" if judged is None else escape(verdict_bar.cell(judged))}</td>',
        "kept": f"<td>{_dash(row['density'], numbers.share)}</td>",
        "error": f"<td>{_dash(row['mean_error'], numbers.small)}</td>",
        "prefill": f"<td>{numbers.millis(side.run.total_ms)}</td>",
        "against": f'<td class="l against">{unbroken(times.get(side.key, "" if pin else "other prompt"))}</td>',
        "calibration": f'<td class="l twice">{escape(_dash(row["calibration"], str))}</td>',
        "λ": f'<td class="l">{_lambda(row, side)}</td>',
        "price": f'<td class="l twice">{_dash(row["price"], lambda value: f"{value:g}")}</td>',
        "domain": f'<td class="l twice">{escape(_dash(row["domain"], str))}</td>',
        "tokens": f'<td class="l twice">{row["tokens"]:,}</td>',
        "sparse": f"<td>{row['sparse_units']:,} of {row['units']:,}</td>",
        "fallback": f"<td>{_dash(row['fallback_share'], numbers.share)}</td>",
        "uncertified": f"<td>{_dash(row['uncertified_units'], lambda _: _uncertified(row))}</td>",
        "planned": f"<td>{numbers.micros(row['kernel_us'])}</td>",
        "conformal": f"<td>{_dash(row['conformal_at_tau'], numbers.share)}{void}</td>",
        "run": f'<td><a href="{escape(navigate.address("map", run=side.key))}" target="_self">'
        f"{escape(queries.label(side.run.run_id))}</a></td>",
    }


def _told_twice(setting: str) -> str:
    """A class of columns that a narrow window leaves out: the sides' names hold these settings where they differ."""
    return "" if setting == "λ" else " twice"


def pairing(sides: Sides) -> str:
    """In words: paired or not, and why."""
    if sides.replayed:
        return (
            "Paired: the same prompt and the same stored scores. Shown is what the router would have chosen under each "
            "calibration’s λ, or at the price where it has none, without a time limit; certificates and fallback are "
            "not replayed."
        )
    others = [side for side in sides.all if side is not sides.baseline]
    unpaired = [side.label for side in others if not sides.same_prompt(side)]
    cut = [side.label for side in others if sides.same_prompt(side) and not sides.same_segments(side)]
    if not unpaired and not cut:
        return (
            "Paired: all runs are of the same prompt, so every head is compared with itself on the same text."
        )
    if len(unpaired) == len(others):
        return (
            "Unpaired: the prompts differ from the baseline’s. A difference may come from the prompt as much as from "
            "the setting, so only means can be compared, and their intervals are wider."
        )
    whole = len(unpaired) + len(cut) == len(others)
    told = [] if whole else ["Paired where prompt and segments are the baseline’s."]
    told += [f"Unpaired, because the prompt differs: {', '.join(unpaired)}."] if unpaired else []
    told += [f"Unpaired, because the segments differ: {', '.join(cut)}."] if cut else []
    return " ".join(told)


def intervals_rows(found: dict[str, list[Difference]]) -> pd.DataFrame:
    """One row per side and metric."""
    return pd.DataFrame(
        [
            {"side": key, **asdict(difference)}
            for key, differences in found.items()
            for difference in differences
        ]
    )


def intervals_html(sides: Sides, found: dict[str, list[Difference]]) -> str:
    """Metrics down, sides across; bold where the interval excludes 0."""
    by_side = {key: {d.metric: d for d in differences} for key, differences in found.items()}
    labels = {side.key: side.label for side in sides.all}
    head = '<th class="l">mean over units</th><th>baseline</th>' + "".join(
        f"<th>{unbroken(labels[key])}<br>{'paired' if sides.paired(_side(sides, key)) else 'unpaired'}</th>"
        for key in found
    )
    body = []
    for metric in METRICS:
        cells = [by_side[key].get(metric) for key in found]
        first = next((cell for cell in cells if cell is not None), None)
        if first is None:
            continue
        void = {side.key: conformal_void(metric, side) for side in sides.all}
        body.append(
            f'<tr><td class="l">{_METRIC_NAMES[metric]}</td><td>{_number(metric, first.baseline)}'
            f"{void[sides.baseline.key]}</td>"
            + "".join(
                f"<td>{_interval(metric, cell)}{void[key]}</td>"
                for key, cell in zip(found, cells, strict=True)
            )
            + "</tr>"
        )
    return framed(f"<tr>{head}</tr>{''.join(body)}")


def conformal_void(metric: str, side: Side) -> str:
    """A mark, where this metric is the conformal claim and this side's run voids it."""
    return drift_note.html(side.run) if metric == "conformal_lower_mass" else ""


def settings_html(sides: Sides, different: pd.DataFrame) -> str:
    """The settings that differ, a column per side; the baseline first."""
    order = [sides.baseline.key, *(side.key for side in sides.all if side is not sides.baseline)]
    labels = {side.key: side.label for side in sides.all}
    head = '<th class="l">setting</th>' + "".join(
        f'<th class="l" title="{escape(labels[key])}">{unbroken(labels[key])}</th>' for key in order
    )
    body = [
        f'<tr><td class="l">{escape(str(row["setting"]).replace("_", " "))}</td>'
        + "".join(
            f'<td class="l{_cut(row["setting"])}" title="{text}">{text}</td>'
            for text in (escape(setting_words.value(row[key])) for key in order)
        )
        + "</tr>"
        for row in different.to_dict("records")
    ]
    # Equal columns: else the one with the longest hash takes the room of the others.
    return framed(f"<tr>{head}</tr>{''.join(body)}", "table-layout:fixed")


def _cut(setting: str) -> str:
    """A hash is cut; everything else is told whole."""
    return " w" if setting.endswith("sha256") else ""


def map_legend(metric: str, rows: pd.DataFrame, heads: int, theme: design.Theme) -> str:
    """HTML: what the colours of the difference map mean."""
    grey = f'<span><i style="background:{theme.null}"></i>not measured on both sides</span>'
    if metric == "choice":
        arrows = heads <= figures.MOST_HEADS_WITH_TEXT
        other = (
            "<b>V→B</b>&nbsp;another family" if arrows else "coloured: another choice, letter of its family"
        )
        same = design.blend(theme.panel, theme.line, 0.6)
        return (
            f'<div class="rs-legend"><span><i style="background:{same};color:{design.text_on(same)}">V</i>the same '
            f"choice</span><span>{other}</span><span><b>V′</b>&nbsp;another budget</span></div>"
        )
    known = rows["difference"].dropna().abs()
    if known.empty:
        return f'<div class="rs-legend">{grey}</div>'
    show, largest = figures.MAPS[metric][2], float(known.max())
    stops = ", ".join(grid.diverging(v * largest, largest, theme) for v in (-1, -0.5, 0, 0.5, 1))
    return (
        f'<div class="rs-legend"><span>{show(-largest)}</span><span><i style="width:130px;margin:0;'
        f'background:linear-gradient(90deg,{stops})"></i></span><span>{show(largest)}</span>{grey}</div>'
    )


def _lambda(row: dict[str, Any], side: Side) -> str:
    """Under the policy priced every head has its own."""
    if numbers.is_missing(row["gate_threshold"]):
        return "per head" if side.calibration or side.run.tau_layer is not None else "–"
    return f"{row['gate_threshold']:.3f}"


def _uncertified(row: dict[str, Any]) -> str:
    """Units, and layers where there are any."""
    layers = row["uncertified_layers"]
    more = "" if numbers.is_missing(layers) or not layers else f", {numbers.several(int(layers), 'layer')}"
    return f"{row['uncertified_units']:,}{more}"


def _side(sides: Sides, key: str) -> Side:
    return next(side for side in sides.all if side.key == key)


def _interval(metric: str, cell: Difference | None) -> str:
    if cell is None or cell.difference is None or math.isnan(cell.difference):
        return "–"
    text = _number(metric, cell.difference, signed=True)
    if cell.low is None or cell.high is None:
        return text
    ends = f"[{_number(metric, cell.low, signed=True)}, {_number(metric, cell.high, signed=True)}]"
    ends = ends.replace(" points,", ",")  # one unit for both
    text = f"{text} {ends}"
    return f"<b>{text}</b>" if cell.low > 0 or cell.high < 0 else text


def _number(metric: str, value: float | None, signed: bool = False) -> str:
    if value is None or math.isnan(value):
        return "–"
    sign = "+" if signed else ""
    if metric == "kernel_us":
        return f"{value:{sign},.0f}"
    if metric == "density":
        return f"{100 * value:+.1f} points" if signed else f"{100 * value:.1f} %"
    return f"{value:{sign}.4f}"


def _share(values: pd.Series, tau: float) -> float | None:
    known = values.dropna()
    return float((known >= tau).mean()) if len(known) else None


def _dash(value: Any, show: Any) -> str:
    return "–" if numbers.is_missing(value) else str(show(value))
