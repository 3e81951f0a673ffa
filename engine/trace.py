"""What a routed model leaves behind: prompts, decisions and timings, turned into records for a bundle."""

from __future__ import annotations

import datetime
import json
import platform
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from routesparse.engine import explain, paths
from routesparse.engine.certificate import conformal_lower_mass, row_lower_bound
from routesparse.engine.heatmap import Heatmap
from routesparse.engine.records import (
    AuditRow,
    CandidateScoreRow,
    FallbackEventRow,
    HeadChoiceRow,
    LayerRow,
    ProbeRow,
    PromptRow,
    RunRecord,
    RunRow,
)

if TYPE_CHECKING:
    from routesparse.engine.calibration import Calibration
    from routesparse.engine.config import AuditDepth, RouterConfig
    from routesparse.engine.latency import LatencyProfile
    from routesparse.engine.layer import Decision

PROBE_BYTES = 16_000_000  # of heatmaps per run, before compression
PACKAGES = ("torch", "transformers", "triton", "numpy")


@dataclass(frozen=True)
class LayerPass:
    """What one call of one layer left behind (a prompt, or a chunk of it)."""

    layer: int
    decisions: tuple[Decision, ...]  # without their probe tensors
    heatmaps: tuple[tuple[Heatmap, ...], ...]  # per decision, per unit
    kernel_us: float
    density: float  # of the plan that ran, tail included
    limit_us: float | None
    audits: tuple[AuditRow, ...]
    audit_us: float

    def sum_of(self, name: str) -> float:
        """Sum of a Decision's number over this pass's segments."""
        return float(sum(getattr(d, name) for d in self.decisions))


@dataclass
class PromptTrace:
    """One prompt: every routed layer pass, in order. Empty passes: dense ran untouched."""

    batch: int
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    device: str
    dtype: str
    layers: set[int] = field(default_factory=set)
    passes: list[LayerPass] = field(default_factory=list)

    @property
    def audit_ms(self) -> float:
        """Time spent auditing inside the forward pass; it is not part of prefill."""
        return sum(p.audit_us for p in self.passes) / 1e3

    def decisions(self) -> Iterator[Decision]:
        """Every decision of the prompt, layer passes in order."""
        for layer_pass in self.passes:
            yield from layer_pass.decisions


@dataclass(frozen=True)
class RunInfo:
    """What a record says about a run besides its decisions."""

    model: str = "unnamed"
    model_revision: str = ""
    tokenizer_hash: str = ""
    prompt_name: str = "unnamed"
    prompt_sha256: str = ""
    domain: str | None = None
    prompt: PromptRow | None = None
    total_ms: float | None = None
    dense_ms: float | None = None
    top1_agreement: float | None = None
    run_id: str | None = None  # None: a new one; a job's worker names its run before it starts


