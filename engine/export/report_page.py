"""A run as one HTML page that opens from disk: no server, no network, no script.

Everything on it comes from the run's bundle; the verdict is that of ``engine/verdict.py``. Without ``words`` no word of
the prompt is on it. A Content-Security-Policy forbids whatever the page does not need.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from routesparse.engine.export import numbers, report_certificate, report_evidence, report_settings
from routesparse.engine.export.report_html import document, figure, isolated, note, section, table, text
from routesparse.engine.export.report_map import Colors, layer_times, measured_us, routing_map
from routesparse.engine.rows import RunRecord
from routesparse.engine.store import bundle, tables
from routesparse.engine.verdict import SIGNS, WORDS, Verdict, of_record

_TABLES = ("layer_run", "head_choice", "fallback_event", "audit", "worst_row", "answer", "continuation")


def of_bundle(folder: Path, *, words: bool) -> str:
    """The page of a bundle, which is checked first; ``words``: with some of the prompt's. Errors: BundleError."""
    data = bundle.read_tables(folder)
    if "certificate" in data:
        return report_certificate.page(bundle.read_certificate(folder), words=words)
    rows = {name: tables.from_arrow(name, data[name]) for name in (*_TABLES, "run", "prompt") if name in data}
    fields: dict[str, Any] = {tables.TABLES[name][1]: tuple(rows.get(name, ())) for name in _TABLES}
    prompt = rows.get("prompt") or [None]
    return page(RunRecord(run=rows["run"][0], prompt=prompt[0], **fields), words=words)


def page(record: RunRecord, *, words: bool) -> str:
    """The page of a run; ``words``: with some of the prompt's words, where its text was kept."""
    run = record.run
    colors = Colors(choice.pattern for choice in record.choices)
    shown = words and (record.prompt is not None or any(row.text is not None for row in record.answers))
    body = (
        f"<header><h1>{isolated(run.prompt_name)}</h1>",
        note(
            f"RouteSparse report · run {run.run_id} · made {run.created_at} · {run.tokens:,} tokens · {run.model} · "
            f"{numbers.device(run.device)}"
        ),
        "</header>",
        _verdict(of_record(record)),
        report_settings.figures(record),
        report_evidence.answer(record, words=words),
        _maps(record, colors),
        _times(record),
        report_evidence.fallbacks(record),
        report_evidence.certificates(record),
        report_evidence.worst_heads(record, words=words),
        report_settings.calibration(run),
        report_settings.settings(run),
        report_settings.made_with(record),
        note(
            "Words of the prompt are on this page."
            if shown
            else "No word of the prompt is on this page, but for its name."
        ),
    )
    return document(f"RouteSparse report: {run.prompt_name}, run {run.run_id}", "".join(body), colors.css())


def _verdict(found: Verdict) -> str:
    """The worst finding, then the others, each with its sign and its level in words."""
    others = "".join(
        f'<li class="{finding.level}"><span class="level">{SIGNS[finding.level]} {WORDS[finding.level]}:</span> '
        f"{text(finding.text)}.</li>"
        for finding in found.findings[1:]
    )
    return (
        f'<section class="verdict {found.level}" aria-label="Verdict"><p><span class="level">{SIGNS[found.level]} '
        f"{WORDS[found.level]}.</span> {text(found.sentence)}.</p>{f'<ul>{others}</ul>' if others else ''}</section>"
    )


def _maps(record: RunRecord, colors: Colors) -> str:
    """A map for each segment of each prompt, and what each layer took in numbers."""
    run = record.run
    if not record.choices:
        why = f"{run.tokens:,} tokens are below break-even: dense attention ran untouched, without a probe."
        return section("Routing map", note(why if not run.routed else "The run holds no decisions."))
    maps = []
    grouped = defaultdict(list)
    for choice in record.choices:
        grouped[choice.batch_index, choice.segment].append(choice)
    for (batch, segment), cells in sorted(grouped.items()):
        span = numbers.tokens(cells[0].first_token, cells[0].tokens)
        name = f"segment {segment + 1} of {run.segments}, tokens {span}"
        name += f", prompt {batch + 1} of {run.batch}" if run.batch > 1 else ""
        drawn = routing_map(cells, run.layers, run.heads, run.tau, colors, name)
        maps.append(figure(name[0].upper() + name[1:], drawn))
    told = (
        f"n = {len(record.choices):,} units (a head of a layer in a segment). Colour and letter: the pattern; stronger "
        "where more of the causal area is kept."
    )
    return section("Routing map", note(told), colors.legend(record.choices), *maps)


def _times(record: RunRecord) -> str:
    """Measured, predicted and allowed time of each layer, as bars and as a table."""
    rows = sorted(record.layers, key=lambda row: row.layer)
    if not rows:
        return ""
    limited = any(row.limit_us is not None for row in rows)
    legend = (
        f'<ul class="legend"><li>{_key("bar", "M0 3h18v10h-18z")}measured</li>'
        f"<li>{_key('planned', 'M3 0v16')}predicted</li>"
    )
    if limited:
        legend += f"<li>{_key('limit', 'M3 0v16')}T_l, the limit</li>"
    sparse = {choice.layer for choice in record.choices if choice.pattern != "dense"}
    cells = [
        (
            f"layer {row.layer}",
            numbers.micros(measured_us(row)),
            numbers.micros(row.kernel_us),
            numbers.micros(row.planned_us),
            "none" if row.limit_us is None else numbers.micros(row.limit_us),
            numbers.micros(row.dense_us),
            numbers.share(row.density),
            _layer_certificate(row.lower_mass, row.layer in sparse, record.run.tau_layer),
            "–" if row.raised is None else row.raised,
        )
        for row in rows
    ]
    heads = ("layer", "measured", "of it kernels", "predicted", "T_l", "dense, predicted", "kept area")
    times = table(
        f"n = {len(rows)} layers. Measured: probe, indices, choosing and kernels.",
        (*heads, "certified mean mass", "levels raised"),
        cells,
    )
    return section("Time of each layer", f"{legend}</ul>", layer_times(rows), times)


def _key(kind: str, path: str) -> str:
    """A sign of a legend."""
    return f'<svg width="18" height="16" aria-hidden="true"><path class="{kind}" d="{path}"/></svg>'


def _layer_certificate(lower_mass: float | None, sparse: bool, tau_layer: float | None) -> str:
    if tau_layer is None:
        return "does not apply"
    if numbers.is_missing(lower_mass):
        return "none" if sparse else "all dense"
    return numbers.bound(lower_mass)
