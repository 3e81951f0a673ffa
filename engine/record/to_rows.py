"""From a prompt's layer passes to a bundle's records, keyed by (run, batch, layer, head, segment)."""

from __future__ import annotations

import datetime
import json
import math
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from routesparse.engine.calibration.drift import describe_prompt
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Decision
from routesparse.engine.decide.heatmap import Heatmap
from routesparse.engine.method import shape
from routesparse.engine.method.certificate import conformal_lower_mass, row_lower_bound
from routesparse.engine.method.fallback import LayerBounds
from routesparse.engine.method.records import ROUTING
from routesparse.engine.method.router import admissible
from routesparse.engine.provenance import git_commit, now, versions
from routesparse.engine.record.block_reads import within_bytes
from routesparse.engine.record.passes import PromptTrace, RunInfo, RunSettings
from routesparse.engine.record.reasons import candidate_reason, choice_reason, climb_cause
from routesparse.engine.rows import (
    AuditRow,
    CandidateScoreRow,
    FallbackEventRow,
    HeadChoiceRow,
    LayerRow,
    ProbeRow,
    RunRecord,
    RunRow,
    UnitKey,
)

PROBE_BYTES = 16_000_000  # of heatmaps per run, before compression
MOST_ROW_STEP = 3  # rows thin out first, then columns pool: lines of few rows still read as lines


def record_prompt(settings: RunSettings, prompt: PromptTrace, info: RunInfo) -> RunRecord:
    """Everything that one prompt left behind."""
    made_now = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    run_id = info.run_id or made_now
    choices: list[HeadChoiceRow] = []
    candidates: list[CandidateScoreRow] = []
    events: list[FallbackEventRow] = []
    probes: list[ProbeRow] = []
    reduction = _reduction(prompt, info.probe_bytes or PROBE_BYTES)
    tau = settings.config.least_head_mass
    for layer_pass in prompt.passes:
        for decision, pictures in zip(layer_pass.decisions, layer_pass.heatmaps, strict=True):
            shapes = _shapes(decision, pictures)
            for unit in range(decision.batch * decision.heads):
                choices.append(_choice(settings, run_id, decision, unit, prompt.tokens, shapes[unit]))
                candidates += _candidates(run_id, decision, unit, tau)
                probes.append(_probe(run_id, decision, unit, pictures[unit].reduced(*reduction)))
            events += _events(run_id, decision, settings.config)
    audited = [a for p in prompt.passes for a in p.audits]
    audits = tuple(replace(row, run_id=run_id) for a in audited for row in a.units)
    layers = tuple(_layers(run_id, prompt))
    return RunRecord(
        run=_run(settings, run_id, prompt, info, choices, audits, layers),
        layers=layers,
        choices=tuple(choices),
        candidates=tuple(candidates),
        fallbacks=tuple(events),
        audits=audits,
        worst_rows=tuple(replace(row, run_id=run_id) for a in audited for row in a.worst_rows),
        block_reads=tuple(within_bytes(run_id, [row for a in audited for row in a.block_reads])),
        traced_rows=tuple(replace(row, run_id=run_id) for a in audited for row in a.traced_rows),
        probes=tuple(probes),
        prompt=None if info.prompt is None else replace(info.prompt, run_id=run_id),
    )


def _key(run_id: str, decision: Decision, unit: int) -> dict[str, Any]:
    """What every unit's row begins with."""
    batch_index, head = divmod(unit, decision.heads)
    return vars(UnitKey(run_id, batch_index, decision.layer, head, decision.segment.index))


def _candidate(run_id: str, decision: Decision, unit: int, place: int) -> dict[str, Any]:
    """What the rows of a unit's choice and of all its candidates have in common."""
    candidate, scores = decision.candidates[place], decision.scores
    return {
        **_key(run_id, decision, unit),
        "candidate": place,
        "pattern": candidate.pattern,
        "budget": candidate.budget,
        "density": float(scores.density[unit, place]),
        "mass": float(scores.mass[unit, place]),
        "recent_mass": float(scores.recent_mass[unit, place]),
        "disagreement": float(scores.disagreement[unit, place]),
        "risk": float(decision.risk[unit, place]),
        "kernel_us": float(scores.kernel_us[unit, place]),
    }


