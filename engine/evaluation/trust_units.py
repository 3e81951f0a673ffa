"""One window of the trust study: routed by the frozen policy, and every unit's candidates audited on its body.

The truth of a candidate is its mean mass over the whole body (GPU), or over 1,024 rows of it, one in each of as many
equal strata (CPU). Beside the routing rows the last rows of the query blocks are drawn too, for the control that
probes aligned rows.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from routesparse.engine.audit import Executed, audit_units, measure_rows
from routesparse.engine.calibration_measures import ERROR_ROWS, prefill
from routesparse.engine.candidate_audit import candidate_errors, candidate_masses, draw_body_rows
from routesparse.engine.certificate import bernstein_lower_bound, betting_lower_bound, row_lower_bound
from routesparse.engine.config import RouterConfig
from routesparse.engine.evaluation.trust_plan import Planned
from routesparse.engine.latency import LatencyProfile
from routesparse.engine.layer import Decision, stable_seed
from routesparse.engine.models import LoadedModel
from routesparse.engine.probe import AttentionInputs
from routesparse.engine.session import RoutingSession

AUDIT_ROWS = 128  # of output errors and bounds
BODY_ROWS = 1_024
SAMPLED_ROWS = 8
OFFSET_BINS = 8  # of a row's place in its query block
FALLBACK = {None: 0, "expand": 1, "dense": 2}
AUDITED = ("mean_error", "max_error", "bound_paper", "bound_tight", "violations", "rows", "executed_error")


def measure(
    loaded: LoadedModel, planned: Planned, config: RouterConfig, profile: LatencyProfile
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The window's row, and one row per unit."""
    started = time.perf_counter()
    session = UnitSession(planned, config, profile)
    prefill(loaded, planned.window.token_ids, session)
    window = {
        "density": session.trace.record().run.density,
        "gate": session.trace.gate,
        "profile": profile.name,
        "dtype": loaded.dtype,
        "revision": loaded.revision,
        "config": config.digest(),
        "seconds": time.perf_counter() - started,
    }
    return window, session.rows


class UnitSession(RoutingSession):
    """A routing session whose audit keeps one row per unit."""

    def __init__(self, planned: Planned, config: RouterConfig, profile: LatencyProfile) -> None:
        super().__init__(config, profile=profile, audit="rows", salt=planned.window.sha256)
        self.rows: list[dict[str, Any]] = []
        self._errors = planned.part == "A"  # alpha and e are fitted on fold A

    def _audit(self, inputs: AttentionInputs, decision: Decision, executed: Executed) -> list[Any]:
        body = body_rows(inputs, decision, self._seed())
        masses = candidate_masses(inputs, decision, body, self.config).flatten(0, 1).cpu().double().numpy()
        last = aligned_rows(inputs, decision, self.config)
        aligned = candidate_masses(inputs, decision, last, self.config).flatten(0, 1).cpu().double().numpy()
        errors = None
        if self._errors:
            some = draw_body_rows(inputs, decision, ERROR_ROWS, self._seed())
            errors = candidate_errors(inputs, decision, some).flatten(0, 1).numpy()
        found = audit_units(inputs, decision, AUDIT_ROWS, self._seed(), executed=executed)
        audits = {a.head: a for a in found}
        offset = (body % self.config.block_q).flatten(0, 1).cpu().numpy()
        for unit in range(decision.heads):
            row = describe(decision, unit, masses[unit].mean(0))
            row |= claims(decision, unit, masses[unit], self.config)
            row["aligned_all"] = self._resampled(
                decision, unit, aligned[unit], self.config.routing_rows
            ).mean(0)
            if errors is not None:
                row["disagreement_all"], row["error_all"] = decision.scores.disagreement[unit], errors[unit]
            if unit in audits:
                chosen = int(decision.certified.choice[unit])
                rows = self._resampled(decision, unit, aligned[unit, :, chosen], self.config.certificate_rows)
                error = (1.0 - self.config.confidence) / self.config.max_tests
                row["aligned_lower"] = betting_lower_bound(rows, error)
                row["omitted_by_offset"] = omitted_by_offset(
                    masses[unit, :, chosen], offset[unit], self.config
                )
                row |= {name: getattr(audits[unit], name) for name in AUDITED}
                row |= self._sampled(inputs, decision, unit)
            self.rows.append(row)
        return []

    def _resampled(self, decision: Decision, unit: int, rows: np.ndarray, count: int) -> np.ndarray:
        """``count`` of the rows with replacement: as many as a probe would read."""
        rng = np.random.default_rng([self._seed(), decision.layer, unit])
        return rows[rng.integers(0, len(rows), count)]

    def _sampled(self, inputs: AttentionInputs, decision: Decision, unit: int) -> dict[str, np.ndarray]:
        """Error and both bounds of a few random rows, relative to the row's output."""
        rows = draw_body_rows(inputs, decision, SAMPLED_ROWS, self._seed())[0, unit].sort().values
        found = measure_rows(inputs, decision, 0, unit, rows)
        norm = np.maximum(found["norm"], 1e-12)
        return {f"row_{name}": found[name] / norm for name in ("error", "paper", "tight")}


