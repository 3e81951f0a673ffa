"""The contract on Hopper's own instructions: what ``hopper_kernel`` takes, and its launch."""

from __future__ import annotations

import math

import torch

from routesparse.kernels.interface import RowPlan


def can_run(q: torch.Tensor, plan: RowPlan) -> bool:
    """Whether the kernel takes this problem; TMA must be able to read q, k and v (``fits_descriptor``)."""
    plain = plan.key_start is None and plan.window is None and plan.softcap is None
    tiles = plan.block_q == 128 and plan.block_k == 64 and q.shape[3] in (64, 128)
    return plain and tiles and torch.cuda.get_device_capability(q.device)[0] == 9


def settings(head_size: int) -> dict[str, int]:
    """Ring sizes that fill the shared memory, and registers: 65,536 for two consumers and a producer of 128 threads."""
    return {
        "STAGES": 256 // head_size,
        "Q_SLOTS": 2,
        "CONSUMER_REGISTERS": 216,
        "PRODUCER_REGISTERS": 72,
    }


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: RowPlan,
    scale: float,
    order: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Fill out [B, Hq, n_q, D] and lse [B, Hq, n_q] (contiguous); rows in the given order int32 [B * Hq * M]."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from routesparse.kernels.hopper_kernel import hopper_attention_kernel
    from routesparse.kernels.triton_backend import descriptor_strides, lists_by_row

    heads, n_q, head_size = q.shape[1:]
    blocks, columns = lists_by_row(plan.blocks), lists_by_row(plan.columns)
    box = gl.NVMMASharedLayout(128, 16, rank=4)

    def described(tensor: torch.Tensor) -> TensorDescriptor:
        return TensorDescriptor(tensor, list(tensor.shape), descriptor_strides(tensor), [1, 1, 64, 64], box)

    programs = torch.cuda.get_device_properties(q.device).multi_processor_count
    hopper_attention_kernel[(min(order.numel(), programs),)](
        described(q),
        described(k),
        described(v),
        k,
        v,
        *k.stride()[:3],
        *v.stride()[:3],
        described(out),
        lse,
        torch.zeros(1, dtype=torch.int32, device=q.device),
        order,
        blocks,
        plan.block_count.contiguous(),
        columns,
        plan.column_count.contiguous(),
        # Triton reads a bool tensor as bytes.
        plan.dense_rows.contiguous().view(torch.uint8),
        plan.block_count if plan.sinks is None else plan.sinks.detach().float().contiguous(),
        blocks.stride(0),
        columns.stride(0),
        heads,
        heads // k.shape[1],
        plan.query_blocks,
        n_q,
        plan.n_k,
        order.numel(),
        scale * math.log2(math.e),
        HEAD=head_size,
        COLUMNS=columns.shape[1] > 0,
        SINKS=plan.sinks is not None,
        **settings(head_size),
        num_warps=4,
    )
