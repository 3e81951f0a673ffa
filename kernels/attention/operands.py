"""What the two Triton launchers share: the operands of one call, and how a kernel can address its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from routesparse.kernels.common import strides
from routesparse.kernels.plan import RowPlan

LENGTHS = ("blocks_stride", "columns_stride", "n_q", "n_k")  # beside common.LENGTHS
# How tiles reach the multiprocessor: through producer warps (Hopper), by TMA descriptors, or by pointers.
Loads = Literal["producer", "descriptor", "pointer"]


@dataclass(frozen=True)
class Operands:
    """The tensors of one attention; a launcher fills ``out`` and ``lse``, which are contiguous."""

    q: torch.Tensor  # [B, Hq, n_q, D]
    k: torch.Tensor  # [B, Hkv, n_k, D]
    v: torch.Tensor  # [B, Hkv, n_k, D]
    plan: RowPlan
    scale: float
    order: torch.Tensor  # int32 [B * Hq * M], the plan's rows in the order of their launch
    out: torch.Tensor  # [B, Hq, n_q, D]
    lse: torch.Tensor  # float32 [B, Hq, n_q]

    def arguments(self) -> dict[str, Any]:
        """What both kernels ask of a call, by their arguments' names."""
        plan = self.plan
        blocks, columns = lists_by_row(plan.blocks), lists_by_row(plan.columns)
        return {
            **strides("q", self.q),
            **strides("k", self.k),
            **strides("v", self.v),
            "k_ptr": self.k,
            "v_ptr": self.v,
            "lse_ptr": self.lse,
            "order_ptr": self.order,
            "blocks_ptr": blocks,
            "block_count_ptr": plan.block_count.contiguous(),
            "columns_ptr": columns,
            "column_count_ptr": plan.column_count.contiguous(),
            # Triton reads a bool tensor as bytes.
            "dense_rows_ptr": plan.dense_rows.contiguous().view(torch.uint8),
            "sinks_ptr": plan.block_count if plan.sinks is None else plan.sinks.detach().float().contiguous(),
            "blocks_stride": blocks.stride(0),
            "columns_stride": columns.stride(0),
            "heads": plan.heads,
            "group": plan.heads // self.k.shape[1],
            "query_blocks": plan.query_blocks,
            "n_q": plan.n_q,
            "n_k": plan.n_k,
            "HEAD": self.q.shape[3],
            "COLUMNS": columns.shape[1] > 0,
            "SINKS": plan.sinks is not None,
        }


def lists_by_row(lists: torch.Tensor) -> torch.Tensor:
    """Lists [B, H, M, capacity] as [B * H * M, capacity] with unit stride inside a row; a view where possible."""
    rows = lists.flatten(0, 2)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def fits_descriptor(tensor: torch.Tensor) -> bool:
    """Whether TMA can read [B, H, n, D]: head vectors are contiguous and start at multiples of 16 bytes."""
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
