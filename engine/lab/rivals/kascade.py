"""Kascade (arXiv 2512.16391): few anchor layers choose by exact attention, the layers after them read the same.

An anchor layer computes its whole attention and keeps, for each query block and KV head, the blocks that hold the most.
Up to the next anchor a head reads what one of the anchor's heads chose, that whose choice captures most of its
attention. Layer 0 is dense. Anchors and heads are searched offline: a dynamic program over layers maximises the mass
that is captured.

Departures: key blocks of 64 in the place of single keys; anchors run on the kernel with their own choice, where the
authors run them dense; the exact scores that anchors compute are not counted in the area.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from routesparse.engine.errors import ConfigError
from routesparse.engine.lab.rivals.pieces import query_block_chunks, ranks
from routesparse.engine.lab.rivals.rule import Selection, View, block_sums

Heads = Mapping[int, tuple[int, tuple[int, ...]]]  # layer: its anchor, and for each KV head the anchor's head


def block_mass(view: View) -> torch.Tensor:
    """The exact attention of query blocks to KV blocks, summed over the heads that share a KV head: [Hkv, M, N]."""
    parts = []
    for chunk in query_block_chunks(view, view.block_q * view.tokens):
        rows = torch.arange(chunk.start * view.block_q, chunk.stop * view.block_q, device=view.device)
        mass = block_sums(view.row_softmax(rows.clamp_max(view.tokens - 1)), view.block_k)
        mass[:, :, rows >= view.tokens] = 0.0
        parts.append(
            mass.unflatten(2, (len(chunk), -1)).sum(3)[0].unflatten(0, (-1, view.inputs.groups)).sum(1)
        )
    return torch.cat(parts, 1)


def largest(view: View, mass: torch.Tensor, share: float) -> torch.Tensor:
    """The blocks of largest mass, ``share`` of the causal ones of each query block: bool [Hkv, M, N]."""
    causal = view.forced_and_causal[1][0]
    most = (share * causal.sum(-1, keepdim=True)).ceil().clamp_min(1)
    return (ranks(mass.masked_fill(~causal, -1.0)) < most) & causal


@dataclass
class Kascade:
    """See the module."""

    share: float = 0.1  # of the causal blocks
    heads: Heads = field(default_factory=dict)  # of KascadeSearch; a layer that is not in it is an anchor
    _chosen: dict[int, torch.Tensor] = field(default_factory=dict)  # of the prompt that runs, by anchor

    def __call__(self, view: View) -> Selection | None:
        if view.layer == 0:
            self._chosen.clear()
            return None
        anchor, heads = self.heads.get(view.layer, (view.layer, ()))
        if anchor == view.layer:
            self._chosen[anchor] = largest(view, block_mass(view), self.share)
        kept = self._chosen[anchor]
        kept = kept[list(heads)] if heads else kept
        return Selection(kept.repeat_interleave(view.inputs.groups, 0).unsqueeze(0))


@dataclass
class KascadeSearch:
    """The offline search on one calibration prompt: a rule under which every layer runs dense."""

    anchors: int = 5  # layer 0 is not counted
    share: float = 0.1
    _mass: list[torch.Tensor] = field(default_factory=list)  # by layer from 1 on, float16 [Hkv, M, N]
    _kept: list[torch.Tensor] = field(default_factory=list)

    def __call__(self, view: View) -> None:
        """Remember a layer's attention. Errors: ConfigError for a second prompt."""
        if view.layer == 0:
            if self._mass:
                raise ConfigError("Kascade's search reads one prompt; make another search for another prompt")
            return
        mass = block_mass(view)
        self._mass.append((mass / mass.sum(-1, keepdim=True)).half())
        self._kept.append(largest(view, mass, self.share))

    def best(self) -> Heads:
        """The anchors that capture most, and whose heads serve which. Errors: ConfigError before a prompt ran."""
        layers = len(self._mass)
        if not layers:
            raise ConfigError("nothing was searched; run the model on a calibration prompt first")
        # captured[a][l]: of each KV head of layer l, the share of its own best that a head of anchor a captures.
        captured = [[self._captured(a, l) if l >= a else None for l in range(layers)] for a in range(layers)]
        worth = [[0.0 if one is None else float(one.amax(1).mean()) for one in row] for row in captured]
        best, last = self._program(worth, layers), layers
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for anchor in reversed(best):
            for layer in range(anchor + 1, last):
                of = captured[anchor][layer]
                assert of is not None
                found[layer + 1] = anchor + 1, tuple(of.argmax(1).tolist())
            last = anchor
        return dict(sorted(found.items()))

    def _captured(self, anchor: int, layer: int) -> torch.Tensor:
        """float32 [Hkv of the layer, Hkv of the anchor]."""
        mass, kept = self._mass[layer].float().flatten(1), self._kept[anchor].float().flatten(1)
        own = (mass * self._kept[layer].flatten(1)).sum(1, keepdim=True)
        return mass @ kept.T / own

    def _program(self, worth: list[list[float]], layers: int) -> list[int]:
        """Where to put the anchors, the first at 0, so that the worth of all layers is largest."""
        # value[k][l]: the most that layers 0 .. l - 1 are worth under k anchors, and where the last of them stands.
        value: list[list[tuple[float, int]]] = [[(0.0 if l == 0 else -1.0, 0) for l in range(layers + 1)]]
        for _ in range(min(self.anchors, layers)):
            before = value[-1]
            value.append(
                [
                    max(
                        ((before[a][0] + sum(worth[a][a:l]), a) for a in range(l) if before[a][0] >= 0),
                        default=(-1.0, 0),
                    )
                    for l in range(layers + 1)
                ]
            )
        chosen, end = [], layers
        for row in reversed(value[1:]):
            end = row[end][1]
            chosen.append(end)
        return chosen[::-1]
