"""SparQ (Ribar et al., arXiv 2312.04985, section 4, algorithm 1): a few query dimensions foretell the attention.

A query's r dimensions of largest |q_d| are met with the same dimensions of all keys, and a temperature makes up for
what they lack:

    s = softmax(sum over the r dimensions of q_d k_d / sqrt(D c)),   c = sum over them of |q_d| / sum over all of |q_d|

The k keys of largest s are read. Here a KV block has the sum of s over its keys (scorers/row_shares.py).

Departures: 128 rows share KV blocks of 64 keys, where the authors choose single keys for one decoded query; every query
head chooses by itself, where theirs of one KV head share a choice; the mean value that stands in for what is not read
(their step 3) is left out, because the kernel returns attention over what is read alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.rule import Selection, View
from routesparse.engine.lab.rivals.scorers.row_shares import best_blocks, shares_over_rows


@dataclass(frozen=True)
class SparQ:
    """See the module."""

    blocks: int = 32  # KV blocks a query block
    dimensions: int = 16  # r, at most the head's

    def __call__(self, view: View) -> Selection:
        return best_blocks(view, self.scores(view), self.blocks)

    def scores(self, view: View) -> torch.Tensor:
        """Root mean square over rows of s summed over KV blocks: float32 [1, H, M, N]."""
        return shares_over_rows(view, lambda rows, units: self.logits(view, rows, units))

    def logits(self, view: View, rows: torch.Tensor, units: int) -> torch.Tensor:
        """What s is the softmax of: rows int64 [R], the first ``units`` keys -> float32 [1, H, R, units]."""
        q = view.inputs.q[:, :, rows].float()
        size = q.abs()
        chosen = size.topk(min(self.dimensions, q.shape[-1]), dim=-1)
        part = chosen.values.sum(-1, keepdim=True) / size.sum(-1, keepdim=True).clamp_min(1e-20)
        kept = torch.zeros_like(q).scatter_(-1, chosen.indices, q.gather(-1, chosen.indices))
        kept *= view.inputs.scale / part.clamp_min(1e-20).sqrt()
        return kept @ view.keys[:, :, :units].float().transpose(-1, -2)
