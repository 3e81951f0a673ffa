"""Longformer (Beltagy et al., arXiv 2004.05150, section 3.1): a sliding window, dilated or not, and global tokens.

    row i reads key j <= i  iff  i - j < w d and d divides i - j,  or j is global,  or i is global

w is the window and d its dilation. Global tokens read everything and are read by everything; the task chooses them
(section 3.1: a classification token, a question's tokens): here the prompt's first ``global_first`` and its last
``global_last``.

With d = 1 and no ``global_last`` this is the A-shape that RouteSparse routes to (families/a_shape.py); a test says so.
Departures: causal, so w keys on the left instead of w / 2 on either side, as in the authors' language models; the same
window in every layer, where theirs grows upwards; one projection for global and local attention; tiles, not pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.pieces import tiles_of_offsets
from routesparse.engine.lab.rivals.rule import Selection, View


@dataclass(frozen=True)
class Longformer:
    """See the module."""

    window: int = 512  # w
    dilation: int = 1  # d
    global_first: int = 64
    global_last: int = 0

    def __call__(self, view: View) -> Selection:
        offset = torch.arange(view.tokens, device=view.device)
        marked = (offset < self.window * self.dilation) & (offset % self.dilation == 0)
        key = torch.arange(0, view.tokens, view.block_k, device=view.device)
        end = (torch.arange(view.segment.query_blocks, device=view.device).view(-1, 1) + 1) * view.block_q
        is_global = (key < self.global_first) | (end > view.tokens - self.global_last) & (
            self.global_last > 0
        )
        return Selection(tiles_of_offsets(view, marked.view(1, 1, -1)) | is_global)
