"""The constants that steer what a head is given, beside the configuration and the pattern library.

A calibration's delta belongs to the candidates that one policy selected, so ``constants`` is part of its stamp:
whoever changes a value here, or one that it reads, has to calibrate again. torch is not loaded, since the dashboard
checks stamps.
"""

from __future__ import annotations

from routesparse.engine.method import solvers
from routesparse.kernels import rules
from routesparse.kernels.betting_bound.naive import BET_CAP, BISECTIONS

# KV blocks before the diagonal that every plan reads. Without one, the first row of a query block saw a single key of
# its own text under a block-sparse plan; the mean mass hid that, and 4 of 20 answers of the kind "a uuid among uuids"
# (niah_multikey_3, 8,192 tokens, default setting) came out with a wrong digit. With it all 20 equal dense attention's,
# at the same density (.483 for .489).
LOCAL_BLOCKS = 1
# Offsets below this are left out of the column marginals: every plan reads the diagonal blocks, so a column ranked for
# its mass there would buy nothing.
LOCAL_OFFSETS = 128
LOCAL_BAND_TOKENS = 512  # of the descriptor "local band", by which prompts drift from a calibration's
# Of its cost, at which dense is compared: a sparse candidate that costs as much as dense is never taken.
DENSE_SHARE = 1 - 1e-9
# An expansion must cost at least so many times as much, or it buys too little mass to be worth a test.
NEXT_BUDGET = 1.25

# Policy "priced": of the mass that a head's floor at the price loses by the probe, what another candidate may lose. At
# 1 (a mean as good as the floor's) other families took over heads whose rare rows only the floor serves, at 1.2 times
# the KL for equal area; at .5 none did on the bundled model (development prompts, 32,768 tokens).
OTHER_LOSS = 0.5


def constants() -> dict[str, float]:
    """Every constant that steers a choice, by its name in a calibration's stamp."""
    return {
        "local_blocks": LOCAL_BLOCKS,
        "local_offsets": LOCAL_OFFSETS,
        "local_band_tokens": LOCAL_BAND_TOKENS,
        "dense_share": DENSE_SHARE,
        "next_budget": NEXT_BUDGET,
        "other_loss": OTHER_LOSS,
        "bet_cap": BET_CAP,
        "bisections": BISECTIONS,
        "score_bins": rules.SCORE_BINS,
        "score_rows": rules.SCORE_ROWS,
        "score_clusters": rules.SCORE_CLUSTERS,
        "long_score_rows": rules.LONG_SCORE_ROWS,
        "long_score_clusters": rules.LONG_SCORE_CLUSTERS,
        "normaliser_step": rules.NORMALISER_STEP,
        "long_keys": rules.LONG_KEYS,
        "variance_weight": rules.VARIANCE_WEIGHT,
        "question_factor": rules.QUESTION_FACTOR,
        "listed_share": rules.LISTED_SHARE,
        **solver_constants(),
    }


def solver_constants() -> dict[str, float]:
    """The constants that only eq. 6 reads."""
    return {
        "repair_rounds": solvers.REPAIR_ROUNDS,
        "multipliers": solvers.MULTIPLIERS,
        "search_rounds": solvers.SEARCH_ROUNDS,
        "pair_rounds": solvers.PAIR_ROUNDS,
    }
