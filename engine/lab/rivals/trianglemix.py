"""TriangleMix (arXiv 2507.21526): the first layers dense, the later ones a triangle of sink, window and last rows.

In a triangle layer row r reads key k <= r iff k < sink_tokens, r - k < local_tokens, or r is one of the prompt's last
``last_rows``: what is skipped is the middle, whose pairs hardly move the first generated token.

Departures: the authors choose the triangle layers by a gradient measured once a model; here they are the layers from
``dense_layers`` on, half of the model's. Pairs become the KV blocks that hold one, and a query block that holds one of
the last rows is read whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.rule import Selection, View
from routesparse.engine.lab.rivals.static_a_shape import a_shape


@dataclass(frozen=True)
class TriangleMix:
    """See the module."""

    dense_layers: int  # L_tri, the first triangle layer: half of the model's layers
    sink_tokens: int = 8
    local_tokens: int = 512
    last_rows: int = 128

    def __call__(self, view: View) -> Selection | None:
        if view.layer < self.dense_layers:
            return None
        end = (torch.arange(view.segment.query_blocks, device=view.device).view(-1, 1) + 1) * view.block_q
        last = end > view.tokens - self.last_rows
        return Selection(a_shape(view, self.sink_tokens, self.local_tokens) | last)
