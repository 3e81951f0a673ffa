"""The candidates that a synthetic run chooses among, and the levels that its certificates are held to."""

from __future__ import annotations

# pattern, budget, density at 16,384 tokens
LIBRARY: tuple[tuple[str, str, float], ...] = (
    ("a_shape", "sink 128, local 512", 0.010),
    ("a_shape", "sink 128, local 1,024", 0.018),
    ("a_shape", "sink 128, local 2,048", 0.034),
    ("a_shape", "sink 128, local 4,096", 0.066),
    ("vertical_slash", "64 columns, 256 diagonals", 0.021),
    ("vertical_slash", "128 columns, 512 diagonals", 0.040),
    ("vertical_slash", "256 columns, 1,024 diagonals", 0.075),
    ("vertical_slash", "512 columns, 2,048 diagonals", 0.140),
    ("vertical_slash", "1,000 columns, 4,096 diagonals", 0.260),
    ("vertical_slash", "2,000 columns, 6,096 diagonals", 0.400),
    ("block_sparse", "8 blocks", 0.050),
    ("block_sparse", "16 blocks", 0.095),
    ("block_sparse", "32 blocks", 0.180),
    ("block_sparse", "48 blocks", 0.260),
    ("block_sparse", "64 blocks", 0.330),
    ("block_sparse", "96 blocks", 0.480),
    ("floor", "blocks that hold 0.8 % of the rows or more", 0.070),
    ("floor", "blocks that hold 0.4 % of the rows or more", 0.120),
    ("floor", "blocks that hold 0.2 % of the rows or more", 0.210),
    ("floor", "blocks that hold 0.1 % of the rows or more", 0.340),
    ("dense", "all keys", 1.0),
)
DENSE = len(LIBRARY) - 1
TAU = 0.9
GATE = 0.925
