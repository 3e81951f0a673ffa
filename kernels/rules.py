"""Numbers that are part of an operation's definition, the same for its naive twin and its kernel.

Changing one changes decisions: the engine stamps calibrations with them. torch is not loaded.
"""

from __future__ import annotations

DENSE = -1  # the number of a candidate that is no family's
NEVER = 255  # in a level map: no budget of the family reads this block
SCORE_BINS = 256  # equal bins of a row's block scores, by which block-sparse budgets are filled (level_maps)
# Of the longest row's KV blocks, above which a row is dense instead of listed (lower_plan).
LISTED_SHARE = 0.625
# Of the variance of a KV block's keys, in the logit that stands for them (block_score). 1 is right for normal keys and
# many of them; the 64 of a block fall short of it.
VARIANCE_WEIGHT = 0.75
# Rows of each query block, by which KV blocks are scored, and clusters of each KV block's keys (block_score). Look-ups
# in the prompt's body at 32,768 tokens and .17 of the area (tasks relay and list; dense 99 and 100 % right): one
# cluster and rows by a stride 72 and 96 %, half of them rows that stand out 80 and 94, and two clusters 98.5 and 99,
# with the same loss on text. The score's cost grows with the square of the keys, so less beyond LONG_KEYS.
SCORE_ROWS, SCORE_CLUSTERS = 32, 2
LONG_SCORE_ROWS, LONG_SCORE_CLUSTERS = 16, 1
LONG_KEYS = 65_536
# One in so many tiles of KV blocks between the sink's and the query's own counts in a row's normaliser, for all of them
# (block_score).
NORMALISER_STEP = 4
# A KV block also counts as what the recent rows read of it, divided by this: the question's columns join every row
# (level_maps).
QUESTION_FACTOR = 8.0
