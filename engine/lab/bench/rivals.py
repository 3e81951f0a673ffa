"""The kernels that RouteSparse is measured against: cuDNN, FlashAttention-2 and FlexAttention, through PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from routesparse.kernels.interface import RowPlan

DENSE = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}


def dense(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention by one SDPA backend and no other; RuntimeError where it cannot run."""
    with sdpa_kernel(DENSE[name]):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def flex(plan: RowPlan, block_tokens: int) -> Callable[..., torch.Tensor]:
    """FlexAttention compiled for the blocks of a plan whose mask was drawn in blocks of ``block_tokens`` keys."""
    compiled = torch.compile(flex_attention, dynamic=False)
    mask = _block_mask(plan, block_tokens)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

    return run


def _block_mask(plan: RowPlan, block_tokens: int) -> BlockMask:
    """The plan's lists in FlexAttention's form: full blocks before the diagonal, and the diagonal with a predicate."""
    ratio = block_tokens // plan.block_k
    width = -(-plan.n_k // block_tokens)
    listed = torch.zeros((*plan.block_count.shape, width + 1), dtype=torch.bool, device=plan.device)
    live = torch.arange(plan.blocks.shape[-1], device=plan.device) < plan.block_count[..., None]
    listed.scatter_(-1, torch.where(live, plan.blocks // ratio, width).long(), True)
    listed = listed[..., :-1]
    first, _ = plan.query_positions()
    below = (torch.arange(width, device=plan.device) + 1) * block_tokens <= first[:, None]

    def listing(kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = kept.to(torch.int8).argsort(stable=True, dim=-1, descending=True)
        return kept.sum(-1, dtype=torch.int32), order.int()

    def causal(b, h, q_index, kv_index):
        return q_index >= kv_index

    return BlockMask.from_kv_blocks(
        *listing(listed & ~below),
        *listing(listed & below),
        BLOCK_SIZE=(plan.block_q, block_tokens),
        mask_mod=causal,
        compute_q_blocks=False,
    )