@dataclass
class Trace:
    """Everything that a routing session saw; ``with route(model) as trace`` yields it."""

    config: RouterConfig
    gate: float
    calibration: Calibration | None
    audit_depth: AuditDepth
    audit_rows: int
    profile: LatencyProfile | str
    prompts: list[PromptTrace] = field(default_factory=list)
    info: RunInfo = field(default_factory=RunInfo)

    @property
    def decisions(self) -> tuple[HeadChoiceRow, ...]:
        """The choices of the last prompt, one per (batch, layer, head, segment)."""
        return self.record().choices if self.prompts else ()

    @property
    def timings(self) -> dict[str, float]:
        """Measured milliseconds of the last prompt: probe, index, route and kernel of its routed layers, their sum."""
        last = self.prompts[-1] if self.prompts else None
        return _timings(last)

    def to_bundle(self, path: str | Path) -> Path:
        """Write the last prompt's bundle into folder ``path``; returns the bundle's folder."""
        from routesparse.engine.store.bundle import write_bundle

        return write_bundle(self.record(), Path(path))

    def record(self, info: RunInfo | None = None) -> RunRecord:
        """The last prompt as records. Errors: ValueError before the first prompt."""
        if not self.prompts:
            raise ValueError("no prompt has been prefilled inside the route() block yet")
        prompt, info = self.prompts[-1], info or self.info
        made_now = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        run_id = info.run_id or made_now
        choices: list[HeadChoiceRow] = []
        candidates: list[CandidateScoreRow] = []
        events: list[FallbackEventRow] = []
        probes: list[ProbeRow] = []
        factor = _pool_factor(prompt)
        for layer_pass in prompt.passes:
            for decision, pictures in zip(layer_pass.decisions, layer_pass.heatmaps, strict=True):
                for unit in range(decision.batch * decision.heads):
                    choices.append(self._choice(run_id, decision, unit, prompt.tokens))
                    candidates += _candidates(run_id, decision, unit, self.config.tau)
                    probes.append(_probe(run_id, decision, unit, pictures[unit].pooled(factor)))
                events += _events(run_id, decision, self.config.tau)
        audits = tuple(replace(a, run_id=run_id) for p in prompt.passes for a in p.audits)
        run = self._run(run_id, prompt, info, choices, audits)
        return RunRecord(
            run=run,
            layers=tuple(_layers(run_id, prompt)),
            choices=tuple(choices),
            candidates=tuple(candidates),
            fallbacks=tuple(events),
            audits=audits,
            probes=tuple(probes),
            prompt=None if info.prompt is None else replace(info.prompt, run_id=run_id),
        )

    def _choice(self, run_id: str, decision: Decision, unit: int, tokens: int) -> HeadChoiceRow:
        b, h = divmod(unit, decision.heads)
        place = int(decision.certified.choice[unit])
        candidate, scores = decision.candidates[place], decision.scores
        sparse = bool(decision.sparse[unit])
        rows = decision.certificate_mass[unit, :, place]
        conformal = None
        if self.calibration is not None and sparse:
            delta = self.calibration.delta(tokens, self.config.confidence)
            conformal = float(conformal_lower_mass(scores.gate[unit, place], delta))
        return HeadChoiceRow(
            run_id=run_id,
            batch_index=b,
            layer=decision.layer,
            head=h,
            segment=decision.segment.index,
            first_token=decision.segment.position,
            tokens=decision.segment.rows,
            body_tokens=decision.segment.body,
            candidate=place,
            pattern=candidate.pattern,
            budget=candidate.budget,
            density=float(scores.density[unit, place]),
            mass=float(scores.mass[unit, place]),
            recent_mass=float(scores.recent_mass[unit, place]),
            gate=float(scores.gate[unit, place]),
            lower_mass=float(decision.certified.lower_mass[unit]) if sparse else None,
            conformal_lower_mass=conformal,
            row_lower_mass=float(row_lower_bound(rows, self.config.confidence)) if sparse else None,
            disagreement=float(scores.disagreement[unit, place]),
            entropy=float(decision.entropy[unit]),
            local_band=float(decision.local_band[unit]),
            agreement=float(decision.agreement[unit]),
            risk=float(decision.risk[unit, place]),
            kernel_us=float(scores.kernel_us[unit, place]),
            tests=sum(t.unit == unit for t in decision.certified.tests),
            fallback=decision.certified.fallback[unit],
            reason=explain.choice_reason(decision, unit, self.config.tau),
        )

    def _run(
        self,
        run_id: str,
        prompt: PromptTrace,
        info: RunInfo,
        choices: list[HeadChoiceRow],
        audits: tuple[AuditRow, ...],
    ) -> RunRow:
        timings = _timings(prompt)
        config = self.config
        sparse = [c for c in choices if c.pattern != "dense"]
        densities = [p.density for p in prompt.passes]
        covered = [a.covered for a in audits if a.covered is not None]
        profile = self.profile if isinstance(self.profile, str) else self.profile.name
        return RunRow(
            run_id=run_id,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            model=info.model,
            model_revision=info.model_revision,
            tokenizer_hash=info.tokenizer_hash,
            calibration=None if self.calibration is None else self.calibration.name,
            profile=profile,
            policy=config.policy,
            tau=config.tau,
            gate=self.gate,
            confidence=config.confidence,
            budget=None if config.budget is None else str(config.budget),
            probe_mode=config.probe,
            seed=config.seed,
            config_json=json.dumps(config.to_dict(), sort_keys=True),
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
            expanded_units=sum(c.fallback == "expand" for c in choices),
            dense_fallback_units=sum(c.fallback == "dense" for c in choices),
            dense_router_units=sum(c.fallback is None and c.pattern == "dense" for c in choices),
            over_budget_layers=sum(row.over_budget for row in _layers(run_id, prompt)),
            audit_depth=self.audit_depth,
            audit_rows=self.audit_rows
            if self.audit_depth == "rows"
            else max((a.rows for a in audits), default=0),
            coverage=float(np.mean(covered)) if covered else None,
            mean_error=float(np.mean([a.mean_error for a in audits])) if audits else None,
            max_error=max((a.max_error for a in audits), default=None),
            top1_agreement=info.top1_agreement,
        )


