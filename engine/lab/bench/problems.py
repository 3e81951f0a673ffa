"""Problems of a stated shape and density: tensors, random plans, how much arithmetic they hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.kernels.interface import RowPlan
from routesparse.kernels.plan.row_plan import areas_of


@dataclass(frozen=True)
class Shape:
    """Attention of one layer; the default is Llama-3.1-8B's, at 131,072 tokens."""

    n_tokens: int = 131_072
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    batch: int = 1

    @property
    def causal_pairs(self) -> int:
        """(query, key) pairs of dense causal attention, over batch and heads."""
        return self.batch * self.heads * self.n_tokens * (self.n_tokens + 1) // 2

    def flops(self, pairs: float) -> float:
        """Floating-point operations of both products for that many (query, key) pairs."""
        return 4.0 * self.head_size * pairs


def tensors(
    shape: Shape, seed: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda"
) -> tuple[torch.Tensor, ...]:
    """q [B, H, n, d], k and v [B, Hkv, n, d] of independent normal numbers."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(heads: int) -> torch.Tensor:
        size = (shape.batch, heads, shape.n_tokens, shape.head_size)
        return torch.randn(size, generator=generator, device=device, dtype=dtype)

    return normal(shape.heads), normal(shape.kv_heads), normal(shape.kv_heads)


def random_plan(
    shape: Shape,
    density: float,
    seed: int,
    columns: int = 0,
    grain_tokens: int = 64,
    device: str = "cuda",
) -> RowPlan:
    """Blocks drawn independently with probability ``density`` in every row, plus the diagonal and ``columns``.

    grain_tokens: width of what is drawn, 64 or 128 keys. List capacities are static: a quarter above what a row
    is expected to need at most, and at least 64 more.
    """
    generator = torch.Generator(device).manual_seed(seed)
    rows, width = -(-shape.n_tokens // 128), -(-shape.n_tokens // grain_tokens)
    blocks = -(-shape.n_tokens // 64)
    parts = []
    # A head at a time: the random numbers of all heads would need more memory than the lists.
    for _ in range(shape.batch * shape.heads):
        drawn = torch.rand(rows, width, generator=generator, device=device) < density
        parts.append(drawn.repeat_interleave(grain_tokens // 64, -1)[:, :blocks])
    mask = torch.stack(parts).view(shape.batch, shape.heads, rows, blocks)
    singles = None
    if columns:
        size = (shape.batch, shape.heads, columns)
        singles = torch.randint(0, shape.n_tokens, size, generator=generator, device=device)
    return RowPlan.from_block_mask(
        mask,
        shape.n_tokens,
        shape.n_tokens,
        128,
        64,
        columns=singles,
        block_capacity=min(blocks, int(1.25 * density * blocks) + 64),
    )


def plan_pairs(plan: RowPlan) -> float:
    """(query, key) pairs that the plan reads, exactly."""
    return float(areas_of(plan)[0].sum())
