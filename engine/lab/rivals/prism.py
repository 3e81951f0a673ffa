"""Prism (arXiv 2602.08426): mean pooling blurs the fast dimensions of RoPE, so both bands are scored apart.

A mean over a block's tokens cancels dimensions that turn fast with position, which carry where a key is, and leaves
slow ones, which carry what it is. Queries and keys are mean-pooled over blocks; each band b of d_b dimensions gives

    p_b = softmax(mean q_b . mean k_b / (t_b sqrt(d_b))),   t_b = sqrt(d_b / d) (|q_b| / |q|) (|k_b| / |k|)

with |x| the root mean square over a head's pooled vectors: a band that pooling weakened gets a sharper softmax. A query
block reads the fewest blocks that reach ``share`` of p_high together with those that reach it of p_low, the first block
and the diagonal. The bands overlap: of 128 dimensions the 64 fastest and the 96 slowest.

Follows the authors' code. Departures: a short last block is pooled over its own tokens (theirs is padded with zeros);
blocks of the view's block_q, 128 as theirs, become two KV blocks of 64 keys each. Dimensions i and i + d / 2 are taken
to turn together, as in Llama and Qwen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.pieces import square_distance, to_kv_blocks
from routesparse.engine.lab.rivals.rule import Selection, View, fewest_to_share, token_means


@dataclass(frozen=True)
class Prism:
    """See the module."""

    share: float = 0.95  # p of each band
    fast_part: float = 0.5  # of the head's dimensions: the high-frequency band
    slow_part: float = 0.75  # the low-frequency band

    def __call__(self, view: View) -> Selection:
        distance = square_distance(view)
        kept = (distance == 0) | (distance == distance[:, :1])
        none = torch.zeros_like(kept)
        for weight in self.bands(view):
            kept = kept | fewest_to_share(weight, self.share, none, distance >= 0)
        return Selection(to_kv_blocks(view, kept))

    def bands(self, view: View) -> list[torch.Tensor]:
        """p of the fast and of the slow band: float32 [1, H, M, M] each, 0 past the diagonal."""
        q = token_means(view.inputs.q, view.block_q)
        k = token_means(view.inputs.k, view.block_q).repeat_interleave(view.inputs.groups, 1)
        size = q.shape[-1]
        pair = torch.arange(size, device=view.device) % (size // 2)  # 0 turns fastest
        fast = pair < round(self.fast_part * size) // 2
        slow = pair >= size // 2 - round(self.slow_part * size) // 2
        out = []
        for band in (fast, slow):
            in_q, in_k = q[..., band], k[..., band]
            part = in_q.shape[-1] / size
            temperature = math.sqrt(part) * (_rms(in_q) / _rms(q)) * (_rms(in_k) / _rms(k))
            logits = in_q @ in_k.transpose(-1, -2) * view.inputs.scale / (math.sqrt(part) * temperature)
            out.append(logits.masked_fill_(square_distance(view) < 0, -torch.inf).softmax(-1))
        return out


def _rms(x: torch.Tensor) -> torch.Tensor:
    """Root mean square of each head's vectors: [1, H, M, d] -> [1, H, 1, 1]."""
    return x.square().mean((-2, -1), keepdim=True).sqrt().clamp_min(1e-6)
