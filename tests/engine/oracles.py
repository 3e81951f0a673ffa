"""Slow, readable twins of the core: float64, every softmax materialised. Handed to tests by the ``oracle`` fixture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.families import build_indices, library
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.probe import draw_rows, run_probe
from routesparse.engine.method.records import Context
from routesparse.engine.method.segments import split
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.interface import RowPlan

# The tensors are small: threads would cost more than they bring, and far more on busy cores.
torch.set_num_threads(1)

# A small grid keeps [n, n] small; phases and ragged ends are as at full size.
SMALL = RouterConfig(
    block_q=32,
    block_k=16,
    segment_tokens=2_048,
    tail_tokens=32,
    recent_rows=24,
    routing_rows=16,
    certificate_rows=32,
    boundary_rows=8,
    break_even_tokens=0,
)

# Hand-written, so that no test measures time: a sparse tile costs 1 us, a dense one 1.2 us, the probe next to nothing.
PROFILE = LatencyProfile(
    name="synthetic",
    device="none",
    backend="torch",
    dtype="float32",
    head_dim=16,
    groups=2,
    threads=0,
    block_q=32,
    block_k=16,
    row_us=0.5,
    tile_us=1.0,
    column_us=0.05,
    dense_row_us=0.0,
    dense_tile_us=1.2,
    probe_base_us=1.0,
    probe_head_us=0.0,
    probe_key_us=0.0,
    median_error=0.0,
)


def draw_inputs(
    seed: int = 0,
    *,
    batch: int = 1,
    heads: int = 4,
    kv_heads: int = 2,
    n_q: int = 700,
    n_k: int | None = None,
    head_dim: int = 16,
    sharpness: float = 2.0,
    key_start: list[int] | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    dtype: torch.dtype = torch.float32,
) -> AttentionInputs:
    """Random inputs with structure: a sink, slow drift along positions (so blocks differ) and a few heavy keys."""
    g = torch.Generator().manual_seed(seed)
    n_k = n_q if n_k is None else n_k

    def draw(count: int, rows: int) -> torch.Tensor:
        return torch.randn(batch, count, rows, head_dim, generator=g, dtype=torch.float64)

    q, k, v = draw(heads, n_q), draw(kv_heads, n_k), draw(kv_heads, n_k)
    angle = torch.arange(n_k, dtype=torch.float64) / 90.0
    drift = torch.stack([angle.cos(), angle.sin()], -1) * sharpness
    k[..., :2] += drift
    q[..., :2] += drift[n_k - n_q :]
    heavy = torch.randint(0, n_k, (6,), generator=g)
    k[:, :, heavy, 2] += 2.0 * sharpness
    k[:, :, 0, 2] += 2.0 * sharpness
    q[..., 2] += 1.0
    start = None if key_start is None else torch.tensor(key_start, dtype=torch.int32)
    sink = torch.randn(heads, generator=g).to(dtype) if sinks else None
    return AttentionInputs(q.to(dtype), k.to(dtype), v.to(dtype), head_dim**-0.5, start, softcap, sink)


def visible(inputs: AttentionInputs) -> torch.Tensor:
    """bool [B, 1, n_q, n_k]: causal, bottom-right aligned, padding hidden."""
    n_q, n_k = inputs.q.shape[2], inputs.k.shape[2]
    query = torch.arange(n_k - n_q, n_k).view(-1, 1)
    key = torch.arange(n_k)
    return (key <= query) & (key >= inputs.first_keys().view(-1, 1, 1, 1))


def softmax(inputs: AttentionInputs, rows: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights float64 [B, H, n_q, n_k], mass of the attention sink [B, H, n_q]); padding rows are 0.

    rows int64 [P]: only these rows of the chunk.
    """
    k = inputs.k.double().repeat_interleave(inputs.groups, 1)
    rows = torch.arange(inputs.q.shape[2]) if rows is None else rows
    logits = inputs.q[:, :, rows].double() @ k.mT * inputs.scale
    if inputs.softcap:
        logits = inputs.softcap * torch.tanh(logits / inputs.softcap)
    logits = logits.masked_fill(~visible(inputs)[:, :, rows], -torch.inf)
    heads = inputs.q.shape[1]
    sink = torch.full((heads,), -torch.inf, dtype=torch.float64)
    if inputs.sinks is not None:
        sink = inputs.sinks.double()
    extra = sink.view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
    weights = torch.cat([logits, extra], -1).softmax(-1).nan_to_num(0.0)
    return weights[..., :-1], weights[..., -1]


