"""The six steps of the paper's table, in order, for one layer and one prompt segment (section 3.4).

``compute`` shows steps 1 to 5 and the first half of step 6, the row plan; ``execute`` (method/attend.py) runs the plan.
Everything between the queries and the row plan is tensor operations on the inputs' device, one code path for CPU and
GPU; on a GPU nothing in it waits for the host to read a value. The record leaves in one asynchronous copy and is read
when the prompt has ended. That includes NaN and Inf: the error is raised after the prefill, and nothing is recorded.
Whether all is finite is read off the log-sum-exp and the sum of v, not off the output.

Where the time goes on an H200 (131,072 tokens, one segment, 32 heads of 128, microseconds): about 2,800 replayed as a
graph. Block scores take 880, block log-sum-exps 485, choosing the rows to be scored 325 (it reads all queries once, at
3.8 TB/s), recent rows 215, masses of candidates 210, levels of scores 190, climb and row plan 115, the description of
KV blocks 90. Vertical-slash (about 200) and the pictures run beside these. Tried without gain: scoring beside the
probe, because either fills the device; on other GPUs, score products twice as wide, or issued one tile ahead.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Computed, Decision, LayerSettings, Pending
from routesparse.engine.decide.heatmap import draw
from routesparse.engine.decide.units import route_units
from routesparse.engine.device.constants import to_device
from routesparse.engine.device.copies import Copies, Readout
from routesparse.engine.device.graphs import Graphs, beside
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.device.timing import Stamps
from routesparse.engine.errors import ConfigError, NumericsError
from routesparse.engine.method.attend import execute, head_density, lower
from routesparse.engine.method.families import build_indices, build_unprobed, library
from routesparse.engine.method.probe import describe, draw_shares, place_rows, run_probe
from routesparse.engine.method.records import Context
from routesparse.engine.method.retained_mass import candidate_mass
from routesparse.engine.method.segments import Segment
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.common import on_gpu
from routesparse.kernels.plan import RowPlan

MOST_COPIED_BYTES = 2**28  # of q, k, v and the output, for which one graph holds a layer


def compute(
    inputs: AttentionInputs,
    segment: Segment,
    draws: torch.Tensor,
    settings: LayerSettings,
    kernel_limit_us: float | None,
) -> Computed:
    """The decision on the device; draws float64 [B, H, R + C] place the rows (probe_rows.draw_shares), and one more
    holds the layer's head floors, where the configuration has some: what a graph is replayed with lies in one tensor.

    kernel_limit_us: what the attention of this segment may cost, None without a limit.
    Errors: NumericsError for NaN or Inf on a CPU; a GPU is not waited for, there ``Pending.read`` raises it.
    """
    stamps = Stamps(inputs.q.device, laps=3)
    floors = None
    if settings.config.head_floors is not None:
        draws, floors = draws[..., :-1].contiguous(), draws[..., -1].float()

    # 1. The shared probe. In a graph the indices that need no probe are built beside it: its lap holds their time too.
    rows = place_rows(segment, settings.config, draws, inputs.first_keys())
    candidates = library(segment)
    context = Context(inputs, segment, candidates, head_floors=floors)
    with beside(inputs.q.device) as joined:
        unprobed = build_unprobed(context)
    probe = run_probe(context, rows, settings.config)
    context = replace(context, probed=probe)
    if not on_gpu(inputs.q) and not probe.finite:
        raise NumericsError("NaN or Inf in the attention scores")
    stamps.lap()

    # 2. Candidate indices, retained mass and uncertainty.
    joined()
    indices = build_indices(context, unprobed)
    # What people look at is drawn beside the rest.
    with beside(inputs.q.device) as drawn:
        pictures = draw(probe, segment, indices)
    masses = candidate_mass(context, indices)
    described = describe(probe)
    stamps.lap()

    # 3. to 5. Price, router and certificate of every unit.
    choice, packed = route_units(context, masses, described, settings, kernel_limit_us, stamps)

    # 6. The row plan.
    plan = lower(context, indices, choice)
    density = head_density(plan)
    drawn()
    return Computed(candidates, choice, packed, probe, indices, pictures, plan, density)


def plan_of(decision: Decision | Pending, inputs: AttentionInputs) -> RowPlan:
    """Step 6, first half: the row plan of the decision. ``execute`` (method/attend.py) runs it."""
    if isinstance(decision, Pending) and decision.plan is not None:
        return replace(decision.plan, key_start=inputs.key_start)
    context = Context(inputs, decision.segment, decision.candidates)
    return lower(context, decision.indices, decision.choice)


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
    graphs: Graphs | None = None,
) -> Pending:
    """Steps 1 to 5; a GPU may still be at them when this returns.

    limit_us: this segment's share of T_l, the probe's cost included; None without a limit. graphs: where a GPU keeps
    what it captured; the probe and the indices are then good until the next call of the same shape.
    Errors: ConfigError where the limit is below the probe's own cost; on a CPU NumericsError for NaN or Inf, which
    on a GPU comes with ``Pending.read``.
    """
    kernel_limit_us = _kernel_limit_us(inputs, segment, settings, limit_us)
    draws = _draws(inputs, segment, layer, settings)
    # A graph's kernels take the addresses in its table for multiples of 16.
    aligned = all(x.data_ptr() % 16 == 0 for x in (inputs.q, inputs.k))
    replayable = inputs.q.is_cuda and aligned and has_a_graph(inputs, settings.config)
    if graphs is not None and replayable:
        computed = graphs.run(
            _graph_key(inputs, segment, settings, kernel_limit_us),
            inputs,
            draws,
            lambda inputs, draws: compute(inputs, segment, draws, settings, kernel_limit_us),
        )
    else:
        computed = compute(inputs, segment, to_device(draws, inputs.q.device), settings, kernel_limit_us)
    return _pending(inputs, segment, layer, settings, limit_us, computed, None)


def is_whole(inputs: AttentionInputs, config: RouterConfig) -> bool:
    """Whether ``attended`` may replay a layer with such inputs: what it copies has to be small."""
    small = inputs.k.nbytes + inputs.v.nbytes + 2 * inputs.q.nbytes <= MOST_COPIED_BYTES
    return small and inputs.q.is_cuda and config.launch == "fused" and has_a_graph(inputs, config)


def attended(
    inputs: AttentionInputs,
    segment: Segment,
    layer: int,
    settings: LayerSettings,
    limit_us: float | None,
    graphs: Graphs,
) -> tuple[torch.Tensor, Pending, Copies]:
    """``begin`` and step 6 as one graph: the output [B, H, n_q, D], and what PendingPass holds.

    Of a short prompt, launching a layer piece by piece takes the host longer than the GPU takes to run it.
    Errors: as ``begin``.
    """
    kernel_limit_us = _kernel_limit_us(inputs, segment, settings, limit_us)

    def whole(inputs: AttentionInputs, draws: torch.Tensor) -> tuple[Computed, tuple[torch.Tensor, ...]]:
        computed = compute(inputs, segment, draws, settings, kernel_limit_us)
        stamps = Stamps(inputs.q.device, laps=1)
        out, finite = execute(inputs, computed.plan, "fused", [computed.choice])
        stamps.lap()
        return computed, (out, finite, stamps.elapsed_us())

    key = "whole", _graph_key(inputs, segment, settings, kernel_limit_us)
    draws = _draws(inputs, segment, layer, settings)
    computed, (out, finite, kernel_us) = graphs.run(key, inputs, draws, whole, copied=True)
    leaving = {"density": computed.density, "finite": finite, "kernel_us": kernel_us}
    copies = Copies({"values": computed.packed.values, **computed.pictures.tensors, **leaving})
    # The next replay writes to the same memory, and a caller may keep an output.
    return out.clone(), _pending(inputs, segment, layer, settings, limit_us, computed, copies), copies


def _kernel_limit_us(
    inputs: AttentionInputs, segment: Segment, settings: LayerSettings, limit_us: float | None
) -> float | None:
    """What a segment's limit leaves for its attention. Errors: ConfigError where that is nothing."""
    if limit_us is None:
        return None
    planned_probe_us = _planned_probe_us(inputs, segment, settings)
    if limit_us <= planned_probe_us:
        raise ConfigError(
            f"the budget leaves {limit_us:.0f} us for segment {segment.index} of a layer, below the probe's "
            f"{planned_probe_us:.0f} us; raise the budget"
        )
    return limit_us - planned_probe_us


