"""The six steps of the paper's table, in order, for one layer and one prompt segment (section 3.4).

Everything between the queries and the row plan is tensor operations on the inputs' device, one code path for CPU and
GPU; on a GPU nothing in it waits for the host to read a value. The record leaves in one asynchronous copy and is read
when the prompt has ended. That includes NaN and Inf: the error is raised after the prefill, and nothing is recorded.
Whether all is finite is read off the log-sum-exp and the sum of v, not off the output.

Where the time goes on an H200 (131,072 tokens, one segment, 32 heads, microseconds): 1,790 replayed as a graph, 1,890
launched one by one. Log-sum-exps 496; means of blocks 340 (queries alone 270, at the memory's rate); recent rows and
bands 221; top and sorts of columns 170; scores 134 and their matrix product 58; masses of the probe rows by level 130;
lowering 61; masses of rows 59 and of single columns 56; placing of rows 53; slash map 57; pictures 17; router and
certificate 26. It was 3,930 with some 430 launches. The log-sum-exps fill the multiprocessors, so the means do not run
beside them: a stream of higher priority moved 210 us from one part to the other and changed the whole by nothing (1,785
for 1,778). What is left to try: columns by bins of their mass instead of top-k and sort; slash map and columns as two
branches (57 us).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide import unit_route
from routesparse.engine.decide.decision import Computed, Decision, DeviceScores, Pending, packed_decision
from routesparse.engine.decide.heatmap import draw
from routesparse.engine.device import device_path
from routesparse.engine.device.constants import to_device
from routesparse.engine.device.copies import Packed, Readout
from routesparse.engine.device.graphs import Graphs, beside
from routesparse.engine.device.timing import Stamps
from routesparse.engine.errors import ConfigError
from routesparse.engine.method import descriptors, fallback, router_device
from routesparse.engine.method import retained_mass as coverage
from routesparse.engine.method.families import build_indices, build_unprobed
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.patterns import library
from routesparse.engine.method.predictor import PredictorTables
from routesparse.engine.method.probe import Probe, run_probe
from routesparse.engine.method.probe_rows import CERTIFICATE, RECENT, ROUTING, draw_shares, place_rows
from routesparse.engine.method.row_plan import head_density, lower
from routesparse.engine.method.segments import Segment
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.interface import RowPlan


def decide(
    inputs: AttentionInputs,
    segment: Segment,
    layer: int,
    config: RouterConfig,
    gate: float,
    profile: LatencyProfile,
    limit_us: float | None,
    seed: int | None = None,
    predictor: PredictorTables | None = None,
) -> Decision:
    """``begin`` and read: the decision on the host. Errors: as ``begin``, and NumericsError for NaN or Inf."""
    return begin(inputs, segment, layer, config, gate, profile, limit_us, seed, predictor).read()


def begin(
    inputs: AttentionInputs,
    segment: Segment,
    layer: int,
    config: RouterConfig,
    gate: float,
    profile: LatencyProfile,
    limit_us: float | None,
    seed: int | None = None,
    predictor: PredictorTables | None = None,
    graphs: Graphs[Computed] | None = None,
) -> Pending:
    """Steps 1 to 5. limit_us: this segment's share of T_l, None without a limit. seed: the prompt's (config.seed).
    predictor: gives the predicted error e of every sparse candidate; dense has none. graphs: where a GPU keeps what
    it captured; the probe and the indices are then good until the next call of the same shape.

    Errors: ConfigError where the limit is below the probe's own cost; on a CPU NumericsError for NaN or Inf, which
    on a GPU comes with ``Pending.read``.
    """
    batch, heads = inputs.q.shape[:2]
    planned_probe_us = profile.probe_us(segment, heads) * batch
    if limit_us is not None and limit_us <= planned_probe_us:
        raise ConfigError(
            f"the budget leaves {limit_us:.0f} us for segment {segment.index} of a layer, below the probe's "
            f"{planned_probe_us:.0f} us; raise the budget"
        )
    kernel_limit = None if limit_us is None else limit_us - planned_probe_us
    base = config.seed if seed is None else seed
    draws = draw_shares(batch, heads, config, stable_seed(base, layer, segment.index))

    def function(inputs: AttentionInputs, draws: torch.Tensor) -> Computed:
        return compute(inputs, segment, draws, config, gate, profile, kernel_limit, predictor)

    # A graph's kernels take the addresses in its table for multiples of 16.
    aligned = all(x.data_ptr() % 16 == 0 for x in (inputs.q, inputs.k))
    replayable = inputs.q.is_cuda and aligned and inputs.sinks is None and config.probe == "exact"
    if graphs is not None and replayable:
        costs = tuple(profile.costs.values())
        # The seed enters through the draws.
        own = replace(config, seed=0)
        setting = (replace(segment, index=0), own, gate, costs, kernel_limit, id(predictor))
        shape = (inputs.scale, inputs.softcap, inputs.key_start is None)
        computed = graphs.run((setting, shape), inputs, draws, function)
    else:
        computed = function(inputs, to_device(draws, inputs.q.device))
    return Pending(
        layer=layer,
        segment=segment,
        batch=batch,
        heads=heads,
        candidates=computed.candidates,
        gate=gate,
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


def compute(
    inputs: AttentionInputs,
    segment: Segment,
    draws: torch.Tensor,
    config: RouterConfig,
    gate: float,
    profile: LatencyProfile,
    kernel_limit_us: float | None,
    predictor: PredictorTables | None,
) -> Computed:
    """Steps 1 to 5 on the device; draws float64 [B, H, R + C] place the rows (probe_rows.draw_shares).

    In a graph the indices that need no probe are built beside it, so its lap holds their time too.
    """
    stamps = Stamps(inputs.q.device, laps=3)

    # 1. The shared probe.
    rows = place_rows(segment, config, draws, inputs.first_keys())
    candidates = library(segment)
    with beside(inputs.q.device) as joined:
        unprobed = build_unprobed(inputs, segment, candidates)
    probe = run_probe(inputs, segment, rows, config)
    stamps.lap()

    # 2. Candidate indices, coverage and uncertainty.
    joined()
    indices = build_indices(inputs, segment, probe, candidates, unprobed)
    covered = coverage.cover(inputs, segment, probe, indices, candidates)
    described = descriptors.describe(probe, segment)
    stamps.lap()

    # 3. to 5. on units: by one kernel where it knows the setting, else by tensor operations.
    if device_path.fused(inputs.q) and unit_route.takes(config, kernel_limit_us, predictor):
        choice, packed = unit_route.route(
            segment, rows, covered, described, probe.finite, config, gate, profile, stamps.laps
        )
        stamps.lap()
        stamps.elapsed_us(packed.part("laps_us"))
    else:
        choice, packed = route_by_tensors(
            segment, probe, covered, described, config, gate, profile, kernel_limit_us, predictor, stamps
        )
    drawing = draw(probe, segment, indices)
    if not device_path.fused(inputs.q):
        return Computed(candidates, choice, packed, probe, indices, drawing, plan=None, density=None)
    plan = lower(segment, indices, candidates, choice, inputs.key_start, inputs.softcap, inputs.sinks)
    return Computed(candidates, choice, packed, probe, indices, drawing, plan, head_density(plan))


def route_by_tensors(
    segment: Segment,
    probe: Probe,
    covered: coverage.Coverage,
    described: descriptors.Descriptors,
    config: RouterConfig,
    gate: float,
    profile: LatencyProfile,
    kernel_limit_us: float | None,
    predictor: PredictorTables | None,
    stamps: Stamps,
) -> tuple[torch.Tensor, Packed]:
    """Steps 3 to 5: the final candidates int64 [B, H], and what the record keeps. Ends a lap."""

    # 3. Profiled latency of each candidate.
    def units(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(0, 1).double()

    kernel_us = profile.sparse_us(segment, units(covered.tiles), units(covered.columns))
    kernel_us[:, -1] = profile.dense_us(segment)
    mass, recent_mass = (covered.group_mean(probe, kind) for kind in (ROUTING, RECENT))
    disagreement = covered.disagreement(probe)
    predicted = None
    if predictor is not None:
        gate_mass = torch.minimum(mass, recent_mass)
        predicted = predictor(gate_mass, disagreement, described.entropy.unsqueeze(-1))
        predicted[..., -1] = 0.0
        predicted = units(predicted)
    scores = DeviceScores(
        mass=units(mass),
        recent_mass=units(recent_mass),
        disagreement=units(disagreement),
        density=units(covered.density),
        kernel_us=kernel_us,
        predicted_error=predicted,
    )

    # 4. Eq. 6 under the layer's limit.
    risk = scores.risk(config.alpha, config.beta)
    routed = router_device.choose(scores.gate, risk, kernel_us, config, gate, kernel_limit_us)

    # 5. Expand or fall back where the certificate is below tau.
    certificate_mass = units(covered.row_mass[:, :, probe.rows.slice_of(CERTIFICATE)])
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
        entropy=units(described.entropy),
        local_band=units(described.local_band),
        agreement=units(described.agreement),
        finite=probe.finite,
        laps_us=stamps.elapsed_us(),
    )
    return certified.choice.view(described.entropy.shape), packed


def plan_of(decision: Decision | Pending, inputs: AttentionInputs) -> RowPlan:
    """Step 6, first half: the row plan of the decision; ``sparse_attention`` is the second."""
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
