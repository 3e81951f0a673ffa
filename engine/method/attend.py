"""Step 6 (paper section 3.4): lower the chosen candidates to one row plan and run attention by it.

And plain dense attention, where nothing is routed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from routesparse.engine.device.constants import constant
from routesparse.engine.device.inputs import AttentionInputs, first_real_keys
from routesparse.engine.method.families import candidate_table, family_maps
from routesparse.engine.method.records import Context, FamilyIndex
from routesparse.kernels import lower_plan
from routesparse.kernels.interface import RowPlan, sparse_attention

MASKED_DENSE_LIMIT = 1 << 22  # rows x keys up to which dense attention may materialise its mask


def lower(context: Context, indices: Mapping[str, FamilyIndex], choice: torch.Tensor | np.ndarray) -> RowPlan:
    """The row plan of one segment: choice int [B, H] holds candidate indices. Tail rows and dense heads are dense.

    Returns a RowPlan with n_q = segment.rows and n_k = segment.keys; on a GPU without reading the choice. A family
    without an index (a baseline has one family) is never chosen.
    """
    inputs = context.inputs
    choice = torch.as_tensor(choice, device=inputs.q.device).long()
    return lower_plan.lower_levels(
        choice,
        constant(candidate_table(context.candidates, indices), choice.device),
        family_maps(indices, partial=True),
        context.geometry,
        key_start=inputs.key_start,
        softcap=inputs.softcap,
        sinks=inputs.sinks,
    )


def joined(plans: Sequence[RowPlan]) -> RowPlan:
    """The plan of one launch for all segments of a call; a single plan as it is. Errors: as ``RowPlan.concat``."""
    return plans[0] if len(plans) == 1 else RowPlan.concat(plans)


def head_density(plan: RowPlan) -> torch.Tensor:
    """plan.head_density() of a lowered plan from its counts alone: float64 [B, H]; no host sync."""
    return lower_plan.head_density(first_real_keys(plan.key_start, plan.batch, plan.device), plan)


def execute(
    inputs: AttentionInputs, plan: RowPlan, launch: str, choices: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the plan: the output [B, H, n_q, D], and whether it is finite, a bool scalar on the device.

    launch: "fused" runs all heads in one launch. The ablations run one launch per (pattern, budget) group ("grouped")
    or one per head ("per_head"), and read choices, each segment's candidates int64 [B, H], on the host.
    """
    q, k, v = inputs.q, inputs.k, inputs.v
    if launch == "fused":
        out, lse = sparse_attention(q, k, v, plan, inputs.scale)
        return out, _finite(inputs, lse)
    heads = q.shape[1]
    rows = [row for choice in choices for row in choice.tolist()]
    groups: dict[object, list[int]] = {}
    for h in range(heads):
        groups.setdefault(tuple(row[h] for row in rows) if launch == "grouped" else h, []).append(h)
    out = torch.empty_like(q)
    for members in groups.values():
        kv = [h // inputs.groups for h in members]
        out[:, members] = sparse_attention(
            q[:, members], k[:, kv], v[:, kv], plan.select_heads(members), inputs.scale
        )[0]
    return out, torch.isfinite(out).all()


def _finite(inputs: AttentionInputs, lse: torch.Tensor) -> torch.Tensor:
    """Whether an output is finite, without reading it: a mean of values is finite where logits and values are.

    One sum carries every NaN and Inf along: it is finite where it less itself is 0. On an H200 each of the small steps
    that this replaces takes 2 to 3 us between a layer's kernels.
    """
    if inputs.key_start is not None:
        # The log-sum-exp of a padding row is -inf by right.
        positions = torch.arange(inputs.k.shape[2] - inputs.q.shape[2], inputs.k.shape[2], device=lse.device)
        padding = positions < inputs.first_keys().view(-1, 1, 1)
        lse = lse.masked_fill(padding, 0.0)
    total = lse.sum() + inputs.v.sum(dtype=torch.float32)
    return (total - total) == 0


def dense_attention(inputs: AttentionInputs, window: int | None) -> torch.Tensor:
    """Exact causal attention by the fastest kernel that can express it: [B, H, n_q, D].

    window: each query reads its last ``window`` keys; None reads them all.
    """
    q, k, v = inputs.q, inputs.k, inputs.v
    n_q, n_k = q.shape[2], k.shape[2]
    no_extras = inputs.softcap is None and inputs.sinks is None
    if no_extras and inputs.key_start is None and window is None and (n_q == n_k or n_q == 1):
        return plain_attention(q, k, v, inputs.scale)
    if no_extras and n_q * n_k <= MASKED_DENSE_LIMIT:
        position = torch.arange(n_k - n_q, n_k, device=q.device).view(-1, 1)
        key = torch.arange(n_k, device=q.device)
        mask = (key <= position) & (key >= inputs.first_keys().view(-1, 1, 1, 1))
        if window is not None:
            mask = mask & (key > position - window)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=inputs.scale, enable_gqa=inputs.groups > 1
        )
        return out.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    plan = RowPlan.dense(len(q), q.shape[1], n_q, n_k, device=q.device)
    plan = replace(
        plan, key_start=inputs.key_start, window=window, softcap=inputs.softcap, sinks=inputs.sinks
    )
    return sparse_attention(q, k, v, plan, inputs.scale)[0]


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Causal attention without padding of a whole prompt, or of one query over all keys; scale None: d^-1/2."""
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=q.shape[2] > 1, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
