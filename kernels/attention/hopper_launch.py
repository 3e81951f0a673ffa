"""Launches ``hopper_kernel``, which uses Hopper's own instructions, and says what that kernel can compute."""

from __future__ import annotations

import math

import torch

from routesparse.kernels import common
from routesparse.kernels.attention.operands import LENGTHS, Operands, descriptor_strides
from routesparse.kernels.common import gpu_of
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

    q = operands.q
    box = gl.NVMMASharedLayout(128, 16, rank=4)

    def described(tensor: torch.Tensor) -> TensorDescriptor:
        return TensorDescriptor(tensor, list(tensor.shape), descriptor_strides(tensor), [1, 1, 64, 64], box)

    programs = torch.cuda.get_device_properties(gpu_of(q)).multi_processor_count
    common.launch(
        hopper_attention_kernel,
        (min(operands.order.numel(), programs),),
        operands.arguments(),
        settings(q.shape[3]),
        lengths=LENGTHS,
        q_desc=described(q),
        k_desc=described(operands.k),
        v_desc=described(operands.v),
        out_desc=described(operands.out),
        counter=torch.zeros(1, dtype=torch.int32, device=q.device),
        rows=operands.order.numel(),
        scale_log2=operands.scale * math.log2(math.e),
        num_warps=4,
    )
