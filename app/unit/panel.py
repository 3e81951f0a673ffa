"""One unit in words and tables: why this pattern, what every other candidate lacked, what the audit found.

Everything that comes out of a bundle is escaped before it becomes HTML.
"""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd

from routesparse.app.ui import design, drift_note, facts, glossary, numbers, reason_words, tables
from routesparse.engine.rows import RunRow
from routesparse.engine.store import frames


def title(choice: pd.Series) -> str:
    """The question that the panel answers."""
    return f"Layer {choice['layer']}, head {choice['head']}: why {design.name(choice['pattern'])}?"


def gate_threshold(choice: pd.Series, run: RunRow) -> float | None:
    """lambda of this unit: its own under the policy "priced", else the run's; None where neither was recorded."""
    own = choice["gate_threshold"]
    return run.gate_threshold if numbers.is_missing(own) else float(own)


def layer_verdict(layer: Any, run: RunRow) -> str:
    """The layer's certificate in words: "0.731, raised 1 level"; what is missing says so."""
    if numbers.is_missing(layer["lower_mass"]):
        shown = "none" if layer["layer_uncertified"] else "all dense"
    else:
        shown = numbers.bound(layer["lower_mass"])
    if not numbers.is_missing(layer["raised"]) and layer["raised"] > 0:
        shown += f", raised {numbers.several(int(layer['raised']), 'level')}"
    return f"{shown}, ran uncertified" if layer["layer_uncertified"] else shown


def facts_html(choice: pd.Series, run: RunRow, layer: pd.Series | None) -> str:
    """The numbers that decided; a certificate does not apply to dense units. layer: its row of queries.layers."""
    sparse = choice["pattern"] != "dense"
    threshold = gate_threshold(choice, run)
    own = " of this head" if run.tau_layer is not None else ""
    certified = (
        (f"certified mass, τ = {numbers.threshold(run.tau)}", _certified(choice), "certificate")
        if run.tau_layer is None
        else (f"certified mass, floor τ head = {numbers.threshold(run.tau)}", _certified(choice), "tau_head")
    )
    return facts.lines_html(
        [
            ("budget", str(choice["budget"]) if sparse else "all keys"),
            *([] if numbers.is_missing(run.price) else [("price", f"{run.price:g}", "price")]),
            ("kept of the causal area", numbers.share(choice["density"]), "density"),
            (
                "gate statistic g" + ("" if threshold is None else f", λ{own} = {threshold:.3f}"),
                numbers.mass(choice["gate_statistic"]),
                "gate_statistic",
            ),
            certified,
            *_layer_facts(layer, run),
            ("conformal lower bound", _conformal(choice, run, sparse), "conformal"),
            (
                f"retained by {numbers.share(run.confidence, 0)} of rows",
                _sparse(choice["row_lower_mass"], sparse),
                "row_statement",
            ),
            ("disagreement u", numbers.mass(choice["disagreement"]), "disagreement"),
            ("risk R", numbers.mass(choice["risk"]), "risk"),
            ("entropy", _nats(choice["entropy"]), "entropy"),
            ("local band", numbers.share(choice["local_band"], 0), "local_band"),
            ("predicted time", numbers.micros(choice["kernel_us"]), "kernel"),
            ("certificates tested", numbers.count(choice["tests"])),
        ]
    )


def fallback_html(events: pd.DataFrame, candidates: pd.DataFrame) -> str:
    """The certificates that failed, in order, and the predicted time that each step added."""
    names = {row.candidate: f"{design.letter(row.pattern)} · {row.budget}" for row in frames.rows(candidates)}
    steps = [
        f"test {row.test}: {escape(names.get(row.from_candidate, '?'))} {_whose(row.scope)} "
        f"{numbers.bound(row.lower_mass)} &lt; {numbers.threshold(row.tau)}; "
        f"{escape(names.get(row.to_candidate, '?'))} replaced it, predicted to take "
        f"{numbers.micros(row.paid_us)} more"
        for row in frames.rows(events)
    ]
    return f'<div class="rs-note">{"<br>".join(steps)}</div>'


