"""QUEST (Tang et al., arXiv 2406.10774, section 3.3, algorithm 1): a page is worth the largest logit it could hold.

Of a page of keys only the least and the largest value of every dimension are kept, m and M. No key k of the page has a
larger product with the query than

    bound(q, page) = sum over d of max(q_d m_d, q_d M_d) >= q . k

and a query reads the pages with the largest bounds. Here the bounds times 1/sqrt(d) stand in for logits
(scorers/row_shares.py).

Departures: the authors choose for one decoded query a head, here 128 rows share KV blocks of 64 keys, which hold four
pages of 16; their first two layers read everything, ours do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from routesparse.engine.lab.rivals.rule import Selection, View
from routesparse.engine.lab.rivals.scorers.row_shares import best_blocks, shares_over_rows


@dataclass(frozen=True)
class Quest:
    """See the module."""

    blocks: int = 32  # KV blocks a query block
    page: int = 16  # keys, divides block_k

    def __call__(self, view: View) -> Selection:
        return best_blocks(view, self.scores(view), self.blocks)

    def scores(self, view: View) -> torch.Tensor:
        """Root mean square over rows of softmax(bound) summed over a KV block's pages: float32 [1, H, M, N]."""
        low, high = self.pages(view)
        return shares_over_rows(
            view, lambda rows, pages: bounds(view, rows, low[:, :, :pages], high[:, :, :pages]), self.page
        )

    def pages(self, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Least and largest values of each page's keys: float32 [1, H, pages, D] each."""
        missing = -view.tokens % self.page
        keys = view.inputs.k.float()
        low = F.pad(keys, (0, 0, 0, missing), value=torch.inf).unflatten(2, (-1, self.page)).amin(3)
        high = F.pad(keys, (0, 0, 0, missing), value=-torch.inf).unflatten(2, (-1, self.page)).amax(3)
        groups = view.inputs.groups
        return low.repeat_interleave(groups, 1), high.repeat_interleave(groups, 1)


def bounds(view: View, rows: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """The largest logit that a key of each page could have: rows int64 [R] -> float32 [1, H, R, pages]."""
    q = view.inputs.q[:, :, rows].float() * view.inputs.scale
    # A positive q_d takes the largest value of its dimension, a negative one the least.
    return q.clamp_min(0.0) @ high.transpose(-1, -2) + q.clamp_max(0.0) @ low.transpose(-1, -2)
