"""What one layer's attention receives, before anything is decided about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from routesparse.engine.device.constants import constant
from routesparse.kernels.logits import Logits


@dataclass(frozen=True)
class AttentionInputs:
    """One layer's attention inputs. q [B, H, n_q, D]; k, v [B, Hkv, n_k, D]; query head h reads KV head h // G."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    key_start: torch.Tensor | None = None  # int [B], left padding
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # [H]
    table: torch.Tensor | None = None  # int64 [2]: addresses that count instead of q and k (device/graphs.py)

    @property
    def groups(self) -> int:
        """G, query heads per KV head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def logits(self) -> Logits:
        """What makes the attention's logits."""
        return Logits(self.q, self.k, self.scale, self.softcap, self.sinks, self.table)

    def first_keys(self) -> torch.Tensor:
        """int64 [B]: the first real key of each prompt."""
        return self._first_keys

    @cached_property
    def _first_keys(self) -> torch.Tensor:
        return first_real_keys(self.key_start, self.q.shape[0], self.q.device)


def first_real_keys(key_start: torch.Tensor | None, batch: int, device: torch.device) -> torch.Tensor:
    """int64 [B]: the first real key of each prompt; key_start int [B], None without padding."""
    if key_start is None:
        return constant(np.zeros(batch, np.int64), device)
    return key_start.to(torch.int64)
