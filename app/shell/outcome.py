"""What came of a run, as a row of a table: its verdict, its output error and the certified share, on Runs and Jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from routesparse.app.shell import verdict_bar
from routesparse.app.ui.glossary import TERMS
from routesparse.engine.verdict import Verdict

LABELS = {"verdict": "Verdict", "error": "Error", "certified": "Certified"}
HELP = {
    "verdict": TERMS["verdict"],
    "error": "Output error relative to dense, over the audited rows: mean over heads",
    "certified": "Sparse units whose own certificate reaches its τ, rounded down",
}
FORMATS = {"error": "%.2g", "certified": "%.1f %%"}


def columns(runs: pd.DataFrame, found: Sequence[Verdict]) -> dict[str, pd.Series]:
    """LABELS' columns of rows of queries.runs; NaN is not measured. found: a verdict a run."""
    # Of lost decisions nobody knows whether they were certified.
    sparse = runs["sparse_units"].where((runs["sparse_units"] > 0) & (runs["stored_units"] >= runs["units"]))
    return {
        "verdict": pd.Series([verdict_bar.cell(one) for one in found], runs.index, dtype=object),
        "error": runs["mean_error"].astype(float),
        # Rounded down: 100 % must mean all of them.
        "certified": np.floor(1000 * (1 - runs["uncertified_units"] / sparse)) / 10,
    }
