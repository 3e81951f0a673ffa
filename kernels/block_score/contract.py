"""What the score's twin and its kernels share."""

from __future__ import annotations

LEAST_SCORE = -20.0  # of logarithms; a block without a share has it, too
TILE = 64  # descriptions of a tile, by which the normaliser's sum is sampled
ALIGNED_QUERY_BLOCKS = 8  # whose normalisers sample the same tiles
