"""Launches ``hopper_kernel``, which uses Hopper's own instructions, and says what that kernel can compute."""

from __future__ import annotations

import math

import torch

from routesparse.kernels.attention.operands import Operands, descriptor_strides, lists_by_row
from routesparse.kernels.common import gpu_of, variant
from routesparse.kernels.plan import RowPlan


def can_run(q: torch.Tensor, plan: RowPlan) -> bool:
    """Whether the kernel can compute this plan, given that TMA can read q, k and v (``fits_descriptor``)."""
    plain = plan.key_start is None and plan.window is None and plan.softcap is None
    tiles = plan.block_q == 128 and plan.block_k == 64 and q.shape[3] in (64, 128)
    return plain and tiles and torch.cuda.get_device_capability(gpu_of(q))[0] == 9


def settings(head_size: int) -> dict[str, int]:
    """Constants of the kernel: stages that fill the shared memory, and registers per thread.

    A multiprocessor's 65,536 registers serve two consumers and a producer of 128 threads each.
    """
    return {
        "STAGES": 256 // head_size,
        "Q_SLOTS": 2,
        "CONSUMER_REGISTERS": 216,
        "PRODUCER_REGISTERS": 72,
    }


def launch(operands: Operands) -> None:
    """Fill ``out`` and ``lse``; one program per multiprocessor draws rows until none is left."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from routesparse.kernels.attention.hopper_kernel import hopper_attention_kernel

    q, k, v, plan = operands.q, operands.k, operands.v, operands.plan
    heads, n_q, head_size = q.shape[1:]
    blocks, columns = lists_by_row(plan.blocks), lists_by_row(plan.columns)
    box = gl.NVMMASharedLayout(128, 16, rank=4)

    def described(tensor: torch.Tensor) -> TensorDescriptor:
        return TensorDescriptor(tensor, list(tensor.shape), descriptor_strides(tensor), [1, 1, 64, 64], box)

    programs = torch.cuda.get_device_properties(gpu_of(q)).multi_processor_count
    kernel = variant(
        hopper_attention_kernel,
        blocks_stride=blocks.stride(0),
        columns_stride=columns.stride(0),
        query_blocks=plan.query_blocks,
        n_q=n_q,
        n_k=plan.n_k,
        rows=operands.order.numel(),
    )
    kernel[(min(operands.order.numel(), programs),)](
        described(q),
        described(k),
        described(v),
        k,
        v,
        *k.stride()[:3],
        *v.stride()[:3],
        described(operands.out),
        operands.lse,
        torch.zeros(1, dtype=torch.int32, device=q.device),
        operands.order,
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
        operands.order.numel(),
        operands.scale * math.log2(math.e),
        HEAD=head_size,
        COLUMNS=columns.shape[1] > 0,
        SINKS=plan.sinks is not None,
        **settings(head_size),
        num_warps=4,
    )
