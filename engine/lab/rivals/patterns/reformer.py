"""Reformer (Kitaev et al., arXiv 2001.04451, section 2): who falls into the same bucket of a random hash is read.

    h(x) = argmax [x R ; -x R],  R normal [D, buckets / 2];   i reads j <= i iff h(q_i) = h(k_j) in one of the rounds

Departures. *Shared queries and keys are absent*: the paper trains models with k = q / |q|, so that a token's query and
key meet; here the two of a trained model are hashed as they are and may miss each other. *Blocks are hashed, not
tokens*: a tile of 128 x 64 holds a pair of nearly every bucket, so the means of query blocks and of KV blocks are
hashed. Both are centred by their head's mean, without which all queries fall into one bucket and all keys into another
(a mean of keys changes no softmax; one of queries does). The paper's sorted chunks, which cap a bucket's length, are
not needed. The diagonal block is read besides. R is drawn on the CPU from the view's salt and layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.rule import Selection, View, token_means
from routesparse.engine.seeds import stable_seed


@dataclass(frozen=True)
class Reformer:
    """See the module."""

    rounds: int = 4  # hashes; a pair is read if it meets in one of them
    buckets: int = 16  # even

    def __call__(self, view: View) -> Selection:
        rotations = self.rotations(view)
        queries = hashes(centred(token_means(view.inputs.q, view.block_q)), rotations)
        keys = hashes(centred(token_means(view.inputs.k, view.block_k)), rotations)
        keys = keys.repeat_interleave(view.inputs.groups, 1)
        return Selection((queries.unsqueeze(3) == keys.unsqueeze(2)).any(-1))

    def rotations(self, view: View) -> torch.Tensor:
        """R of every round: float32 [rounds, D, buckets / 2]."""
        generator = torch.Generator().manual_seed(stable_seed("reformer", view.salt, view.layer))
        shape = self.rounds, view.inputs.q.shape[-1], self.buckets // 2
        return torch.randn(shape, generator=generator).to(view.device)


def centred(x: torch.Tensor) -> torch.Tensor:
    """Without each head's mean: [1, H, M, D]."""
    return x - x.mean(2, keepdim=True)


def hashes(x: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """The bucket of each vector in each round: [1, H, M, D] -> int64 [1, H, M, rounds]."""
    turned = torch.einsum("bhmd,rdk->bhmrk", x, rotations)
    return torch.cat((turned, -turned), -1).argmax(-1)