def _planned_probe_us(inputs: AttentionInputs, segment: Segment, settings: LayerSettings) -> float:
    return settings.profile.probe_us(segment, inputs.q.shape[1]) * len(inputs.q)


def _draws(inputs: AttentionInputs, segment: Segment, layer: int, settings: LayerSettings) -> torch.Tensor:
    """What ``compute`` takes, on the host, of the heads that are here."""
    batch, heads = inputs.q.shape[:2]
    seed = stable_seed(settings.seed, layer, segment.index)
    draws = draw_shares(batch, settings.all_heads or heads, settings.config, seed)
    draws = with_head_floors(draws, layer, settings.config)
    return draws[:, settings.first_head : settings.first_head + heads].contiguous()


def _pending(
    inputs: AttentionInputs,
    segment: Segment,
    layer: int,
    settings: LayerSettings,
    limit_us: float | None,
    computed: Computed,
    copies: Copies | None,
) -> Pending:
    """copies: of all that leaves the device, if it leaves with the output."""
    return Pending(
        layer=layer,
        segment=segment,
        settings=settings,
        limit_us=limit_us,
        planned_probe_us=_planned_probe_us(inputs, segment, settings),
        candidates=computed.candidates,
        choice=computed.choice,
        readout=Readout(computed.packed, copies),
        heatmaps=computed.pictures.leave(copies),
        plan=computed.plan,
        density=computed.density,
        probe=computed.probe,
        indices=computed.indices,
    )


