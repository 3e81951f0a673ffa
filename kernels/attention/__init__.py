"""Sparse attention: the contract, and the only place that chooses what computes it.

The query at position p attends to the keys that the row plan lists for its query block (paper, section 3.4,
step 6), restricted to

    max(key_start[b], p - window + 1) <= key <= p

so causality holds inside the kernel whatever the plan says.

    backend "torch"    torch_cpu      any device
    backend "triton"   hopper_launch  producer warps: compute capability 9, 16-bit, head sizes 64 and 128, a plan
                                      without padding, window or soft cap
                       triton_launch  everything else, by TMA descriptors or by pointers, whichever is measured faster

The tensors, the plan and the compute capability decide, never a device's name. ``reference`` is the oracle of all.
Triton is imported when the first attention runs on it, so this imports on a machine without Triton.
"""

from __future__ import annotations

from typing import Literal

import torch

from routesparse.kernels.attention import hopper_launch, torch_cpu, triton_launch
from routesparse.kernels.attention.operands import Loads, Operands, fits_descriptor
from routesparse.kernels.attention.row_order import row_order
from routesparse.kernels.common import gpu_of, on_gpu
from routesparse.kernels.plan import RowPlan

Backend = Literal["auto", "triton", "torch"]

# Bytes of one padded head vector; larger tiles do not fit the shared memory of any GPU.
_MAX_HEAD_BYTES = 512


def sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: RowPlan,
    scale: float | None = None,
    backend: Backend = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query over the keys that the plan lists for it.

    Args:
        q: [B, Hq, n_q, D]; any strides.
        k, v: [B, Hkv, n_k, D], Hq a multiple of Hkv (grouped-query heads are native); any strides.
        plan: for Hq heads, on the tensors' device (the torch backend takes a plan on any device).
        scale: positive factor on the logits, D ** -0.5 when None.
        backend: "auto" is Triton on CUDA and torch elsewhere.

    Returns:
        out [B, Hq, n_q, D] in q's dtype, and lse [B, Hq, n_q] float32: natural log of the summed
        exponentials of the final logits (scale, soft cap and sink included). A row without keys gives
        0 and -inf, or 0 and the sink. Forward only: neither carries a gradient.

    A plan that ``validate`` refuses gives unspecified values, yet none that depend on a later key. Keys and
    values must be finite: a NaN reaches every query whose tile holds it, masked or not, as in any fused kernel.

    Raises ValueError for shapes, dtypes, devices or a backend that do not fit together.
    """
    _check_inputs(q, k, v, plan)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if backend == "auto":
        backend = "triton" if on_gpu(q) else "torch"
    if backend == "torch":
        return torch_cpu.attend(q, k, v, plan, scale)
    if backend == "triton":
        return attend_in_triton(q, k, v, plan, scale)
    raise ValueError(f'backend {backend!r} is unknown; pass "auto", "triton" or "torch"')


def attend_in_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: RowPlan,
    scale: float,
    loads: Loads | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The "triton" backend of ``sparse_attention``; ``loads`` asks for one kernel (ablations, tests).

    One launch computes all heads. Its grid depends on shapes only and the order of the plan's rows is computed on
    the device, so nothing synchronises with the host, but for one measurement at the first attention of a kind
    (``triton_launch``).

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

    ways = possible if loads is None else [loads]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if ways[0] == "producer":
        # The heads of a token side by side, as the model's next product reads them: it needs no copy.
        batch, heads, rows, size = q.shape
        out = out.view(batch, rows, heads, size).transpose(1, 2)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    operands = Operands(q, k, v, plan, scale, row_order(plan, q.shape[1] // k.shape[1]), out, lse)
    if ways[0] == "producer":
        hopper_launch.launch(operands)
    else:
        triton_launch.launch(operands, ways[:1] if interpreted else ways, interpreted)
    return out, lse


def possible_loads(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RowPlan, interpreted: bool
) -> list[Loads]:
    """The ways to load tiles that these tensors and this device allow, the fastest expected first.

    Interpreted, pointers come first: Triton's interpreter emulates descriptors slowly.
    """
    if q.element_size() != 2 or not (fits_descriptor(k) and fits_descriptor(v)):
        return ["pointer"]
    if interpreted:
        return ["pointer", "descriptor"]
    if torch.cuda.get_device_capability(gpu_of(q))[0] < 9:
        return ["pointer"]
    if fits_descriptor(q) and hopper_launch.can_run(q, plan):
        return ["producer", "descriptor", "pointer"]
    return ["descriptor", "pointer"]


def _check_inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RowPlan) -> None:
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape:
        raise ValueError(
            f"q is {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; "
            "pass q [B, Hq, n_q, D] and k, v of one shape [B, Hkv, n_k, D]"
        )
    batch, heads, n_q, head_size = q.shape
    if k.shape[0] != batch or k.shape[3] != head_size or heads % k.shape[1]:
        raise ValueError(
            f"q {list(q.shape)} and k {list(k.shape)} do not fit: batch and head size must be equal and "
            "the query heads a multiple of the KV heads"
        )
    if (plan.batch, plan.heads, plan.n_q, plan.n_k) != (batch, heads, n_q, k.shape[2]):
        raise ValueError(
            f"the plan is for B, H, n_q, n_k = {plan.batch}, {plan.heads}, {plan.n_q}, {plan.n_k}; "
            f"the tensors have {batch}, {heads}, {n_q}, {k.shape[2]}"
        )
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise ValueError(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; pass one floating dtype")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k, v lie on {q.device}, {k.device}, {v.device}; move them to one device")


def _check_supported(q: torch.Tensor, plan: RowPlan, scale: float, interpreted: bool) -> None:
    if not on_gpu(q) and not interpreted:
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
