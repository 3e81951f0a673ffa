"""What exact rows are asked for and what they say; torch is not loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

TINY = 1e-30  # below every norm that a division may meet


class Kept(NamedTuple):
    """What a plan reads at some rows, causality, window and padding aside; bool tensors of the rows' shape first.

    blocks [..., N]: KV blocks of ``block`` keys that are read whole; keys [..., n_k]: single keys beside them.
    """

    blocks: torch.Tensor | None
    block: int
    keys: torch.Tensor | None

    def mask(self, keys: int) -> torch.Tensor:
        """bool [..., keys]: which of the first ``keys`` keys are read."""
        found = None if self.keys is None else self.keys[..., :keys]
        if self.blocks is None:
            assert found is not None
            return found
        whole = self.blocks.repeat_interleave(self.block, -1)[..., :keys]
        return whole if found is None else whole | found


@dataclass(frozen=True)
class ExactRows:
    """Of each row, float32 and bool [B, H, C]; engine/certification/rows.py says what they are.

    NaN in Q, K or V leaves nothing to compare with: then error, deviation, plan_error and disagreement are infinite,
    and mass, hit and largest are 0. The last five are None without a plan.
    """

    error: torch.Tensor
    deviation: torch.Tensor
    finite: torch.Tensor
    mass: torch.Tensor | None = None
    hit: torch.Tensor | None = None
    largest: torch.Tensor | None = None  # int64
    plan_error: torch.Tensor | None = None
    disagreement: torch.Tensor | None = None
