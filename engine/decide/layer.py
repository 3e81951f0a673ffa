"""The six steps of the paper's table, in order, for one layer and one prompt segment (section 3.4).

``compute`` and ``route_by_tensors`` show steps 1 to 5, ``plan_of`` the first half of step 6; ``execute``
(method/attend.py) is its second half. Everything between the queries and the row plan is tensor operations on the
inputs' device; on a GPU nothing in it waits for the host to read a value.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import torch

from routesparse.engine.decide import unit_route
from routesparse.engine.decide.candidate_scores import by_unit, score_candidates
from routesparse.engine.decide.decision import Computed, Decision, Pending, packed_decision
from routesparse.engine.decide.heatmap import draw
from routesparse.engine.decide.settings import LayerSettings
from routesparse.engine.device import device_path
from routesparse.engine.device.constants import to_device
from routesparse.engine.device.copies import Packed, Readout
from routesparse.engine.device.graphs import Graphs, beside
from routesparse.engine.device.timing import Stamps
from routesparse.engine.errors import ConfigError
from routesparse.engine.method import fallback, router_device
from routesparse.engine.method.descriptors import Descriptors, describe
from routesparse.engine.method.families import build_indices, build_unprobed
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.method.patterns import library
from routesparse.engine.method.probe import Probe, run_probe
from routesparse.engine.method.probe_rows import CERTIFICATE, draw_shares, place_rows
from routesparse.engine.method.retained_mass import Coverage, cover
from routesparse.engine.method.row_plan import head_density, lower
from routesparse.engine.method.segments import Segment
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.interface import RowPlan


def compute(
    inputs: AttentionInputs,
    segment: Segment,
    draws: torch.Tensor,
    settings: LayerSettings,
    kernel_limit_us: float | None,
) -> Computed:
    """Steps 1 to 5 on the device; draws float64 [B, H, R + C] place the rows (probe_rows.draw_shares).

    kernel_limit_us: what the attention of this segment may cost, None without a limit.
    """
    config, gate, profile = settings.config, settings.gate_threshold, settings.profile
    stamps = Stamps(inputs.q.device, laps=3)

    # 1. The shared probe. In a graph the indices that need no probe are built beside it: its lap holds their time too.
    rows = place_rows(segment, config, draws, inputs.first_keys())
    candidates = library(segment)
    with beside(inputs.q.device) as joined:
        unprobed = build_unprobed(inputs, segment, candidates)
    probe = run_probe(inputs, segment, rows, config)
    stamps.lap()

    # 2. Candidate indices, retained mass and uncertainty.
    joined()
    indices = build_indices(inputs, segment, probe, candidates, unprobed)
    covered = cover(inputs, segment, probe, indices, candidates)
    described = describe(probe, segment)
    stamps.lap()

    # 3. to 5. on units: by one kernel where it knows the setting, else by tensor operations.
    if device_path.fused(inputs.q) and unit_route.takes(config, kernel_limit_us, settings.predictor):
        choice, packed = unit_route.route(
            segment, rows, covered, described, probe.finite, config, gate, profile, stamps.laps
        )
        stamps.lap()
        stamps.elapsed_us(packed.part("laps_us"))
    else:
        choice, packed = route_by_tensors(
            segment, probe, covered, described, settings, kernel_limit_us, stamps
        )
    drawing = draw(probe, segment, indices)
    if not device_path.fused(inputs.q):
        return Computed(candidates, choice, packed, probe, indices, drawing, plan=None, density=None)
    plan = lower(segment, indices, candidates, choice, inputs.key_start, inputs.softcap, inputs.sinks)
    return Computed(candidates, choice, packed, probe, indices, drawing, plan, head_density(plan))


def route_by_tensors(
    segment: Segment,
    probe: Probe,
    covered: Coverage,
    described: Descriptors,
    settings: LayerSettings,
    kernel_limit_us: float | None,
    stamps: Stamps,
) -> tuple[torch.Tensor, Packed]:
    """Steps 3 to 5: the final candidates int64 [B, H], and what the record keeps. Ends a lap."""
    config, gate = settings.config, settings.gate_threshold

    # 3. Retained mass, uncertainty and profiled latency of each candidate.
    scores = score_candidates(segment, probe, covered, described, settings)
    kernel_us = scores.kernel_us

    # 4. Eq. 6 under the layer's limit.
    risk = scores.risk(config.alpha, config.beta)
    routed = router_device.choose(scores.gate, risk, kernel_us, config, gate, kernel_limit_us)

    # 5. Expand or fall back where the certificate is below tau.
    certificate_mass = by_unit(covered.row_mass[:, :, probe.rows.slice_of(CERTIFICATE)])
    slack = None
    if kernel_limit_us is not None:
        slack = kernel_limit_us - kernel_us.gather(1, routed.choice.unsqueeze(1)).sum()
    certified = fallback.certify(kernel_us, scores.gate, certificate_mass, routed.choice, config, gate, slack)
    stamps.lap()
    packed = packed_decision(
        scores,
        risk,
        routed,
        certified,
        certificate_mass=certificate_mass,
        entropy=by_unit(described.entropy),
        local_band=by_unit(described.local_band),
        agreement=by_unit(described.agreement),
        finite=probe.finite,
        laps_us=stamps.elapsed_us(),
    )
    return certified.choice.view(described.entropy.shape), packed


def plan_of(decision: Decision | Pending, inputs: AttentionInputs) -> RowPlan:
    """Step 6, first half: the row plan of the decision. ``execute`` (method/attend.py) runs it."""
    if isinstance(decision, Pending) and decision.plan is not None:
        return replace(decision.plan, key_start=inputs.key_start)
    return lower(
        decision.segment,
        decision.indices,
        decision.candidates,
        decision.choice,
        inputs.key_start,
        inputs.softcap,
        inputs.sinks,
    )


def decide(
    inputs: AttentionInputs,
    segment: Segment,
    layer: int,
    settings: LayerSettings,
    limit_us: float | None = None,
) -> Decision:
    """``begin`` and read: the decision on the host. Errors: as ``begin``, and NumericsError for NaN or Inf."""
    return begin(inputs, segment, layer, settings, limit_us).read()


def begin(
    inputs: AttentionInputs,
    segment: Segment,
    layer: int,
    settings: LayerSettings,
    limit_us: float | None = None,
    graphs: Graphs[Computed] | None = None,
) -> Pending:
    """Steps 1 to 5; a GPU may still be at them when this returns.

    limit_us: this segment's share of T_l, the probe's cost included; None without a limit. graphs: where a GPU keeps
    what it captured; the probe and the indices are then good until the next call of the same shape.
    Errors: ConfigError where the limit is below the probe's own cost; on a CPU NumericsError for NaN or Inf, which
    on a GPU comes with ``Pending.read``.
    """
    config = settings.config
    batch, heads = inputs.q.shape[:2]
    planned_probe_us = settings.profile.probe_us(segment, heads) * batch
    if limit_us is not None and limit_us <= planned_probe_us:
        raise ConfigError(
            f"the budget leaves {limit_us:.0f} us for segment {segment.index} of a layer, below the probe's "
            f"{planned_probe_us:.0f} us; raise the budget"
        )
    kernel_limit_us = None if limit_us is None else limit_us - planned_probe_us
    draws = draw_shares(batch, heads, config, stable_seed(settings.seed, layer, segment.index))
    # A graph's kernels take the addresses in its table for multiples of 16.
    aligned = all(x.data_ptr() % 16 == 0 for x in (inputs.q, inputs.k))
    replayable = inputs.q.is_cuda and aligned and inputs.sinks is None and config.probe == "exact"
    if graphs is not None and replayable:
        computed = graphs.run(
            _graph_key(inputs, segment, settings, kernel_limit_us),
            inputs,
            draws,
            lambda inputs, draws: compute(inputs, segment, draws, settings, kernel_limit_us),
        )
    else:
        computed = compute(inputs, segment, to_device(draws, inputs.q.device), settings, kernel_limit_us)
    return Pending(
        layer=layer,
        segment=segment,
        batch=batch,
        heads=heads,
        candidates=computed.candidates,
        gate=settings.gate_threshold,
        tau=config.tau,
        limit_us=limit_us,
        planned_probe_us=planned_probe_us,
        choice=computed.choice,
        readout=Readout(computed.packed),
        heatmaps=computed.drawing.leave(),
        plan=computed.plan,
        density=computed.density,
        probe=computed.probe,
        indices=computed.indices,
    )


def _graph_key(
    inputs: AttentionInputs, segment: Segment, settings: LayerSettings, kernel_limit_us: float | None
) -> Hashable:
    """Everything that ``compute`` depends on but the draws, through which the seed and the segment's index enter."""
    costs = tuple(settings.profile.costs.values())
    decided_by = (
        replace(segment, index=0),
        replace(settings.config, seed=0),
        settings.gate_threshold,
        costs,
        kernel_limit_us,
        id(settings.predictor),
    )
    return decided_by, (inputs.scale, inputs.softcap, inputs.key_start is None)
