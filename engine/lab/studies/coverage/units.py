"""One window of the trust study: routed by the frozen policy, and every unit's candidates audited on its body.

The truth of a candidate is its mean mass over the whole body (GPU), or over 1,024 rows of it, one in each of as many
equal strata (CPU).

A unit has rungs (``layer_fallback.py``): the router's choice and the next levels of its
family. Every rung's certificate is recorded beside that rung's truth, and so is every rung of the layer, whose truth is
the mean over its heads, a dense head counting 1.

Beside a unit's own bound stand one that holds for all units of the window together (Bonferroni), and two that are
sabotaged, so that a coverage that can't fail is seen: one of error SABOTAGED, and one of the rows that chose the plan.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from routesparse.engine.audit.candidates import candidate_errors, candidate_masses, draw_body_rows
from routesparse.engine.audit.rows import Auditor, Executed, audit_units, measure_rows
from routesparse.engine.calibrate.measure import ERROR_ROWS, prefill
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Decision, LayerSettings
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.lab.studies.coverage.plan import Planned
from routesparse.engine.method.certificate import bernstein_lower_bound, row_lower_bound
from routesparse.engine.method.fallback import FALLBACK_KINDS
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.layer_fallback import levels_above, next_levels
from routesparse.engine.method.records import ROUTING
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.rows import Audited
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.betting_bound import betting_lower_bound

AUDIT_ROWS = 128  # of output errors and bounds
BODY_ROWS = 1_024
SAMPLED_ROWS = 8
SABOTAGED = 0.2
AUDITED = ("mean_error", "max_error", "bound_paper", "bound_tight", "violations", "rows", "executed_error")


def measure(
    loaded: LoadedModel, planned: Planned, config: RouterConfig, profile: LatencyProfile
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The window's row, and one row per unit."""
    started = time.perf_counter()
    of = loaded.model.config
    segments = -(-planned.window.tokens // config.segment_tokens)
    units = of.num_hidden_layers * of.num_attention_heads * segments
    auditor = UnitAuditor(errors=planned.part == "A", units=units)  # alpha and e are fitted on fold A
    session = RoutingSession(config, profile=profile, auditor=auditor, salt=planned.window.sha256)
    prefill(loaded, planned.window.token_ids, session)
    run = session.trace.record().run
    window = {
        "density": run.density,
        "profile": profile.name,
        "dtype": loaded.dtype,
        "revision": loaded.revision,
        "config": config.digest(),
        "seconds": time.perf_counter() - started,
    }
    return window, auditor.rows


class UnitAuditor(Auditor):
    """Keeps one row per unit for the study, and leaves none in the run's record."""

    def __init__(self, errors: bool, units: int) -> None:
        """errors: the output errors of all candidates are measured too. units: of the whole window."""
        self.rows: list[dict[str, Any]] = []
        self._errors, self._units = errors, units

    def audit(
        self, inputs: AttentionInputs, decision: Decision, settings: LayerSettings, executed: Executed
    ) -> Audited:
        """See ``Auditor.audit``."""
        config, seed = settings.config, settings.seed
        body = body_rows(inputs, decision, seed)
        masses = candidate_masses(inputs, decision, body, config).flatten(0, 1).cpu().double().numpy()
        assert decision.probe is not None
        chose = decision.probe.rows.rows[..., decision.probe.rows.slice_of(ROUTING)]
        reused = candidate_masses(inputs, decision, chose, config).flatten(0, 1).cpu().double().numpy()
        errors = None
        if self._errors:
            some = draw_body_rows(inputs, decision, ERROR_ROWS, seed)
            errors = candidate_errors(inputs, decision, some).flatten(0, 1).numpy()
        audits = {a.head: a for a in audit_units(inputs, decision, AUDIT_ROWS, seed, executed=executed)}
        ladder = _ladder(decision, config)
        of_layer = _layer(decision, ladder, masses.mean(1))
        for unit in range(decision.heads):
            row = _unit(decision, unit, masses[unit], ladder[unit], config) | of_layer
            row |= _others(decision, unit, reused[unit], config, self._units)
            if errors is not None:
                row["disagreement_all"], row["error_all"] = decision.scores.disagreement[unit], errors[unit]
            if unit in audits:
                row |= {name: getattr(audits[unit], name) for name in AUDITED}
                row |= _sampled(inputs, decision, unit, seed)
            self.rows.append(row)
        return Audited()


def _sampled(inputs: AttentionInputs, decision: Decision, unit: int, seed: int) -> dict[str, np.ndarray]:
    """Error and both bounds of a few random rows, relative to the row's output."""
    rows = draw_body_rows(inputs, decision, SAMPLED_ROWS, seed)[0, unit].sort().values
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


def _ladder(decision: Decision, config: RouterConfig) -> np.ndarray:
    """The candidates that step 5 may climb to, of each unit: int64 [U, s], -1 for dense."""
    cost, choice = torch.tensor(decision.scores.kernel_us), torch.tensor(decision.routed.choice)
    following = torch.tensor(next_levels(decision.candidates))
    return levels_above(cost, choice, following, config.max_tests).numpy()


def _unit(
    decision: Decision, unit: int, masses: np.ndarray, ladder: np.ndarray, config: RouterConfig
) -> dict[str, Any]:
    """A unit's choice and statistics; the bound and the truth of its sparse rungs; and of what it read the share of the
    audited rows above each row statement. masses: [P, C] of the audited rows; ladder: int64 [s].
    """
    scores, certified, true = decision.scores, decision.certified, masses.mean(0)
    chosen, first, dense = int(certified.choice[unit]), int(decision.routed.choice[unit]), len(true) - 1
    rows = decision.certificate_mass[unit]
    sparse = ladder[ladder >= 0]
    lower_bound = betting_lower_bound if config.bound == "betting" else bernstein_lower_bound
    of_rungs = np.ascontiguousarray(rows[:, sparse].T)
    found = {
        "layer": decision.layer,
        "segment": decision.segment.index,
        "head": unit,
        "pattern": decision.candidates[chosen].pattern,
        "chosen": chosen,
        "dense": dense,
        "fallback": FALLBACK_KINDS.index(certified.fallback[unit]),
        "entropy": decision.entropy[unit],
        "local_band": decision.local_band[unit],
        "agreement": decision.agreement[unit],
        "lower": certified.lower_mass[unit],
        "mass_all": scores.mass[unit],
        "recent_all": scores.recent_mass[unit],
        "true_all": true,
        "ladder": ladder,
        "rung_lower": lower_bound(of_rungs, 1.0 - config.confidence) if len(sparse) else np.empty(0),
        "rung_true": true[sparse],
    }
    statements = [("first_row", first, config.confidence)]
    if chosen != dense:
        statements += [("row_q", chosen, config.confidence), ("row_s", chosen, config.row_level)]
        found["bernstein"] = bernstein_lower_bound(rows[:, chosen], 1.0 - config.confidence)
    for name, read, level in statements:
        if read != dense:
            found[f"{name}_covered"] = (masses[:, read] >= row_lower_bound(rows[:, read], level)).mean()
    return found


def _others(
    decision: Decision, unit: int, reused: np.ndarray, config: RouterConfig, units: int
) -> dict[str, Any]:
    """Bounds of a sparse unit's mass beside its own: jointly with all of the window, and two sabotaged ones."""
    chosen, error = int(decision.certified.choice[unit]), 1.0 - config.confidence
    if chosen == len(decision.candidates) - 1:
        return {}
    rows = decision.certificate_mass[unit][:, chosen]
    return {
        "lower_joint": betting_lower_bound(rows, error / units),
        "lower_sabotaged": betting_lower_bound(rows, SABOTAGED),
        "lower_reused": betting_lower_bound(np.ascontiguousarray(reused[:, chosen]), error),
    }


def _layer(decision: Decision, ladder: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """The layer's certificate beside the truth, the same for each of its units: ladder [U, s], true [U, C].

    layer_true: mean over heads as they ran; layer_rung_true: with every head at a rung.
    """
    layer = decision.certified.layer
    assert layer is not None
    at_rung = np.where(ladder >= 0, np.take_along_axis(true, ladder.clip(0), 1), 1.0)
    return {
        "layer_lower": layer.lower_mass[0],
        "layer_rung": int(layer.rung[0]),
        "layer_bounds": layer.bounds[0],
        "layer_rung_true": at_rung.mean(0),
        "layer_true": true[np.arange(len(true)), decision.certified.choice].mean(),
    }
