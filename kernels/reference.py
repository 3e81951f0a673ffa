"""The oracle: attention as the formula says it (paper, equation 1), in float32 or float64, with every logit in memory.

    logit[p, j] = scale * q_p . k_j;  with a soft cap, softcap * tanh(logit / softcap)
    lse[p] = log(sum over kept j of exp(logit[p, j]) + exp(sink))
    out[p] = sum over kept j of exp(logit[p, j] - lse[p]) v_j

Slow on purpose; tests compare every backend with it.
"""

from __future__ import annotations

import torch

from routesparse.kernels.plan import RowPlan


def masked_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, n_q, D] and lse [B, Hq, n_q], both in ``dtype``; a row without keys gives 0 and -inf.

    q [B, Hq, n_q, D]; k, v [B, Hkv, n_k, D]; mask bool, broadcastable to [B, Hq, n_q, n_k]; sinks [Hq].
    """
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    kv_head = torch.arange(q.shape[1], device=q.device) * k.shape[1] // q.shape[1]
    logits = q @ k[:, kv_head].mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits.masked_fill(~mask, -torch.inf)
    lse = logits.logsumexp(-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.to(dtype)[:, None].expand_as(lse))
    # -inf - -inf would be NaN in a row without keys.
    weights = torch.exp(logits - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    return weights @ v[:, kv_head], lse


def plan_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: RowPlan,
    scale: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``sparse_attention`` computes, by the plan's mask."""
    return masked_attention(q, k, v, plan.to_mask(), scale, plan.softcap, plan.sinks, dtype)