def _shapes(decision: Decision, pictures: Sequence[Heatmap]) -> list[dict[str, Any]]:
    """Of each unit, from the routing rows of its picture at full size."""
    mass = np.stack([np.where((one.kinds == ROUTING)[:, None], one.mass, 0) for one in pictures])
    cell = pictures[0].pool * decision.segment.block_k
    found = shape.shares(mass, np.stack([one.positions for one in pictures]) // cell)
    return [
        {f"{name}_share": value for name, value in zip(shape.PARTS, unit, strict=True)}
        if unit[0] == unit[0]
        else {}
        for unit in found.tolist()
    ]


def _choice(
    settings: RunSettings, run_id: str, decision: Decision, unit: int, tokens: int, shares: dict[str, Any]
) -> HeadChoiceRow:
    place = int(decision.certified.choice[unit])
    scores = decision.scores
    sparse = bool(decision.sparse[unit])
    rows = decision.certificate_mass[unit, :, place]
    conformal = None
    delta = _finite_delta(settings, tokens)
    calibration, pattern = settings.calibration, decision.candidates[place].pattern
    if delta is not None and sparse and calibration is not None and calibration.covers(pattern):
        conformal = float(conformal_lower_mass(scores.gate_statistic[unit, place], delta))
    return HeadChoiceRow(
        **_candidate(run_id, decision, unit, place),
        first_token=decision.segment.position,
        tokens=decision.segment.rows,
        body_tokens=decision.segment.body,
        gate_statistic=float(scores.gate_statistic[unit, place]),
        lower_mass=float(decision.certified.lower_mass[unit]) if sparse else None,
        conformal_lower_mass=conformal,
        row_lower_mass=float(row_lower_bound(rows, settings.config.row_level)) if sparse else None,
        entropy=float(decision.entropy[unit]),
        local_band=float(decision.local_band[unit]),
        agreement=float(decision.agreement[unit]),
        tests=sum(t.unit == unit for t in decision.certified.tests),
        fallback=decision.certified.fallback[unit],
        reason=choice_reason(decision, unit, settings.config),
        unmet=bool(decision.certified.unmet[unit]),
        gate_threshold=float(decision.gate_threshold[unit].max()),
        **shares,
    )


def _finite_delta(settings: RunSettings, tokens: int) -> float | None:
    """delta_q for this length; an infinite one (not calibrated) promises nothing: not measured."""
    if settings.calibration is None:
        return None
    delta = settings.calibration.delta(tokens, settings.config.confidence)
    return delta if math.isfinite(delta) else None


def drift_of(settings: RunSettings, prompt: PromptTrace, choices: Sequence[HeadChoiceRow]) -> dict[str, Any]:
    """How far this prompt lies from the calibration's; nothing where there is none, for its length, or for batches."""
    reference = None if settings.calibration is None else settings.calibration.drift
    if reference is None or not choices or prompt.batch > 1:
        return {}
    found = reference.assess(describe_prompt(choices)[1], prompt.tokens)
    if found is None:
        return {}
    return {"drift_distance": found.distance, "drift_p": found.p, "drift_alarm": found.alarm}


def _asked_for(config: RouterConfig, info: RunInfo) -> dict[str, Any]:
    """The router's settings; where the model's positions were rescaled, how; of a server's request, whose."""
    rope = {} if info.rope is None else {"rope": info.rope}
    served = {} if info.served is None else {"served": asdict(info.served)}
    cached = {"cached_tokens": info.cached_tokens} if info.cached_tokens else {}
    return config.to_dict() | rope | served | cached


def _run(
    settings: RunSettings,
    run_id: str,
    prompt: PromptTrace,
    info: RunInfo,
    choices: list[HeadChoiceRow],
    audits: tuple[AuditRow, ...],
    layers: tuple[LayerRow, ...],
) -> RunRow:
    timings = prompt.timings()
    config = settings.config
    priced = config.policy == "priced"
    sparse = [c for c in choices if c.pattern != "dense"]
    outcomes = Counter(c.outcome for c in choices)
    densities = [p.density for p in prompt.passes]
    covered = [a.covered for a in audits if a.covered is not None]
    return RunRow(
        run_id=run_id,
        created_at=now(),
        model=info.model,
        model_revision=info.model_revision,
        tokenizer_hash=info.tokenizer_hash,
        calibration=None if settings.calibration is None else settings.calibration.name,
        profile=settings.profile.name,
        policy=config.policy,
        tau=config.least_head_mass,
        gate_threshold=None if priced else settings.gate_threshold,
        confidence=config.confidence,
        budget=None if config.budget is None else str(config.budget),
        probe_mode=config.probe,
        seed=config.seed,
        config_json=json.dumps(_asked_for(config, info), sort_keys=True),
        prompt_name=info.prompt_name,
        prompt_sha256=info.prompt_sha256,
        domain=info.domain,
        batch=prompt.batch,
        tokens=prompt.tokens,
        layers=len(prompt.layers),
        heads=prompt.heads,
        kv_heads=prompt.kv_heads,
        head_dim=prompt.head_dim,
        segments=1 + max((c.segment for c in choices), default=0),
        block_q=config.block_q,
        block_k=config.block_k,
        device=prompt.device,
        dtype=prompt.dtype,
        versions_json=json.dumps(versions(), sort_keys=True),
        git_commit=git_commit(),
        routed=bool(prompt.passes),
        probe_ms=timings["probe_ms"],
        index_ms=timings["index_ms"],
        route_ms=timings["route_ms"],
        kernel_ms=timings["kernel_ms"],
        total_ms=timings["total_ms"] if info.total_ms is None else info.total_ms,
        dense_ms=info.dense_ms,
        density=float(np.mean(densities)) if densities else None,
        units=len(choices),
        sparse_units=len(sparse),
        expanded_units=outcomes["expanded"],
        dense_fallback_units=outcomes["dense by fallback"],
        dense_router_units=outcomes["dense by the router"],
        over_budget_layers=sum(row.over_budget for row in layers),
        audit_depth=settings.audit_depth,
        audit_rows=max((a.rows for a in audits), default=0),
        coverage=float(np.mean(covered)) if covered else None,
        mean_error=float(np.mean([a.mean_error for a in audits])) if audits else None,
        max_error=max((a.max_error for a in audits), default=None),
        top1_agreement=info.top1_agreement,
        logit_error=info.logit_error,
        kl_nats=info.kl_nats,
        calibration_mismatch=info.calibration_mismatch,
        **drift_of(settings, prompt, choices),
        delta=_finite_delta(settings, prompt.tokens),
        unmet_units=sum(c.unmet is True for c in choices),
        price=config.price if priced else None,
        tau_layer=config.tau_layer if priced else None,
        tuned_price=settings.tuned_price if priced else None,
    )


def _layers(run_id: str, prompt: PromptTrace) -> Iterator[LayerRow]:
    for layer in sorted({p.layer for p in prompt.passes}):
        passes = [p for p in prompt.passes if p.layer == layer]
        limits = [p.limit_us for p in passes if p.limit_us is not None]
        planned = sum(p.sum_of("planned_us") for p in passes)
        certified = [d.certified.layer for p in passes for d in p.decisions if d.certified.layer is not None]
        claims = np.concatenate([c.lower_mass for c in certified]) if certified else np.empty(0)
        claims = claims[~np.isnan(claims)]
        yield LayerRow(
            run_id=run_id,
            layer=layer,
            limit_us=sum(limits) if limits else None,
            planned_us=planned,
            dense_us=sum(p.sum_of("dense_us") for p in passes),
            probe_us=sum(p.sum_of("probe_us") for p in passes),
            index_us=sum(p.sum_of("index_us") for p in passes),
            route_us=sum(p.sum_of("route_us") for p in passes),
            kernel_us=sum(p.kernel_us for p in passes),
            density=float(np.mean([p.density for p in passes])),
            over_budget=bool(limits) and planned > sum(limits) * (1 + 1e-9),
            lower_mass=float(claims.min()) if len(claims) else None,
            raised=_raised(certified),
        )


def _raised(certified: list[LayerBounds]) -> int | None:
    """The most levels that a layer climbed in a segment where it did not end dense; None: not certified."""
    if not certified:
        return None
    return max((int(rung) for c in certified for rung in c.rung if rung < c.bounds.shape[1]), default=0)


def _candidates(run_id: str, decision: Decision, unit: int, tau: float) -> Iterator[CandidateScoreRow]:
    scores = decision.scores
    predicted = scores.predicted_error
    for place in range(len(decision.candidates)):
        yield CandidateScoreRow(
            **_candidate(run_id, decision, unit, place),
            predicted_error=None if predicted is None else float(predicted[unit, place]),
            admissible=bool(
                admissible(scores.gate_statistic[unit, place], decision.gate_threshold[unit, place])
            ),
            chosen=place == int(decision.certified.choice[unit]),
            reason=candidate_reason(decision, unit, place, tau),
        )


def _events(run_id: str, decision: Decision, config: RouterConfig) -> Iterator[FallbackEventRow]:
    """One event per failed certificate, of a head or of its layer, that led to another candidate."""
    cost, layer = decision.scores.kernel_us, decision.certified.layer
    for unit in range(decision.batch * decision.heads):
        tests = [t for t in decision.certified.tests if t.unit == unit]
        final = int(decision.certified.choice[unit])
        dense = len(decision.candidates) - 1
        for number, test in enumerate(tests, start=1):
            target = tests[number].candidate if number < len(tests) else final
            if target == test.candidate or (test.passed and layer is None):
                continue
            scope, bound, tau = "head", test.lower_mass, config.least_head_mass
            if layer is not None:
                scope, bound, tau = climb_cause(decision, unit, config, number - 1)
            yield FallbackEventRow(
                **_key(run_id, decision, unit),
                test=number,
                from_candidate=test.candidate,
                lower_mass=bound,
                tau=tau,
                kind="dense" if target == dense else "expand",
                to_candidate=target,
                paid_us=float(cost[unit, target] - cost[unit, test.candidate]),
                scope=scope,
            )


def _probe(run_id: str, decision: Decision, unit: int, picture: Heatmap) -> ProbeRow:
    return ProbeRow(
        **_key(run_id, decision, unit),
        rows=picture.mass.shape[0],
        columns=picture.mass.shape[1],
        pool=picture.pool,
        scale=1.0,
        positions=picture.positions.astype("<i4").tobytes(),
        kinds=picture.kinds.astype(np.uint8).tobytes(),
        mass=np.ascontiguousarray(picture.mass, dtype="<f2").tobytes(),
        masks=picture.masks.tobytes(),
        mask_columns=picture.masks.shape[-1],
        mask_pool=picture.mask_pool,
    )


def _reduction(prompt: PromptTrace, most: int) -> tuple[int, int]:
    """(row step, column factor) by which the run's heatmaps shrink so that they stay within ``most`` bytes."""
    pictures = [picture for p in prompt.passes for unit in p.heatmaps for picture in unit]
    shapes = Counter((*one.mass.shape, one.mask_pool // one.pool, len(one.masks)) for one in pictures)

    def size(row_step: int, factor: int) -> int:
        """Of mass, two bytes a cell, and masks, a byte for two families, together."""
        return sum(
            count
            * -(-rows // row_step)
            * (2 * -(-columns // factor) + pairs * -(-columns // max(factor, finest)))
            for (rows, columns, finest, pairs), count in shapes.items()
        )

    row_step = min(MOST_ROW_STEP, max(1, math.isqrt(size(1, 1) // most)))
    widest = max((columns for _, columns, *_ in shapes), default=1)
    return row_step, next((f for f in range(1, widest) if size(row_step, f) <= most), widest)