def audit_html(choice: pd.Series) -> str:
    """The dense audit of this unit."""
    if numbers.is_missing(choice["audit_rows"]):
        if choice["pattern"] == "dense":
            return '<div class="rs-sub">Nothing to audit: this unit is dense and reads every key.</div>'
        return (
            '<div class="rs-sub">Not audited. Run the prompt again with audit “rows” to measure this.</div>'
        )
    return facts.lines_html(
        [
            ("retained mass of the body", numbers.mass(choice["audited_mass"])),
            ("certificate holds", _covered(choice)),
            ("output error, relative", numbers.mass(choice["audited_error"], 4), "error"),
            ("error of the worst row", numbers.mass(choice["audited_max_error"], 4)),
            ("its bound", numbers.mass(choice["bound_tight"], 4)),
            ("rows audited", numbers.count(choice["audit_rows"])),
        ]
    )


def candidates_html(candidates: pd.DataFrame) -> str:
    """The candidate table; the chosen row is marked, the rest say why not."""
    heading = glossary.heading
    head = (
        f'<th class="l">candidate</th><th class="l">outcome</th>{heading("kept", "density")}'
        f"{heading('retained mass', 'retained_mass')}{heading('g', 'gate_statistic')}"
        f"{heading('certified', 'certificate')}{heading('u', 'disagreement')}"
        f"{heading('risk', 'risk')}{heading('predicted µs', 'kernel')}"
        + heading("g\u00a0≥\u00a0λ", "gate_threshold")
    )
    body = []
    for row in frames.rows(candidates):
        tested = row.pattern != "dense" and not numbers.is_missing(row.lower_mass)
        body.append(
            f'<tr class="{"pick" if row.chosen else ""}">'
            f'<td class="l">{escape(f"{design.letter(row.pattern)} · {row.budget}")}</td>'
            f'<td class="l w{"" if row.chosen else " no"}">{escape(reason_words.shown(row.reason))}</td>'
            f"<td>{numbers.share(row.density)}</td><td>{numbers.mass(row.mass)}</td>"
            f"<td>{numbers.mass(row.gate_statistic)}</td><td>{numbers.bound(row.lower_mass) if tested else '–'}</td>"
            f"<td>{numbers.mass(row.disagreement)}</td><td>{numbers.mass(row.risk)}</td>"
            f"<td>{numbers.whole_micros(row.kernel_us)}</td><td>{'yes' if row.admissible else 'no'}</td></tr>"
        )
    return tables.framed(f"<tr>{head}</tr>{''.join(body)}")


def _nats(value: float) -> str:
    return numbers.NOT_MEASURED if numbers.is_missing(value) else f"{value:.2f} nats"


def _certified(choice: pd.Series) -> str:
    value = _sparse(choice["lower_mass"], choice["pattern"] != "dense")
    return f"{value}, ran uncertified" if choice["uncertified"] else value


def _whose(scope: object) -> str:
    return "left with its layer, whose certificate was" if scope == "layer" else "certified"


def _layer_facts(layer: pd.Series | None, run: RunRow) -> list[tuple[str, str, str]]:
    if run.tau_layer is None or layer is None:
        return []
    return [
        (
            f"layer’s certified mean, τ layer = {numbers.threshold(run.tau_layer)}",
            layer_verdict(layer, run),
            "layer_certificate",
        )
    ]


def _sparse(value: Any, sparse: bool) -> str:
    return numbers.bound(value) if sparse else facts.DOES_NOT_APPLY


def _conformal(choice: pd.Series, run: RunRow, sparse: bool) -> str:
    value = choice["conformal_lower_mass"]
    if sparse and numbers.is_missing(value) and run.calibration is None:
        return facts.NO_CALIBRATION
    told = None if numbers.is_missing(value) else drift_note.void(run)
    return _sparse(value, sparse) + ("" if told is None else f" · {told}")


def _covered(choice: pd.Series) -> str:
    if choice["pattern"] == "dense":
        return facts.DOES_NOT_APPLY
    if pd.isna(choice["covered"]):
        return numbers.NOT_MEASURED
    return "yes" if choice["covered"] else "no"
