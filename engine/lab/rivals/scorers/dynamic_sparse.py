"""Dynamic sparse attention (Liu et al., arXiv 2110.11299, section 3): a probe of few dimensions and bits picks keys.

Queries and keys go through one sparse random projection, are rounded to four bits, and their product is the probe:

    P in sqrt(3 / r) {-1, 0, 1}^(D x r) with probabilities 1/6, 2/3, 1/6;
    s = softmax(round4(q P) . round4(k P) / sqrt(D))

E[P P'] is the identity, so that the probe is right in the mean. Each row keeps its k largest entries. Here s is summed
over KV blocks (scorers/row_shares.py).

Departures: the authors project a layer's input and learn what follows, W~ in X P W~, with the model; nothing is trained
here, so the probe is weaker than theirs and projects queries and keys themselves. 128 rows share KV blocks of 64 keys
(the paper's section 5 shares columns among a few rows). One step of rounding a token. P is drawn on the CPU from the
view's salt and layer, so a prompt's probe is the same on every device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.rule import Selection, View
from routesparse.engine.lab.rivals.scorers.row_shares import best_blocks, shares_over_rows
from routesparse.engine.seeds import stable_seed

MOST = 7  # the largest number of four bits with a sign


@dataclass(frozen=True)
class DynamicSparse:
    """See the module."""

    blocks: int = 32  # KV blocks a query block
    rank: int = 16  # r, dimensions of the probe

    def __call__(self, view: View) -> Selection:
        return best_blocks(view, self.scores(view), self.blocks)

    def scores(self, view: View) -> torch.Tensor:
        """Root mean square over rows of s summed over KV blocks: float32 [1, H, M, N]."""
        projection = self.projection(view)
        keys = rounded(view.inputs.k.float() @ projection).repeat_interleave(view.inputs.groups, 1)
        queries = rounded(view.inputs.q.float() @ projection) * view.inputs.scale
        return shares_over_rows(
            view, lambda rows, units: queries[:, :, rows] @ keys[:, :, :units].transpose(-1, -2)
        )

    def projection(self, view: View) -> torch.Tensor:
        """P: float32 [D, r], the same for all heads of a layer."""
        generator = torch.Generator().manual_seed(stable_seed("dynamic sparse", view.salt, view.layer))
        sixth = torch.randint(6, (view.inputs.q.shape[-1], self.rank), generator=generator)
        signs = (sixth == 0).float() - (sixth == 1).float()
        return (signs * (3 / self.rank) ** 0.5).to(view.device)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Each token's vector as whole numbers from -MOST to MOST times its own step: float [..., r] -> float32."""
    step = x.abs().amax(-1, keepdim=True).clamp_min(1e-20) / MOST
    return (x / step).round() * step
