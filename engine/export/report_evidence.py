"""The report's evidence: predicted loss, next token, fallbacks by reason, audited certificates, worst heads."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict

import numpy as np
import pandas as pd

from routesparse.engine.export import numbers, palette
from routesparse.engine.export.report_html import note, section, table
from routesparse.engine.export.wording import CERTIFICATE_SCOPE, HEAD_FLOOR
from routesparse.engine.rows import OUTCOMES, AnswerRow, PromptRow, RunRecord, WorstRow
from routesparse.engine.store.words import Words

_MOST_WORST = 12
_MOST_PASSAGES = 3
_LONGEST = 90  # characters of a passage
_UNIT = ["batch_index", "layer", "head", "segment"]


def loss(record: RunRecord, *, words: bool) -> str:
    """The predicted loss beside its bound, its target and the truth, and the stretches that were replayed."""
    run, title = record.run, "Predicted loss"
    if run.loss_nats is None:
        return section(title, note("Not measured: no rows of this run were replayed."))
    told = f"Predicted {numbers.kl(run.loss_nats)} a token, "
    told += "by a stated factor" if run.loss_fit is None else f"by the model's fit on {run.loss_fit}"
    if run.loss_bounded:
        told += f"; at most {numbers.kl(run.loss_bound)} ({numbers.share(run.confidence, 0)} confidence)"
    else:
        told += f"; no bound: {run.why_unbounded}"
    told += "" if run.loss_target is None else f"; target {run.loss_target:g} nats"
    truth = record.true_loss
    told += (
        "." if truth is None else f". Dense ran, too: true {numbers.kl(truth)} a token at the replayed rows."
    )
    if not record.losses:
        return section(title, note(told))
    text = _words(record.prompt) if words and record.prompt is not None and run.batch == 1 else None
    rows = []
    for row in record.losses:
        cells: list[object] = [
            f"prompt {row.batch_index + 1}, tokens {numbers.tokens(row.position, row.tokens)}",
            numbers.small(row.replayed),
            numbers.small(row.dense),
        ]
        if text is not None:
            start, end = text.span_of_token(row.position, run.block_k, row.tokens)
            cells.append(repr(text.text[start:end][:_LONGEST]))
        rows.append(cells)
    heads = ("stretch", "replayed, nats a token", "dense", "its text")[: len(rows[0])]
    counted = f"n = {len(rows)} stretches, {sum(row.tokens for row in record.losses):,} rows replayed."
    return section(title, note(told), table(counted, heads, rows, (0, 3)))


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
    units = len(record.choices)
    if not units:
        return ""
    ended: Counter[str] = Counter(choice.outcome for choice in record.choices)
    ended["of all: ran without certified mass"] = len(record.uncertified)
    ends = [
        (name, f"{ended[name]:,}", numbers.share(ended[name] / units))
        for name in (*OUTCOMES, "of all: ran without certified mass")
    ]
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
    failed = table(f"n = {len(record.fallbacks):,} failed certificates by reason.", heads, reasons, (0, 1))
    return section(
        "Fallbacks",
        table(f"n = {units:,} units by how they ended.", ("how it ended", "units", "share"), ends),
        failed if reasons else note("No certificate failed."),
    )


def certificates(record: RunRecord) -> str:
    """Each claim: its level, how many make it, and how often the audit found it true."""
    run = record.run
    if not record.choices:
        return ""
    level = numbers.share(run.confidence, 0)
    units = _audited(record)
    sparse = units[units["pattern"] != "dense"]
    audited = sparse[sparse["audited"].notna()]
    claimed = audited[audited["conformal_lower_mass"].notna()]
    gate = claimed[["audited", "recent_mass"]].min(axis=1)
    void = ""
    if run.drift_alarm or run.calibration_mismatch:
        void = f": ignore it, {'drift alarm' if run.drift_alarm else 'the calibration does not fit'}"
    reached = f"{len(sparse) - len(record.uncertified):,} of {len(sparse):,} reach {run.tau:g}"
    made = f"{int(sparse['conformal_lower_mass'].notna().sum()):,} of {len(sparse):,} make it"
    rows = [
        ("in-prompt, of a head", level, reached, *_held(audited["covered"])),
        (f"conformal, of a head{void}", level, made, *_held(gate >= claimed["conformal_lower_mass"])),
        ("single rows", level, f"{len(sparse):,} sparse units", *_held(audited["row_covered"])),
    ]
    if run.tau_layer is not None:
        rows.insert(0, ("in-prompt, of a layer's mean", level, *_layer_claims(record, units)))
    heads = ("claim", "level", "claims", "audited n", "held")
    shown = [table(f"Claims about retained mass; an audit of {run.audit_rows:,} rows a unit.", heads, rows)]
    if len(audited):
        loose = (audited["bound_tight"] / audited["max_error"])[audited["max_error"] > 0]
        errors = [
            ("output error, mean over audited units", numbers.mass(run.mean_error, 4)),
            ("output error of the worst row", numbers.mass(run.max_error, 4)),
            (
                "audited rows beyond a proven bound (must be 0)",
                sum(audit.violations for audit in record.audits),
            ),
            ("median bound over error of a unit's worst row", numbers.times(loose.median())),
        ]
        shown.append(table(f"Errors; n = {len(audited):,} audited sparse units.", ("what", "value"), errors))
    else:
        shown.append(note("Not audited: whether the claims held was not measured."))
    shown.append(note(CERTIFICATE_SCOPE))
    if run.tau_layer is not None:
        shown.append(note(HEAD_FLOOR))
    return section("Audit and certificates", *shown)


def _audited(record: RunRecord) -> pd.DataFrame:
    """Every unit with its claims, and what the audit found: ``audited`` is the exact mass, NaN where none was."""
    columns = [*_UNIT, "pattern", "recent_mass", "conformal_lower_mass"]
    choices = pd.DataFrame([asdict(choice) for choice in record.choices])[columns]
    found = [*_UNIT, "mass", "covered", "row_covered", "bound_tight", "max_error"]
    audits = pd.DataFrame(
        [asdict(audit) for audit in record.audits], columns=None if record.audits else found
    )
    return choices.merge(audits[found].rename(columns={"mass": "audited"}), on=_UNIT, how="left")


def _layer_claims(record: RunRecord, units: pd.DataFrame) -> tuple[str, str, str]:
    """How many layers fail, then n and the share of claims that held. Of several segments and prompts a run keeps the
    least claim: that they all held can't be told from it, only that one is below it."""
    claims = {
        row.layer: row.lower_mass
        for row in record.layers
        if row.lower_mass is not None and not np.isnan(row.lower_mass)
    }
    dense = units["pattern"] == "dense"
    parts = units.assign(exact=units["audited"].mask(dense, 1.0), sparse=~dense).groupby(
        ["layer", "segment", "batch_index"]
    )
    # A mean with a head that was not audited is not known.
    means = parts.agg(mass=("exact", lambda part: part.mean(skipna=False)), sparse=("sparse", "any"))
    masses = means.loc[means["sparse"], "mass"].astype(float).groupby("layer").agg(list)
    alone, broken = [], 0
    for layer, claim in claims.items():
        found = masses.get(layer, [])
        if len(found) == 1 and not np.isnan(found[0]):
            alone.append(found[0] >= claim)
        else:
            broken += any(mass < claim for mass in found)
    told = f"{len(record.uncertified_layers):,} below {record.run.tau_layer:g}"
    told += f", least {numbers.bound(min(claims.values()))}" if claims else ""
    if broken:
        told += f"; in {numbers.several(broken, 'layer')} of several segments one is below the least bound"
    return told, *_held(pd.Series(alone, dtype=float))