def attention(inputs: AttentionInputs, mask: torch.Tensor | None = None) -> torch.Tensor:
    """float64 [B, H, n_q, D]; mask bool [B, H, n_q, n_k], renormalised over what it keeps."""
    weights, sink = softmax(inputs)
    if mask is not None:
        weights = weights * mask
        weights = weights / (weights.sum(-1) + sink).clamp_min(1e-300).unsqueeze(-1)
    return weights @ inputs.v.double().repeat_interleave(inputs.groups, 1)


def step_one_and_two(inputs: AttentionInputs, config: RouterConfig = SMALL, segment=None, layer: int = 0):
    """(segment, rows, probe, candidates, indices) of one segment; the last of the chunk where none is given."""
    if segment is None:
        segment = split(inputs.q.shape[2], inputs.k.shape[2], config)[-1]
    batch, heads = inputs.q.shape[:2]
    seed = stable_seed(config.seed, layer, segment.index)
    rows = draw_rows(segment, batch, heads, config, seed, inputs.first_keys())
    context = Context(inputs, segment, library(segment))
    context = replace(context, probed=run_probe(context, rows, config))
    return segment, rows, context.probe, context.candidates, build_indices(context)


def at_rows(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """values [B, H, n, X] at rows int64 [B, H, P] -> [B, H, P, X]."""
    return values.gather(2, rows.unsqueeze(-1).expand(-1, -1, -1, values.shape[-1]))


def block_sums(weights: torch.Tensor, block: int) -> torch.Tensor:
    """[..., K] -> [..., ceil(K / block)]."""
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[-1] % block))
    return padded.unflatten(-1, (-1, block)).sum(-1)


def plan_of_candidate(inputs: AttentionInputs, segment, candidates, indices, place: int) -> RowPlan:
    """The row plan that every unit gets when all choose one candidate; neither the tail nor a crowded row is dense."""
    candidate, shape = candidates[place], inputs.q.shape[:2]
    blocks = (*shape, segment.query_blocks, segment.key_blocks)
    mask, columns, count = torch.zeros(blocks, dtype=torch.bool), None, None
    if candidate.pattern in indices:
        index = indices[candidate.pattern]
        mask = (index.levels <= candidate.level).expand(blocks)
        if index.columns is not None:
            columns, count = index.columns, torch.full(shape, index.column_counts[candidate.level])
    return RowPlan.from_block_mask(
        mask,
        n_q=segment.rows,
        n_k=segment.keys,
        block_q=segment.block_q,
        block_k=segment.block_k,
        columns=columns,
        column_count=count,
        dense_rows=torch.full(blocks[:3], candidate.pattern == "dense"),
        key_start=inputs.key_start,
        softcap=inputs.softcap,
        sinks=inputs.sinks,
    )


def random_scores(seed: int, units: int = 8, width: int = 9):
    """A router instance with nested budgets: more cost, more mass; dense last with mass 1."""
    from routesparse.engine.method.router import Scores

    g = np.random.default_rng(seed)
    cost = np.sort(g.uniform(5, 100, (units, width)), 1)
    mass = np.sort(g.beta(6, 1, (units, width)), 1)
    recent = np.clip(mass + g.normal(0, 0.02, mass.shape), 0, 1)
    cost[:, -1], mass[:, -1], recent[:, -1] = 120.0, 1.0, 1.0
    u = g.uniform(0, 0.05, mass.shape)
    u[:, -1] = 0.0
    return Scores(mass, recent, u, cost / 120.0, cost)


def solve_exact(risk: np.ndarray, cost: np.ndarray, limit: float) -> np.ndarray:
    """The optimum of eq. 6 by integer programming (scipy, HiGHS)."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import eye, kron

    count, width = risk.shape
    one_each = LinearConstraint(kron(eye(count), np.ones((1, width))), 1, 1)
    within = LinearConstraint(cost.reshape(1, -1), -np.inf, limit)
    whole = np.ones(risk.size)
    result = milp(risk.ravel(), constraints=[one_each, within], integrality=whole, bounds=Bounds(0, 1))
    return result.x.reshape(count, width).argmax(1)
