"""Numbers that are part of an operation's definition, the same for its naive twin and its kernel.

Changing one changes decisions: the engine stamps calibrations with them. torch is not loaded.
"""

from __future__ import annotations

SCORE_BINS = 256  # equal bins of a row's block scores, by which block-sparse budgets are filled (level_maps)
LISTED_SHARE = (
    0.625  # of the longest row's KV blocks, above which a row is dense instead of listed (lower_plan)
)
# Of the variance of a KV block's keys, in the logit that stands for them (block_score). 1 is right for normal keys and
# many of them; the 64 of a block fall short of it.
VARIANCE_WEIGHT = 0.75
SCORE_ROWS = 32  # of each query block, by which KV blocks are scored (block_score)
# A KV block also counts as what the recent rows read of it, divided by this: the question's columns join every row
# (level_maps).
QUESTION_FACTOR = 8.0