def with_head_floors(draws: torch.Tensor, layer: int, config: RouterConfig) -> torch.Tensor:
    """Draws [B, H, P] of all heads, and behind them the layer's head floors, if there are any: [B, H, P + 1].

    Errors: ConfigError for floors of another model.
    """
    floors = config.head_floors
    if floors is None:
        return draws
    heads = draws.shape[1]
    if layer >= len(floors) or len(floors[layer]) != heads:
        told = f"{len(floors)} layers of {len(floors[0]) if floors else 0} heads"
        raise ConfigError(f"head_floors are of {told}; layer {layer} here has {heads}: use this model's fit")
    column = torch.tensor(floors[layer], dtype=draws.dtype).view(1, -1, 1).expand(len(draws), -1, -1)
    return torch.cat([draws, column], -1)


def has_a_graph(inputs: AttentionInputs, config: RouterConfig) -> bool:
    """Whether a GPU may replay such a decision as a graph, with q and k found by a table of addresses."""
    return inputs.sinks is None and config.probe == "exact"


def _graph_key(
    inputs: AttentionInputs, segment: Segment, settings: LayerSettings, kernel_limit_us: float | None
) -> Hashable:
    """What ``compute`` depends on but the draws, which hold the seed, the segment's index and head floors."""
    costs = tuple(settings.profile.costs.values())
    decided_by = (
        replace(segment, index=0),
        without_draws(settings.config),
        settings.config.head_floors is None,
        settings.gate_threshold,
        costs,
        kernel_limit_us,
        id(settings.predictor),
    )
    return decided_by, (inputs.scale, inputs.softcap, inputs.key_start is None)


@lru_cache
def without_draws(config: RouterConfig) -> RouterConfig:
    """The same for all layers of a prompt, and slow to make: its fields are checked."""
    return replace(config, seed=0, head_floors=None)
