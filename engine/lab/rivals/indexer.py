"""An indexer in the manner of DeepSeek-V3.2's (arXiv 2512.02556, section 2.1, equation 1): a small trained scorer.

A few small heads look at every key before attention does; all heads of a layer read what they choose:

    I(t, s) = sum over j of w(t, j) ReLU(q^I(t, j) . k^I(s));   each row reads the keys of largest I

It is trained to foretell the layer's attention: KL(p(t, .) | softmax I(t, .)), p the mean of the heads' exact attention
(there: their sum, brought to 1). The bundled weights were trained on the bundled model at commit b6dfeee2, whose
``engine/lab/studies/indexer.py`` trains others. It is here as an example of trained sparse attention that can be
certified.

Departures: q^I, k^I and w are linear in the layer's own rotated queries and keys, brought to root mean square 1, where
theirs come from the hidden state with a rotation of their own; indexer head j looks at its share of the query heads
alone; no low-precision numbers; the model is not trained further (their second stage). Theirs reads single keys; here
softmax I is summed over KV blocks, a query block's score is the root mean square over its rows, as in
kernels/block_score, and its rows share the best blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F

from routesparse.engine import paths
from routesparse.engine.errors import ConfigError
from routesparse.engine.lab.rivals.pieces import best_blocks, query_block_chunks
from routesparse.engine.lab.rivals.rule import Selection, View, block_sums

DEMO_WEIGHTS = paths.DATA / "baselines" / "indexer_demo.safetensors"
NAMES = ("query", "key", "weight")


@dataclass(frozen=True)
class LayerIndexer:
    """One layer's weights: J indexer heads of d dimensions.

    query [J, H D / J, d], key [Hkv D, d], weight [J, H D / J].
    """

    query: torch.Tensor
    key: torch.Tensor
    weight: torch.Tensor

    def to(self, device: torch.device) -> LayerIndexer:
        """The same on a device."""
        return LayerIndexer(self.query.to(device), self.key.to(device), self.weight.to(device))

    def keys(self, k: torch.Tensor) -> torch.Tensor:
        """k^I: the layer's keys [Hkv, n, D] -> float32 [n, d]."""
        return joined(k) @ self.key

    def scores(self, q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """I: queries [H, R, D], keys [n, d] of ``keys`` -> float32 [R, n]."""
        parts = joined(q).unflatten(-1, (len(self.query), -1)).transpose(0, 1)  # [J, R, H D / J]
        weight = (parts @ self.weight.unsqueeze(-1)).squeeze(-1)
        found = torch.zeros(parts.shape[1], len(keys), device=keys.device)
        for part, query, w in zip(parts, self.query, weight, strict=True):
            found = found + w.unsqueeze(-1) * (part @ query @ keys.T).relu()
        return found


@dataclass(frozen=True)
class Indexer:
    """See the module."""

    blocks: int = 32  # KV blocks a query block
    path: Path = DEMO_WEIGHTS

    def __call__(self, view: View) -> Selection:
        return best_blocks(view, self.scores(view).expand(1, view.heads, -1, -1), self.blocks)

    def scores(self, view: View) -> torch.Tensor:
        """Root mean square over rows of softmax(I) summed over KV blocks: float32 [1, 1, M, N], one for all heads."""
        layers = load(self.path)
        inputs = view.inputs
        if view.layer >= len(layers):
            raise ConfigError(
                f"{self.path.name} has {len(layers)} layers, the model has a layer {view.layer}"
            )
        layer = layers[view.layer].to(view.device)
        wide = inputs.q.shape[1] * inputs.q.shape[3], inputs.k.shape[1] * inputs.k.shape[3]
        trained = layer.query.shape[0] * layer.query.shape[1], layer.key.shape[0]
        if wide != trained:
            raise ConfigError(
                f"{self.path.name} was trained on queries and keys of {trained} numbers a token, these have {wide}; "
                "it is for the bundled model"
            )
        keys, key, out = layer.keys(inputs.k[0]), torch.arange(view.tokens, device=view.device), []
        for chunk in query_block_chunks(view, view.block_q * view.tokens):
            end = min(chunk.stop * view.block_q, view.tokens)
            rows = torch.arange(chunk.start * view.block_q, end, device=view.device)
            index = layer.scores(inputs.q[0, :, rows], keys[:end])[None, None]
            shares = index.masked_fill(key[:end] > rows.view(-1, 1), -torch.inf).softmax(-1)
            squares = block_sums(shares, view.block_k).square()
            squares = F.pad(squares, (0, view.segment.key_blocks - squares.shape[-1]))
            sizes = block_sums(torch.ones(len(rows), device=view.device), view.block_q).view(-1, 1)
            out.append((block_sums(squares.transpose(-1, -2), view.block_q).transpose(-1, -2) / sizes).sqrt())
        return torch.cat(out, 2)


def joined(x: torch.Tensor) -> torch.Tensor:
    """All heads' vectors of a token side by side, at root mean square 1: [H, R, D] -> float32 [R, H D]."""
    side = x.float().transpose(0, 1).flatten(1)
    return side / side.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-6)


@lru_cache(maxsize=4)
def load(path: Path) -> tuple[LayerIndexer, ...]:
    """The indexers of a file, by layer. Raises ConfigError where it is missing or holds something else."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
        return tuple(
            LayerIndexer(*parts) for parts in zip(*(found[name].float() for name in NAMES), strict=True)
        )
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} holds no indexer ({error}); restore data/baselines") from error
