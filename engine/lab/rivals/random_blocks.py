"""Random blocks: every causal KV block with the same probability, apart for each head. The negative control.

Drawn on the CPU from the view's salt and layer, so a prompt's blocks are the same on every device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.rule import Selection, View
from routesparse.engine.seeds import stable_seed


@dataclass(frozen=True)
class RandomBlocks:
    """See the module."""

    density: float = 0.2  # probability of a block

    def __call__(self, view: View) -> Selection:
        generator = torch.Generator().manual_seed(stable_seed("random blocks", view.salt, view.layer))
        causal = view.forced_and_causal[1]
        drawn = torch.rand(1, view.heads, *causal.shape[2:], generator=generator) < self.density
        return Selection(drawn.to(view.device) & causal)
