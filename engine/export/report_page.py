"""A run as one HTML page that opens from disk: no server, no network, no script.

Everything on it comes from the run's bundle; the verdict is that of ``engine/verdict.py``. Without ``words`` no word of
the prompt is on it. A Content-Security-Policy forbids whatever the page does not need.
"""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from routesparse.engine.export import numbers, report_certificate, report_evidence, report_map
from routesparse.engine.export.report_html import (
    document,
    facts,
    isolated,
    note,
    section,
    table,
    text,
    verdict,
)
from routesparse.engine.export.run_figures import figures
from routesparse.engine.rows import LayerRow, RunRecord, RunRow
from routesparse.engine.store import bundle
from routesparse.engine.verdict import SIGNS, WORDS, of_record


def of_bundle(folder: Path, *, words: bool) -> str:
    """The page of a bundle, which is checked first; ``words``: with some of the prompt's. Errors: BundleError."""
    data = bundle.read_tables(folder)
    if "certificate" in data:
        return report_certificate.page(bundle.read_certificate(folder), words=words)
    # Of a large run these take most of its memory, and nothing of them is on the page.
    for name in ("candidate_score", "probe", "block_reads"):
        data.pop(name, None)
    return page(bundle.record_of(data), words=words)


def page(record: RunRecord, *, words: bool) -> str:
    """The page of a run; ``words``: with some of the prompt's words, where its text was kept."""
    run, found = record.run, of_record(record)
    is_whole = 0 < run.units == len(record.choices)
    density = fmean(choice.density for choice in record.choices) if is_whole else None
    shown = words and (record.prompt is not None or any(row.text is not None for row in record.answers))
    others = [
        (f"{SIGNS[finding.level]} {WORDS[finding.level]}:", finding.text, finding.level)
        for finding in found.findings[1:]
    ]
    body = (
        f"<header><h1>{isolated(run.prompt_name)}</h1>",
        note(
            f"RouteSparse report · run {run.run_id} · made {run.created_at} · {run.tokens:,} tokens · {run.model} · "
            f"{numbers.device(run.device)}"
        ),
        "</header>",
        verdict(found.level, f"{SIGNS[found.level]} {WORDS[found.level]}.", found.sentence, others),
        facts(figures(run, density, len(record.uncertified), len(record.uncertified_layers))),
        report_evidence.loss(record, words=words),
        report_evidence.answer(record, words=words),
        _maps(record),
        _times(record),
        report_evidence.fallbacks(record),
        report_evidence.certificates(record),
        report_evidence.worst_heads(record, words=words),
        _calibration(run),
        _settings(run),
        _made_with(record),
        note(
            "Words of the prompt are on this page."
            if shown
            else "No word of the prompt is on this page, but for its name."
        ),
    )
    style = report_map.css({choice.pattern for choice in record.choices})
    return document(f"RouteSparse report: {run.prompt_name}, run {run.run_id}", "".join(body), style)


def _maps(record: RunRecord) -> str:
    """A map for each segment of each prompt."""
    run = record.run
    if not record.choices:
        why = f"{run.tokens:,} tokens are below break-even: dense attention ran untouched, without a probe."
        return section("Routing map", note(why if not run.routed else "The run holds no decisions."))
    patterns = {choice.pattern for choice in record.choices}
    maps = []
    grouped = defaultdict(list)
    for choice in record.choices:
        grouped[choice.batch_index, choice.segment].append(choice)
    for (batch, segment), cells in sorted(grouped.items()):
        span = numbers.tokens(cells[0].first_token, cells[0].tokens)
        name = f"segment {segment + 1} of {run.segments}, tokens {span}"
        name += f", prompt {batch + 1} of {run.batch}" if run.batch > 1 else ""
        maps.append(report_map.table(cells, (run.layers, run.heads), run.tau, patterns, name))
    told = (
        f"n = {len(record.choices):,} units (a head of a layer in a segment). Colour and letter: the pattern; stronger "
        "where more of the causal area is kept."
    )
    return section("Routing map", note(told), report_map.legend(record.choices), *maps)


def _times(record: RunRecord) -> str:
    """Measured, predicted and allowed time of each layer, and its certificate."""
    if not record.layers:
        return ""
    sparse = {choice.layer for choice in record.choices if choice.pattern != "dense"}
    cells = [
        (
            f"layer {row.layer}",
            numbers.micros(row.probe_us + row.index_us + row.route_us + row.kernel_us),
            numbers.micros(row.kernel_us),
            numbers.micros(row.planned_us),
            "none" if row.limit_us is None else numbers.micros(row.limit_us),
            numbers.micros(row.dense_us),
            numbers.share(row.density),
            _layer_certificate(row, row.layer in sparse, record.run.tau_layer),
            "–" if row.raised is None else row.raised,
        )
        for row in sorted(record.layers, key=lambda row: row.layer)
    ]
    heads = ("layer", "measured", "of it kernels", "predicted", "T_l", "dense, predicted", "kept area")
    told = f"n = {len(cells)} layers. Measured: probe, indices, choosing and kernels."
    return section("Time of each layer", table(told, (*heads, "certified mean mass", "levels raised"), cells))


