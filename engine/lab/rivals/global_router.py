"""One pattern and one budget a layer for all heads: what conditional routing by layer alone can do.

Each rule of a grid names its blocks and columns; the mass that they hold is measured exactly on ``rows`` sampled rows
of the body (the rows without the tail) and averaged over heads. Of the rules whose mean reaches tau the layer is served
by the one whose plan has the least area; where none does, or the prompt has no body, the layer runs dense. Every rule
is judged with the blocks that plans of ours always read.

The default grid holds A-shapes, vertical-slash with the same budgets for every head, and pooled top-k. It is ours; the
paper's ablation only says "one pattern for all heads".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from routesparse.engine.certification.minference_heads import HeadBudget
from routesparse.engine.lab.rivals.minference import MInference
from routesparse.engine.lab.rivals.pooled_top_k import PooledTopK
from routesparse.engine.lab.rivals.rule import Rule, Selection, View
from routesparse.engine.lab.rivals.static_a_shape import StaticAShape
from routesparse.engine.seeds import stable_seed

GRID: tuple[Rule, ...] = (
    *(StaticAShape(128, local) for local in (512, 1_024, 2_048, 4_096, 8_192)),
    *(
        MInference(default=HeadBudget("vertical_and_slash", columns, slashes))
        for columns, slashes in ((100, 200), (500, 700), (1_000, 2_048), (1_000, 6_096), (3_500, 2_048))
    ),
    *(PooledTopK(blocks) for blocks in (8, 16, 32, 64, 128, 256)),
)


@dataclass(frozen=True)
class GlobalRouter:
    """See the module."""

    tau: float = 0.9  # least mean mass over heads
    grid: tuple[Rule, ...] = GRID
    rows: int = 64  # sampled rows

    def __call__(self, view: View) -> Selection | None:
        if view.segment.body < 1:
            return None
        generator = torch.Generator().manual_seed(stable_seed("global router", view.salt, view.layer))
        rows = torch.randint(view.segment.body, (self.rows,), generator=generator).to(view.device)
        mass = view.row_softmax(rows)
        found = [selection for rule in self.grid if (selection := rule(view)) is not None]
        if not found:
            return None
        # The device is asked twice a layer, not twice a rule.
        held = torch.stack([kept_mass(view, selection, rows, mass) for selection in found]).tolist()
        enough = [selection for selection, share in zip(found, held, strict=True) if share >= self.tau]
        if not enough:
            return None
        areas = [view.plan(selection, extras=True).head_density().mean() for selection in enough]
        return enough[int(np.argmin(torch.stack(areas).tolist()))]


def kept_mass(view: View, selection: Selection, rows: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Mean over heads and rows int64 [R] of the attention [1, H, R, n] that a selection and the forced blocks hold.

    Returns a scalar on the device.
    """
    blocks = selection.blocks | view.forced_and_causal[0]
    kept = blocks[:, :, rows // view.block_q].repeat_interleave(view.block_k, -1)[..., : view.tokens]
    if selection.columns is not None:
        kept = kept | _marked(view, selection).unsqueeze(2)
    return (mass * kept).sum(-1).mean()


def _marked(view: View, selection: Selection) -> torch.Tensor:
    """The columns that count, as a mask of keys: bool [1, H, n]."""
    columns, count = selection.columns, selection.column_count
    assert columns is not None
    counts = torch.ones_like(columns, dtype=torch.bool)
    if count is not None:
        counts = torch.arange(columns.shape[-1], device=view.device) < count.unsqueeze(-1)
    # Columns past the count are sent to a place past the last key.
    marked = torch.zeros(*columns.shape[:2], view.tokens + 1, dtype=torch.bool, device=view.device)
    return marked.scatter_(-1, columns.masked_fill(~counts, view.tokens), True)[..., :-1]