def body_rows(inputs: AttentionInputs, decision: Decision, seed: int) -> torch.Tensor:
    """int64 [1, H, P] of a prompt without padding: the whole body on a GPU, else a row of each of BODY_ROWS strata."""
    body = decision.segment.body
    if inputs.q.is_cuda or body <= BODY_ROWS:
        return draw_body_rows(inputs, decision, None, seed)
    generator = torch.Generator().manual_seed(
        stable_seed("strata", seed, decision.layer, decision.segment.index)
    )
    draws = torch.rand(1, decision.heads, BODY_ROWS, generator=generator, dtype=torch.float64)
    return ((torch.arange(BODY_ROWS) + draws) / BODY_ROWS * body).long().clamp_max(body - 1)


def aligned_rows(inputs: AttentionInputs, decision: Decision, config: RouterConfig) -> torch.Tensor:
    """int64 [1, H, N]: the last row of every query block of the body."""
    rows = torch.arange(config.block_q - 1, decision.segment.body, config.block_q, device=inputs.q.device)
    return rows.expand(1, decision.heads, -1)


def describe(decision: Decision, unit: int, true: np.ndarray) -> dict[str, Any]:
    """Choice and statistics of one unit; true [C]: body mean mass of each candidate."""
    scores, certified = decision.scores, decision.certified
    chosen = int(certified.choice[unit])
    tests = [t for t in certified.tests if t.unit == unit]
    return {
        "layer": decision.layer,
        "segment": decision.segment.index,
        "head": unit,
        "pattern": decision.candidates[chosen].pattern,
        "chosen": chosen,
        "first": int(decision.routed.choice[unit]),
        "dense": len(true) - 1,
        "fallback": FALLBACK[certified.fallback[unit]],
        "density": scores.density[unit, chosen],
        "disagreement": scores.disagreement[unit, chosen],
        "entropy": decision.entropy[unit],
        "local_band": decision.local_band[unit],
        "agreement": decision.agreement[unit],
        "lower": certified.lower_mass[unit],
        "test_lower": np.array([t.lower_mass for t in tests]),
        "test_true": np.array([true[t.candidate] for t in tests]),
        "mass_all": scores.mass[unit],
        "recent_all": scores.recent_mass[unit],
        "kernel_us_all": scores.kernel_us[unit],
        "true_all": true,
    }


def claims(decision: Decision, unit: int, masses: np.ndarray, config: RouterConfig) -> dict[str, Any]:
    """Row statements of one unit and the share of its audited rows above each; masses [P, C]."""
    chosen, first, dense = (
        int(decision.certified.choice[unit]),
        int(decision.routed.choice[unit]),
        masses.shape[1] - 1,
    )
    rows = decision.certificate_mass[unit]
    found: dict[str, Any] = {}
    if first != dense:
        bound = row_lower_bound(rows[:, first], config.confidence)
        found["first_row_covered"] = (masses[:, first] >= bound).mean()
    if chosen == dense:
        return found
    for name, level in (("row_q", config.confidence), ("row_s", config.row_level)):
        found[f"{name}_covered"] = (masses[:, chosen] >= row_lower_bound(rows[:, chosen], level)).mean()
    error = (1.0 - config.confidence) / config.max_tests
    return found | {"bernstein": bernstein_lower_bound(rows[:, chosen], error)}


def omitted_by_offset(mass: np.ndarray, offset: np.ndarray, config: RouterConfig) -> np.ndarray:
    """Mean 1 - mass of the audited rows [P] by their place in the query block, in OFFSET_BINS equal bins."""
    place = offset * OFFSET_BINS // config.block_q
    count = np.bincount(place, minlength=OFFSET_BINS)
    return np.bincount(place, weights=1.0 - mass, minlength=OFFSET_BINS) / np.maximum(count, 1)