def _layer_certificate(row: LayerRow, sparse: bool, tau_layer: float | None) -> str:
    if tau_layer is None:
        return "does not apply"
    if numbers.is_missing(row.lower_mass):
        return "none" if sparse else "all dense"
    return numbers.bound(row.lower_mass)


def _calibration(run: RunRow) -> str:
    """Calibration and drift; why the conformal claim is void, where it is."""
    title = "Calibration and drift"
    if run.calibration is None:
        return section(title, note("No calibration was used: in-prompt certificates alone."))
    alarm = {None: numbers.NOT_MEASURED, True: "yes: ignore the conformal claim", False: "no"}
    rows = (
        ("calibration", run.calibration),
        ("fits this run", run.calibration_mismatch or "yes"),
        ("delta of the conformal claim", "none" if run.delta is None else numbers.mass(run.delta, 4)),
        ("distance from the calibration's prompts", numbers.mass(run.drift_distance, 2)),
        ("its conformal p-value", numbers.mass(run.drift_p)),
        ("drift alarm", alarm[run.drift_alarm]),
    )
    return section(title, _pairs("How the calibration fits this prompt.", rows))


def _settings(run: RunRow) -> str:
    """What was asked for; every setting of the router below."""
    mass = f"{run.tau:g} of each head"
    if run.tau_layer is not None:
        mass = f"{run.tau_layer:g} of a layer, {run.tau:g} of a head"
    shape = f"{run.layers} layers, {run.heads} heads, {run.kv_heads} KV heads of {run.head_dim}"
    rows = [
        ("policy", run.policy + ("" if run.price is None else f", price {run.price:g}")),
        *([] if run.tuned_price is None else [("price of the quality target", run.tuned_price)]),
        ("certified mass to reach", f"{mass}, at confidence {run.confidence:g}"),
        ("T_l, limit of a layer", numbers.limit(run.budget)),
        ("probe", run.probe_mode),
        ("audit", run.audit_depth + (f", {run.audit_rows:,} rows a unit" if run.audit_rows else "")),
        ("latency profile", run.profile),
        ("domain", run.domain or "none given"),
        (
            "prompt",
            f"{run.tokens:,} tokens, {numbers.several(run.segments, 'segment')}, batch of {run.batch}, sha256 "
            f"{run.prompt_sha256}",
        ),
        ("model", f"{run.model}, revision {run.model_revision}: {shape}"),
    ]
    every = [(name, json.dumps(value)) for name, value in sorted(json.loads(run.config_json).items())]
    config = _pairs("Every setting of the router.", every)
    more = f"<details><summary>All {len(every)} settings of the router</summary>{config}</details>"
    return section("Settings", _pairs("What was asked for.", rows), more if every else "")


def _made_with(record: RunRecord) -> str:
    """Versions, device, seed, and the command that repeats the run."""
    run = record.run
    rows = [
        ("device", f"{run.device}, {run.dtype}"),
        ("commit of RouteSparse", run.git_commit or "unknown"),
        ("seed", run.seed),
        *sorted(json.loads(run.versions_json).items()),
    ]
    return section(
        "Made with",
        _pairs("Device, versions and seed.", rows),
        note("To repeat it, with the prompt in a file:"),
        f"<pre>{text(command(record))}</pre>",
    )


def _pairs(caption: str, rows: Any) -> str:
    return table(caption, ("what", "value"), rows, (0, 1))


def command(record: RunRecord) -> str:
    """The command line that repeats a run; what was not given is left out."""
    run = record.run
    config: dict[str, Any] = json.loads(run.config_json)
    options: dict[str, Any] = {
        "--model": run.model,
        "--calibration": run.calibration,
        "--policy": run.policy,
        "--budget": run.budget,
        "--tau": repr(run.tau if run.tau_layer is None else run.tau_layer),
        "--price": run.price,
        "--segment": config.get("segment_tokens"),
        "--probe": run.probe_mode,
        "--audit": run.audit_depth,
        "--break-even": config.get("break_even_tokens"),
        "--domain": run.domain,
        "--seed": run.seed,
        "--bound": config.get("bound"),
        "--beta": config.get("beta"),
        "--rope": config.get("rope"),
    }
    flags = {
        "--measure-dense": run.dense_ms is not None,
        "--no-text": record.prompt is None,
        "--force": run.calibration_mismatch is not None,
    }
    # A name that begins with a dash would be read as an option.
    prompt = f"./{run.prompt_name}" if run.prompt_name[:1] == "-" else run.prompt_name
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    return shlex.join(
        ["routesparse", "analyze", prompt, *given, *(flag for flag, wanted in flags.items() if wanted)]
    )
