"""Attention of rows at given positions by torch's own, in parts of neighbours that read about as many keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from routesparse.kernels.logits import Logits, capped_logits

MOST_LOGITS = 1 << 27  # that exist at a time
PARTS, ALIGNED = 8, 64  # of the rows; keys of a part come in multiples, which torch's kernels want of masks

# Of neighbours among the rows: their places, the number of keys that any of them reads, and what each head adds to
# logits [group * rows, keys]: 0 or -inf.
Masks = list[tuple[slice, int, Tensor]]


@dataclass(frozen=True)
class Places:
    """Where queries stand: rows int64 [R], ascending, on their device; masks are made once for layers of a kind."""

    rows: Tensor
    _masks: dict[tuple[int | None, int, int, torch.dtype], Masks] = field(default_factory=dict)

    def masks(self, logits: Logits, window: int | None) -> Masks:
        """For such queries and keys."""
        keys = logits.k.shape[2]
        kind = window, keys, logits.group, logits.q.dtype
        if kind not in self._masks:
            self._masks[kind] = self._made(logits, keys, window)
        return self._masks[kind]

    def _made(self, logits: Logits, keys: int, window: int | None) -> Masks:
        count, device = len(self.rows), self.rows.device
        # Rows of one part read as many keys as its last one: short parts waste less.
        size = max(1, min(-(-count // PARTS), MOST_LOGITS // (logits.q.shape[1] * keys)))
        found: Masks = []
        for first in range(0, count, size):
            part = slice(first, min(first + size, count))
            at = self.rows[part].view(-1, 1)
            limit = min(keys, (int(at[-1]) // ALIGNED + 1) * ALIGNED)
            key = torch.arange(limit, device=device)
            hidden = key > at if window is None else (key > at) | (key <= at - window)
            mask = torch.zeros(hidden.shape, dtype=logits.q.dtype, device=device)
            found.append((part, limit, mask.masked_fill_(hidden, -torch.inf).repeat(logits.group, 1)))
        return found


def row_attention(logits: Logits, v: Tensor, at: Places, *, window: int | None = None) -> Tensor:
    """Exact causal attention [1, H, R, Dv] of queries [1, H, R, D] over keys [1, Hkv, n, D] and values like them.

    window: each row reads its last so many keys.
    """
    (_, heads, count, width), kv_heads = logits.q.shape, logits.k.shape[1]
    # The heads of a group are rows of their KV head: it is read once, and no kernel needs to know of groups.
    query = logits.q.reshape(1, kv_heads, logits.group, count, width)
    parts = []
    for part, limit, mask in at.masks(logits, window):
        q, k, values = query[:, :, :, part].flatten(2, 3), logits.k[:, :, :limit], v[:, :, :limit]
        if logits.softcap is None and logits.sinks is None:
            out = F.scaled_dot_product_attention(q, k, values, attn_mask=mask, scale=logits.scale)
        else:
            out = _written_out(replace(logits, q=q, k=k), values, mask)
        parts.append(out.view(1, heads, part.stop - part.start, v.shape[3]))
    return torch.cat(parts, 2)


def _written_out(logits: Logits, v: Tensor, mask: Tensor) -> Tensor:
    """With soft cap and sinks, by tensor operations in float32: q [1, Hkv, G * R, D], mask [G * R, n]."""
    q, keys = logits.q, mask.shape[-1]
    found = capped_logits(q.float(), logits.k.float(), logits.scale, logits.softcap) + mask.float()
    if logits.sinks is not None:
        by_head = logits.sinks.float().view(1, logits.k.shape[1], -1, 1)
        rows = q.shape[2] // by_head.shape[2]
        found = torch.cat([found, by_head.expand(-1, -1, -1, rows).flatten(2, 3).unsqueeze(-1)], -1)
    return (found.softmax(-1)[..., :keys] @ v.float()).to(q.dtype)
