"""The report's evidence: the next token, fallbacks by reason, audited certificates, and the worst heads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from routesparse.engine.export import numbers, palette
from routesparse.engine.export.report_html import note, section, table
from routesparse.engine.export.wording import CERTIFICATE_SCOPE, HEAD_FLOOR
from routesparse.engine.rows import (
    OUTCOMES,
    AnswerRow,
    AuditRow,
    HeadChoiceRow,
    PromptRow,
    RunRecord,
    WorstRow,
    is_uncertified,
)
from routesparse.engine.store.words import Words

_MOST_WORST = 12
_MOST_PASSAGES = 3
_LONGEST = 90  # characters of a passage


def answer(record: RunRecord, *, words: bool) -> str:
    """The most probable next tokens by dense attention and by the run."""
    run = record.run
    if run.top1_agreement is None:
        return section("Answer check", note("Not compared: no dense prefill ran."))
    kl = "" if run.kl_nats is None else f", KL(dense || run) {numbers.mass(run.kl_nats, 4)} nats"
    told = f"{numbers.share(run.top1_agreement, 0)} of next tokens as by dense{kl}. It is one position of each prompt."
    rows = [
        (
            # Without words no number either: with the model's tokenizer it is the token's text.
            f"{row.batch_index + 1}: {_token(row) if words and row.text is not None else 'a token'}",
            row.dense_rank,
            numbers.share(row.dense, 2),
            row.routed_rank,
            numbers.share(row.routed, 2),
        )
        for row in sorted(record.answers, key=lambda row: (row.batch_index, row.dense_rank))
    ]
    heads = ("prompt: token", "rank by dense", "probability", "rank by this run", "probability")
    shown = table(f"n = {numbers.several(run.batch, 'position')}, the last of each prompt.", heads, rows)
    return section(
        "Answer check",
        note(told),
        shown if rows else note("The odds were not recorded."),
        _continued(record, words),
    )


def _token(row: AnswerRow) -> str:
    """Its text; of a run of an earlier version, which kept one mark for many, its number."""
    return f"token {row.token_id}" if "\N{REPLACEMENT CHARACTER}" in str(row.text) else repr(row.text)


def _continued(record: RunRecord, words: bool) -> str:
    """How the prompt goes on by either prefill; nothing where that was not compared."""
    if not record.continuations:
        return ""
    rows = [
        (f"prompt {row.batch_index + 1}", row.same_tokens, row.tokens)
        + ((repr(row.dense_text), repr(row.routed_text)) if words and row.dense_text is not None else ())
        for row in record.continuations
    ]
    heads = ("prompt", "same leading tokens", "of", "by dense", "by this run")[: len(rows[0])]
    told = f"n = {len(rows)} continuations, decoded greedily with dense attention from the cache of either prefill."
    return table(told, heads, rows, (0, 3, 4))


def fallbacks(record: RunRecord) -> str:
    """How units ended, and why certificates failed."""
    if not record.choices:
        return ""
    ended = Counter(choice.outcome for choice in record.choices)
    ends: list[tuple[str, str, str]] = [
        (name, f"{ended[name]:,}", numbers.share(ended[name] / len(record.choices))) for name in OUTCOMES
    ]
    uncertified = len(record.uncertified)
    ends.append(
        ("of all: ran uncertified", f"{uncertified:,}", numbers.share(uncertified / len(record.choices)))
    )
    if record.run.unmet_units is not None:
        ends.append(("of all: T_l left no time to expand", f"{record.run.unmet_units:,}", ""))
    groups = defaultdict(list)
    for event in record.fallbacks:
        groups[f"certificate of the {event.scope or 'head'} below tau", event.kind].append(event)
    reasons = [
        (
            reason,
            "a dearer candidate" if kind == "expand" else "dense",
            f"{len(events):,}",
            numbers.mass(max(event.tau - event.lower_mass for event in events)),
            numbers.micros(sum(event.paid_us for event in events)),
        )
        for (reason, kind), events in sorted(groups.items())
    ]
    heads = ("reason", "what followed", "times", "largest deficit of mass", "predicted time added")
    return section(
        "Fallbacks",
        table(
            f"n = {len(record.choices):,} units by how they ended.", ("how it ended", "units", "share"), ends
        ),
        table(f"n = {len(record.fallbacks):,} failed certificates by reason.", heads, reasons, (0, 1))
        if reasons
        else note("No certificate failed."),
    )


def certificates(record: RunRecord) -> str:
    """Each claim: its level, how many make it, and how often the audit found it true."""
    run = record.run
    if not record.choices:
        return ""
    level = numbers.share(run.confidence, 0)
    audits = {_unit(row): row for row in record.audits}
    sparse = [choice for choice in record.choices if choice.pattern != "dense"]
    units = [(choice, audits[_unit(choice)]) for choice in sparse if _unit(choice) in audits]
    conformal = [
        min(audit.mass, choice.recent_mass) >= choice.conformal_lower_mass
        for choice, audit in units
        if choice.conformal_lower_mass is not None
    ]
    in_prompt = [audit.covered for _, audit in units if audit.covered is not None]
    row_shares = [audit.row_covered for _, audit in units if audit.row_covered is not None]
    void = ""
    if run.drift_alarm or run.calibration_mismatch:
        void = f": ignore it, {'drift alarm' if run.drift_alarm else 'the calibration does not fit'}"
    reached = sum(not is_uncertified(c.pattern, c.lower_mass, run.tau) for c in sparse)
    rows = [
        (
            "in-prompt, of a head",
            level,
            f"{reached:,} of {len(sparse):,} reach {run.tau:g}",
            *_held(in_prompt),
        ),
        (
            f"conformal, of a head{void}",
            level,
            f"{sum(c.conformal_lower_mass is not None for c in sparse):,} of {len(sparse):,} make it",
            *_held(conformal),
        ),
        ("single rows", level, f"{len(sparse):,} sparse units", *_held(row_shares)),
    ]
    if run.tau_layer is not None:
        claims = {
            row.layer: row.lower_mass
            for row in record.layers
            if row.lower_mass is not None and not np.isnan(row.lower_mass)
        }
        missed = len(record.uncertified_layers)
        masses = _layer_masses(record, audits)
        # Of several segments and prompts a run keeps the least claim: that they all held can't be told from it.
        alone = {layer for layer in claims if len(masses[layer]) == 1 and not np.isnan(masses[layer][0])}
        held = [masses[layer][0] >= claims[layer] for layer in alone]
        broken = sum(
            any(mass < claim for mass in masses[layer])
            for layer, claim in claims.items()
            if layer not in alone
        )
        least = f", least {numbers.bound(min(claims.values()))}" if claims else ""
        least += (
            f"; in {numbers.several(broken, 'layer')} of several segments one is below the least bound"
            if broken
            else ""
        )
        rows.insert(
            0,
            (
                "in-prompt, of a layer's mean",
                level,
                f"{missed:,} below {run.tau_layer:g}{least}",
                *_held(held),
            ),
        )
    heads = ("claim", "level", "claims", "audited n", "held")
    shown = [table(f"Claims about retained mass; an audit of {run.audit_rows:,} rows a unit.", heads, rows)]
    if units:
        errors = [
            ("output error, mean over audited units", numbers.mass(run.mean_error, 4)),
            ("output error of the worst row", numbers.mass(run.max_error, 4)),
            (
                "audited rows beyond a proven bound (must be 0)",
                sum(audit.violations for audit in record.audits),
            ),
            ("median bound over error of a unit's worst row", _looseness(audit for _, audit in units)),
        ]
        shown.append(table(f"Errors; n = {len(units):,} audited sparse units.", ("what", "value"), errors))
    else:
        shown.append(note("Not audited: whether the claims held was not measured."))
    shown.append(note(CERTIFICATE_SCOPE))
    if run.tau_layer is not None:
        shown.append(note(HEAD_FLOOR))
    return section("Audit and certificates", *shown)


def worst_heads(record: RunRecord, *, words: bool) -> str:
    """The audited rows that are farthest off, each of another unit, with what they lost."""
    if not record.worst_rows:
        return section("Worst heads", note("Not audited, or by a version that did not keep the worst rows."))
    patterns = {_unit(choice): choice.pattern for choice in record.choices}
    text = _words(record.prompt) if words and record.prompt is not None else None
    found = sorted((row for row in record.worst_rows if row.rank == 0), key=lambda row: -row.error)[
        :_MOST_WORST
    ]
    rows = []
    for row in found:
        cells = [
            f"layer {row.layer}, head {row.head}, segment {row.segment + 1}",
            palette.name(patterns.get(_unit(row), "unknown")),
            numbers.mass(row.error),
            numbers.share(row.mass),
            f"{row.position:,}",
        ]
        if text is not None:
            start, end = text.span_of_token(row.position, record.run.block_k)
            cells.append(repr(text.text[start:end][:_LONGEST]))
        rows.append((*cells, _lost(row, record.run.block_k, text)))
    heads = ["unit", "pattern", "error of the row", "attention kept", "token"]
    heads += [] if text is None else ["its word"]
    told = f"The worst audited row of each of {len(found)} units, of {len(record.audits):,} audited."
    left = (0, 1, len(heads) - 1, len(heads)) if text is not None else (0, 1, len(heads))
    return section("Worst heads", table(told, (*heads, "lost most on"), rows, left))


def _lost(row: WorstRow, block_tokens: int, text: Words | None) -> str:
    """The KV blocks that a row lost most attention on."""
    blocks = np.frombuffer(row.lost_blocks, "<i4")[:_MOST_PASSAGES]
    shares = np.frombuffer(row.lost_mass, "<f4")
    parts = []
    for block, share in zip(blocks.tolist(), shares.tolist(), strict=False):
        first = block * block_tokens
        told = f"tokens {numbers.tokens(first, block_tokens)}: {numbers.share(share)}"
        if text is not None:
            start, end = text.span_of_block(block)
            told += f" {text.text[start:end][:_LONGEST]!r}"
        parts.append(told)
    return "; ".join(parts) or "nothing"


def _layer_masses(record: RunRecord, audits: dict[tuple[int, ...], AuditRow]) -> dict[int, list[float]]:
    """Per layer the exact mass, mean over heads, of each segment and prompt that ran sparse; NaN: not all audited."""
    masses = defaultdict(list)
    sparse = set()
    for choice in record.choices:
        place = choice.layer, choice.segment, choice.batch_index
        audit = audits.get(_unit(choice))
        masses[place].append(
            1.0 if choice.pattern == "dense" else float("nan") if audit is None else audit.mass
        )
        if choice.pattern != "dense":
            sparse.add(place)
    found: dict[int, list[float]] = defaultdict(list)
    for place in sparse:
        found[place[0]].append(float(np.mean(masses[place])))
    return found


def _held(values: list[bool] | list[float]) -> tuple[str, str]:
    """n and the share that held."""
    return f"{len(values):,}", numbers.share(float(np.mean(values))) if values else numbers.NOT_MEASURED


def _looseness(audits: Iterable[AuditRow]) -> str:
    ratios = [audit.bound_tight / audit.max_error for audit in audits if audit.max_error > 0]
    return numbers.times(float(np.median(ratios))) if ratios else numbers.NOT_MEASURED


def _unit(row: AuditRow | HeadChoiceRow | WorstRow) -> tuple[int, ...]:
    return row.batch_index, row.layer, row.head, row.segment


def _words(prompt: PromptRow) -> Words:
    starts = prompt.token_starts
    return Words(
        prompt.text,
        np.frombuffer(prompt.block_starts, "<i4"),
        None if starts is None else np.frombuffer(starts, "<i4"),
    )
