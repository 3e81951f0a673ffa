"""InfLLM (Xiao et al., arXiv 2402.04617, section 3): a memory of units, each known by its representative tokens.

A row reads the first ``initial_tokens`` keys, its local window, and the best units of what lies between. A key's
representative score is what the l_L queries behind it thought of it,

    r(m) = 1 / l_L  sum over j = 1 .. l_L of q_(m+j) . k_m,

and a unit of 128 tokens is known by its four keys of largest r. The units that a chunk X of queries reads are
those with the largest sum over X's queries and the unit's representatives of q . k.

Departures: keys and queries keep the rotary positions of the prompt, where the authors give every key beyond the window
one position, because they extrapolate and we do not; their local window is 4,096 tokens, longer than half of a short
prompt, so that its length is a setting here; a unit that touches the initial keys or the window is read whole; a chunk
X is a query block of 128, theirs 512; all is in memory, nothing is offloaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from routesparse.engine.lab.rivals.pieces import ranks, square_distance, to_kv_blocks
from routesparse.engine.lab.rivals.rule import Selection, View, block_sums


@dataclass(frozen=True)
class InfLLM:
    """See the module."""

    units: int = 16  # k_m, memory units a query block; a unit is block_q tokens, 128 as theirs
    representatives: int = 4  # r_k, tokens that stand for a unit
    initial_tokens: int = 128  # l_I
    local_tokens: int = 512  # l_L, local window

    def __call__(self, view: View) -> Selection:
        memory = self.memory(view)
        relevance = self.relevance(view).masked_fill(~memory, -torch.inf)
        return Selection(to_kv_blocks(view, (ranks(relevance) < self.units) | ~memory))

    def memory(self, view: View) -> torch.Tensor:
        """Units without an initial key and wholly behind the local window of every row: bool [M, M]."""
        first_key = torch.arange(view.segment.query_blocks, device=view.device) * view.block_q
        evicted = square_distance(view) * view.block_q >= self.local_tokens + view.block_q - 1
        return evicted & (first_key >= self.initial_tokens)

    def relevance(self, view: View) -> torch.Tensor:
        """Sum over a query block's rows and a unit's representatives of q . k: float32 [1, H, M, M]."""
        queries = block_sums(view.inputs.q.float().transpose(-1, -2), view.block_q)
        chosen = F.pad(self.chosen(view).float(), (0, -view.tokens % view.block_q)).unsqueeze(-1)
        keys = F.pad(view.keys.float(), (0, 0, 0, -view.tokens % view.block_q)) * chosen
        return queries.transpose(-1, -2) @ keys.unflatten(2, (-1, view.block_q)).sum(3).transpose(-1, -2)

    def chosen(self, view: View) -> torch.Tensor:
        """Which keys represent their unit: bool [1, H, n]."""
        padded = F.pad(self.representative_scores(view), (0, -view.tokens % view.block_q), value=-torch.inf)
        units = padded.unflatten(-1, (-1, view.block_q))
        return ((ranks(units) < self.representatives) & units.isfinite()).flatten(-2)[..., : view.tokens]

    def representative_scores(self, view: View) -> torch.Tensor:
        """r(m), the mean over fewer queries near the prompt's end, 0 at it: float32 [1, H, n]."""
        n = view.tokens
        token = torch.arange(n, device=view.device)
        last = (token + self.local_tokens).clamp_max(n - 1)
        sums = view.inputs.q.double().cumsum(2)
        means = (sums[:, :, last] - sums) / (last - token).clamp_min(1).view(-1, 1)
        return (means * view.keys.double()).sum(-1).float()