def _timings(prompt: PromptTrace | None) -> dict[str, float]:
    passes = [] if prompt is None else prompt.passes
    sums = {
        f"{part}_ms": sum(p.sum_of(f"{part}_us") for p in passes) / 1e3
        for part in ("probe", "index", "route")
    }
    sums["kernel_ms"] = sum(p.kernel_us for p in passes) / 1e3
    return {**sums, "total_ms": sum(sums.values())}


def _layers(run_id: str, prompt: PromptTrace) -> Iterator[LayerRow]:
    for layer in sorted({p.layer for p in prompt.passes}):
        passes = [p for p in prompt.passes if p.layer == layer]
        limits = [p.limit_us for p in passes if p.limit_us is not None]
        planned = sum(p.sum_of("planned_us") for p in passes)
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
        )


def _candidates(run_id: str, decision: Decision, unit: int, tau: float) -> Iterator[CandidateScoreRow]:
    b, h = divmod(unit, decision.heads)
    scores = decision.scores
    for place, candidate in enumerate(decision.candidates):
        predicted = scores.predicted_error
        yield CandidateScoreRow(
            run_id=run_id,
            batch_index=b,
            layer=decision.layer,
            head=h,
            segment=decision.segment.index,
            candidate=place,
            pattern=candidate.pattern,
            budget=candidate.budget,
            density=float(scores.density[unit, place]),
            mass=float(scores.mass[unit, place]),
            recent_mass=float(scores.recent_mass[unit, place]),
            disagreement=float(scores.disagreement[unit, place]),
            predicted_error=None if predicted is None else float(predicted[unit, place]),
            risk=float(decision.risk[unit, place]),
            kernel_us=float(scores.kernel_us[unit, place]),
            admissible=bool(scores.gate[unit, place] >= decision.gate),
            chosen=place == int(decision.certified.choice[unit]),
            reason=explain.candidate_reason(decision, unit, place, tau),
        )


def _events(run_id: str, decision: Decision, tau: float) -> Iterator[FallbackEventRow]:
    """One event per failed certificate that led to another candidate."""
    cost = decision.scores.kernel_us
    for unit in range(decision.batch * decision.heads):
        tests = [t for t in decision.certified.tests if t.unit == unit]
        final = int(decision.certified.choice[unit])
        dense = len(decision.candidates) - 1
        for number, test in enumerate(tests, start=1):
            target = tests[number].candidate if number < len(tests) else final
            if test.passed or target == test.candidate:
                continue
            b, h = divmod(unit, decision.heads)
            yield FallbackEventRow(
                run_id=run_id,
                batch_index=b,
                layer=decision.layer,
                head=h,
                segment=decision.segment.index,
                test=number,
                from_candidate=test.candidate,
                lower_mass=test.lower_mass,
                tau=tau,
                kind="dense" if target == dense else "expand",
                to_candidate=target,
                paid_us=float(cost[unit, target] - cost[unit, test.candidate]),
            )


def _probe(run_id: str, decision: Decision, unit: int, picture: Heatmap) -> ProbeRow:
    b, h = divmod(unit, decision.heads)
    return ProbeRow(
        run_id=run_id,
        batch_index=b,
        layer=decision.layer,
        head=h,
        segment=decision.segment.index,
        rows=picture.mass.shape[0],
        columns=picture.mass.shape[1],
        pool=picture.pool,
        scale=1.0,
        positions=picture.positions.astype("<i4").tobytes(),
        kinds=picture.kinds.astype(np.uint8).tobytes(),
        mass=np.ascontiguousarray(picture.mass, dtype="<f2").tobytes(),
    )


def _pool_factor(prompt: PromptTrace) -> int:
    """How many heatmap columns become one so that the run's heatmaps stay within PROBE_BYTES."""
    total = sum(picture.mass.nbytes for p in prompt.passes for unit in p.heatmaps for picture in unit)
    return max(1, -(-total // PROBE_BYTES))


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


@lru_cache(maxsize=1)
def git_commit() -> str | None:
    """The repository's commit, None outside a git checkout."""
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=paths.REPOSITORY, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None
