"""The contract on Triton: one launch for all heads, block lists first, then gathered single columns.

Three kernels share it, chosen by compute capability and by what the tensors allow, never by a device's name:
``hopper_kernel`` (capability 9, head sizes 64 and 128, 16-bit), and ``triton_kernel`` with TMA descriptors or with
pointers, of which the first attention of a kind in a process measures the faster. Scales must be positive. Nothing
else synchronises with the host: the launch grid depends on shapes only, and programs take the rows from a device
permutation. Triton is imported when the first attention runs, never before.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from routesparse.kernels.interface import RowPlan
from routesparse.kernels.triton_choice import Config, fastest

# How tiles reach the multiprocessor: through producer warps (Hopper), by TMA descriptors, or by pointers.
Loads = Literal["producer", "descriptor", "pointer"]

ORDER_STEPS = 256
ORDER_ROWS_AT_ONCE = 1_024

# Bytes of one padded head vector; larger tiles do not fit the shared memory of any GPU.
_MAX_HEAD_BYTES = 512


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: RowPlan,
    scale: float,
    loads: Loads | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, n_q, D] in q's dtype and lse [B, Hq, n_q] float32; see ``sparse_attention``.

    ``loads`` asks for one kernel (ablations, tests); by default the best that can run.

    Raises ValueError for tensors that are not on CUDA (unless Triton interprets), a plan on another device,
    float64, head sizes above 256 (128 in float32), block sizes that are no powers of two of at least 16, a
    scale that is not positive, and ``loads`` that these tensors or this device do not have.
    """
    import triton

    interpreted = bool(triton.knobs.runtime.interpret)
    _check_supported(q, plan, scale, interpreted)
    possible = possible_loads(q, k, v, plan, interpreted)
    if loads is not None and loads not in possible:
        raise ValueError(f"loads {loads!r} are not possible here; pass one of {', '.join(possible)}")

    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    order = row_order(plan, q.shape[1] // k.shape[1])
    if loads == "producer" or (loads is None and possible[0] == "producer"):
        from routesparse.kernels.hopper_backend import launch

        launch(q, k, v, plan, scale, order, out, lse)
        return out, lse

    def run(config: Config) -> None:
        _launch(q, k, v, plan, scale, order, out, lse, config, interpreted)

    # Two stages of larger tiles would not fit the shared memory of an A100.
    stages = 2 if triton.next_power_of_2(q.shape[3]) * q.element_size() <= 256 else 1
    warps = 8 if plan.block_q >= 128 else 4
    if loads is not None or interpreted:
        possible = [loads or "pointer"]
    configs = [Config(way == "descriptor", warps, stages) for way in possible if way != "producer"]
    kind = (q.device, q.dtype, q.shape[3], plan.block_q, plan.block_k, *_options(plan), loads)
    run(fastest(kind, configs, run))
    return out, lse


def row_order(plan: RowPlan, group: int = 1) -> torch.Tensor:
    """The plan's rows, counted over [B, H, M], as int32 [B * H * M]; no host sync.

    The rows of the ``group`` query heads that share a KV head stay together, so that this head's keys stay in
    the L2 cache; among them the row with the most tiles comes first, on a GPU to within a step (``order_kernel``).
    """
    if plan.block_count.is_cuda:
        return row_order_fused(plan, group)
    _, last = plan.query_positions()
    column_tiles = (plan.column_count + (plan.block_k - 1)) // plan.block_k
    tiles = torch.where(plan.dense_rows, last // plan.block_k + 1, plan.block_count + column_tiles)
    tiles = tiles.view(-1, group * plan.query_blocks)
    start = torch.arange(len(tiles), device=tiles.device)[:, None] * tiles.shape[1]
    return (tiles.argsort(-1, descending=True) + start).flatten().int()


def row_order_fused(plan: RowPlan, group: int) -> torch.Tensor:
    """``row_order`` by one kernel: a sort and ten small operations would cost 2 % of a sparse layer at 64K tokens."""
    from routesparse.kernels.order_kernel import order_kernel

    units, rows = plan.block_count.numel() // (group * plan.query_blocks), group * plan.query_blocks
    order = torch.empty(units * rows, dtype=torch.int32, device=plan.device)
    places = torch.empty(units, ORDER_STEPS, dtype=torch.int32, device=plan.device)
    order_kernel[(units,)](
        plan.dense_rows.contiguous().view(torch.uint8),
        plan.block_count.contiguous(),
        plan.column_count.contiguous(),
        places,
        order,
        rows,
        plan.query_blocks,
        plan.key_offset,
        plan.n_k,
        plan.key_blocks + plan.columns.shape[3] // plan.block_k + 1,
        BLOCK_Q=plan.block_q,
        BLOCK_K=plan.block_k,
        STEPS=ORDER_STEPS,
        AT_ONCE=ORDER_ROWS_AT_ONCE,
        num_warps=8,
    )
    return order


def lists_by_row(lists: torch.Tensor) -> torch.Tensor:
    """Lists [B, H, M, capacity] as [B * H * M, capacity] with unit stride inside a row; a view if it can be."""
    rows = lists.flatten(0, 2)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def fits_descriptor(tensor: torch.Tensor) -> bool:
    """Whether TMA can read [B, H, n, D]: 16-byte aligned rows with unit stride inside."""
    size = tensor.element_size()
    aligned = all(
        stride > 0 and stride * size % 16 == 0
        for stride, length in zip(tensor.stride()[:3], tensor.shape[:3], strict=True)
        if length > 1
    )
    return tensor.stride(3) == 1 and aligned and tensor.data_ptr() % 16 == 0


def descriptor_strides(tensor: torch.Tensor) -> list[int]:
    """Strides of a tensor that ``fits_descriptor``; axes of length one get any stride that TMA accepts."""
    pitch = -(-tensor.shape[3] * tensor.element_size() // 16) * 16 // tensor.element_size()
    strides = [
        pitch if length == 1 else stride
        for stride, length in zip(tensor.stride()[:3], tensor.shape[:3], strict=True)
    ]
    return [*strides, 1]


def _options(plan: RowPlan) -> tuple[bool, ...]:
    """Which optional fields the plan has, as the kernel's compile-time flags."""
    optional = (plan.key_start, plan.window, plan.softcap, plan.sinks)
    return (plan.columns.shape[3] > 0, *(option is not None for option in optional))


def possible_loads(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RowPlan, interpreted: bool
) -> list[Loads]:
    """What can run here, the best first; the interpreter emulates descriptors, slowly."""
    if q.element_size() != 2 or not (fits_descriptor(k) and fits_descriptor(v)):
        return ["pointer"]
    if interpreted:
        return ["pointer", "descriptor"]
    if torch.cuda.get_device_capability(q.device)[0] < 9:
        return ["pointer"]
    from routesparse.kernels.hopper_backend import can_run

    if fits_descriptor(q) and can_run(q, plan):
        return ["producer", "descriptor", "pointer"]
    return ["descriptor", "pointer"]


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: RowPlan,
    scale: float,
    order: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    config: Config,
    interpreted: bool,
) -> None:
    import triton
    from triton.tools.tensor_descriptor import TensorDescriptor

    from routesparse.kernels.triton_kernel import sparse_attention_kernel

    heads, n_q, head_size = q.shape[1:]
    blocks, columns = lists_by_row(plan.blocks), lists_by_row(plan.columns)
    head_padded = max(16, triton.next_power_of_2(head_size))
    has_columns, has_key_start, has_window, has_softcap, has_sinks = _options(plan)
    # A soft cap is a tanh, which the kernel takes from a sigmoid of twice the argument.
    scale_log2 = scale * math.log2(math.e) if plan.softcap is None else 2.0 * scale / plan.softcap

    def described(tensor: torch.Tensor) -> TensorDescriptor | None:
        if not config.descriptor:
            return None
        tile = [1, 1, plan.block_k, head_padded]
        return TensorDescriptor(tensor, list(tensor.shape), descriptor_strides(tensor), tile)

    absent = plan.block_count
    sparse_attention_kernel[(order.numel(),)](
        q,
        k,
        v,
        described(k),
        described(v),
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
        COLUMNS=has_columns,
        KEY_START=has_key_start,
        WINDOW=has_window,
        SOFTCAP=has_softcap,
        SINKS=has_sinks,
        # The interpreter's bf16 matrix product is silently wrong.
        UPCAST=interpreted,
        PRECISION="ieee" if q.dtype == torch.float32 or interpreted else "tf32",
        DESCRIPTOR=config.descriptor,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def _check_supported(q: torch.Tensor, plan: RowPlan, scale: float, interpreted: bool) -> None:
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
    if not scale > 0:
        raise ValueError(f'scale {scale}: backend "triton" takes a positive factor; use backend="torch"')