def _held(values: pd.Series) -> tuple[str, str]:
    """n and the share that held; what is not known is not counted."""
    known = values.dropna().astype(float)
    return f"{len(known):,}", numbers.share(known.mean())


def worst_heads(record: RunRecord, *, words: bool) -> str:
    """The audited rows that are farthest off, each of another unit, with what they lost."""
    if not record.worst_rows:
        return section("Worst heads", note("Not audited, or by a version that did not keep the worst rows."))
    patterns = {(c.batch_index, c.layer, c.head, c.segment): c.pattern for c in record.choices}
    text = _words(record.prompt) if words and record.prompt is not None else None
    worst = sorted((row for row in record.worst_rows if row.rank == 0), key=lambda row: -row.error)
    rows = []
    for row in worst[:_MOST_WORST]:
        unit = row.batch_index, row.layer, row.head, row.segment
        cells = [
            f"layer {row.layer}, head {row.head}, segment {row.segment + 1}",
            palette.name(patterns.get(unit, "unknown")),
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
    told = f"The worst audited row of each of {len(rows)} units, of {len(record.audits):,} audited."
    left = (0, 1, *range(5, len(heads) + 1))
    return section("Worst heads", table(told, (*heads, "lost most on"), rows, left))


def _lost(row: WorstRow, block_tokens: int, text: Words | None) -> str:
    """The KV blocks that a row lost most attention on."""
    blocks = np.frombuffer(row.lost_blocks, "<i4")[:_MOST_PASSAGES]
    shares = np.frombuffer(row.lost_mass, "<f4")
    parts = []
    for block, share in zip(blocks.tolist(), shares.tolist(), strict=False):
        told = f"tokens {numbers.tokens(block * block_tokens, block_tokens)}: {numbers.share(share)}"
        if text is not None:
            start, end = text.span_of_block(block)
            told += f" {text.text[start:end][:_LONGEST]!r}"
        parts.append(told)
    return "; ".join(parts) or "nothing"


def _words(prompt: PromptRow) -> Words:
    starts = prompt.token_starts
    return Words(
        prompt.text,
        np.frombuffer(prompt.block_starts, "<i4"),
        None if starts is None else np.frombuffer(starts, "<i4"),
    )
