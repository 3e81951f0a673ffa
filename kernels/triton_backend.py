"""The contract on Triton: one launch for all heads, block lists first, then gathered single columns.

The launch grid depends on shapes only; programs take the rows from a device permutation, longest first, so
nothing synchronises with the host. Triton is imported when the first attention runs, never before.
"""

from __future__ import annotations

import math

import torch

from routesparse.kernels.interface import RowPlan

# Bytes of one padded head vector; larger tiles do not fit the shared memory of any GPU.
_MAX_HEAD_BYTES = 512


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RowPlan, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, n_q, D] in q's dtype and lse [B, Hq, n_q] float32; see ``sparse_attention``.

    Raises ValueError for tensors that are not on CUDA (unless Triton interprets), a plan on another device,
    float64, head sizes above 256 (128 in float32) and block sizes that are no powers of two of at least 16.
    """
    import triton

    interpreted = bool(triton.knobs.runtime.interpret)
    _check_supported(q, plan, interpreted)
    from routesparse.kernels.triton_kernel import sparse_attention_kernel

    heads, n_q, head_size = q.shape[1:]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    blocks, columns = _rows_of(plan.blocks), _rows_of(plan.columns)
    head_padded = max(16, triton.next_power_of_2(head_size))
    # A soft cap is a tanh, which the kernel takes from a sigmoid of twice the argument.
    scale_log2 = scale * math.log2(math.e) if plan.softcap is None else 2.0 * scale / plan.softcap
    order = row_order(plan)
    absent = plan.block_count
    sparse_attention_kernel[(order.numel(),)](
        q,
        k,
        v,
        out,
        lse,
        order,
        blocks,
        plan.block_count.contiguous(),
        columns,
        plan.column_count.contiguous(),
        # Triton reads a bool tensor as bytes.
        plan.dense_rows.contiguous().view(torch.uint8),
        absent if plan.key_start is None else plan.key_start.contiguous(),
        absent if plan.sinks is None else plan.sinks.detach().float().contiguous(),
        *q.stride(),
        *k.stride(),
        *v.stride(),
        blocks.stride(0),
        columns.stride(0),
        heads,
        heads // k.shape[1],
        plan.query_blocks,
        n_q,
        plan.n_k,
        plan.window or 0,
        scale_log2,
        (plan.softcap or 0.0) * math.log2(math.e),
        BLOCK_Q=plan.block_q,
        BLOCK_K=plan.block_k,
        HEAD=head_size,
        HEAD_PADDED=head_padded,
        COLUMNS=columns.shape[1] > 0,
        KEY_START=plan.key_start is not None,
        WINDOW=plan.window is not None,
        SOFTCAP=plan.softcap is not None,
        SINKS=plan.sinks is not None,
        # The interpreter's bf16 matrix product is silently wrong.
        UPCAST=interpreted,
        PRECISION="ieee" if q.dtype == torch.float32 or interpreted else "tf32",
        num_warps=8 if plan.block_q >= 128 else 4,
        # Two stages of larger tiles would not fit the shared memory of an A100.
        num_stages=2 if head_padded * q.element_size() <= 256 else 1,
    )
    return out, lse


def row_order(plan: RowPlan) -> torch.Tensor:
    """The plan's rows, counted over [B, H, M], with the most tiles first, int32 [B * H * M]; no host sync."""
    _, last = plan.query_positions()
    column_tiles = (plan.column_count + (plan.block_k - 1)) // plan.block_k
    tiles = torch.where(plan.dense_rows, last // plan.block_k + 1, plan.block_count + column_tiles)
    return tiles.flatten().argsort(descending=True).int()


def _rows_of(lists: torch.Tensor) -> torch.Tensor:
    """Lists [B, H, M, capacity] as [B * H * M, capacity] with unit stride inside a row; a view if it can be."""
    rows = lists.flatten(0, 2)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _check_supported(q: torch.Tensor, plan: RowPlan, interpreted: bool) -> None:
    if not q.is_cuda and not interpreted:
        raise ValueError(
            f'backend "triton" got tensors on {q.device}; pass CUDA tensors or backend="torch" '
            "(or set TRITON_INTERPRET=1 before Python starts, for tests)"
        )
    if plan.device != q.device:
        raise ValueError(f"the plan lies on {plan.device}, the tensors on {q.device}; use plan.to(device)")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f'backend "triton" got {q.dtype}; pass float16, bfloat16 or float32, or use "torch"')
    if q.shape[-1] * q.element_size() > _MAX_HEAD_BYTES:
        raise ValueError(
            f"head size {q.shape[-1]} in {q.dtype} is above {_MAX_HEAD_BYTES // q.element_size()}; "
            'pass float16 or bfloat16 up to 256, or use backend="torch"'
        )
    for name, size in (("block_q", plan.block_q), ("block_k", plan.block_k)):
        if size < 16 or size & (size - 1):
            raise ValueError(f"{name} {size}: Triton tiles are powers of two of at least 16")
