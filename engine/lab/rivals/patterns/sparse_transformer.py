"""Sparse Transformer (Child et al., arXiv 1904.10509, section 4.3): strided and fixed factorised attention.

    strided   A1(i) = {max(0, i - l), .., i},              A2(i) = {j <= i : (i - j) mod l = 0}
    fixed     A1(i) = {j <= i : j // l = i // l},          A2(i) = {j <= i : j mod l >= l - c}

Both sets are read by every head (the paper's merged head, section 4.4), where a model that was trained so would split
them among heads or layers.

Departures: tiles instead of pairs. A stride l is a slash at every multiple of l, and a tile meets 191 offsets, so that
about 191 / l of all tiles are read: the paper's l near sqrt(n) would read every tile of a short prompt, and ``stride``
is larger. The summary columns of the fixed pattern are single keys to the kernel and cost what they cost there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.pieces import tiles_of_offsets
from routesparse.engine.lab.rivals.rule import Selection, View


@dataclass(frozen=True)
class StridedPattern:
    """See the module."""

    stride: int = 1_024  # l, both the stride and the local window

    def __call__(self, view: View) -> Selection:
        offset = torch.arange(view.tokens, device=view.device)
        marked = (offset <= self.stride) | (offset % self.stride == 0)
        return Selection(tiles_of_offsets(view, marked.view(1, 1, -1)))


@dataclass(frozen=True)
class FixedPattern:
    """See the module."""

    summary: int = 16  # c, columns at the end of each block
    block: int = 128  # l

    def __call__(self, view: View) -> Selection:
        row = torch.arange(0, view.tokens, view.block_q, device=view.device).view(-1, 1)
        key = torch.arange(0, view.tokens, view.block_k, device=view.device)
        # A tile's rows and keys share a block where neither side's blocks end before the other's begin.
        shared = row // self.block <= (key + view.block_k - 1) // self.block
        shared &= key // self.block <= (row + view.block_q - 1) // self.block
        token = torch.arange(view.tokens, device=view.device)
        columns = token[token % self.block >= self.block - self.summary]
        return Selection(shared.view(1, 1, *shared.shape), columns.expand(1, view.heads, -1).contiguous())
