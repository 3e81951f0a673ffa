"""One head seen from other sides: over the segments of its prompt, and over the other stored runs of its model."""

from __future__ import annotations

import pandas as pd

from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView

MOST_RUNS = 50
_COLUMNS = """
    c.segment, c.first_token, c.tokens, c.pattern, c.budget, c.density, c.gate_statistic, c.lower_mass, c.disagreement,
    c.risk, c.kernel_us, c.fallback, a.mass AS audited_mass, a.mean_error AS audited_error
"""
_AUDIT = "LEFT JOIN audit a USING (run_key, batch_index, layer, head, segment)"


def over_segments(store: OwnerView, unit: queries.Unit) -> pd.DataFrame:
    """The decision of this layer and head in every segment of its prompt, in order."""
    return store.frame(
        f"""
        SELECT {_COLUMNS} FROM run JOIN head_choice c USING (run_key) {_AUDIT}
        WHERE run.run_id = ? AND c.layer = ? AND c.head = ? AND c.batch_index = ? ORDER BY c.segment
        """,
        [unit.run_id, unit.layer, unit.head, unit.batch_index],
        of=[unit.run_id],
    )


def over_runs(store: OwnerView, unit: queries.Unit) -> pd.DataFrame:
    """The same layer, head and segment number in the newest runs of the same weights, this one included.

    Weights count by their revision: another checkpoint's head of the same number is another head.
    """
    return store.frame(
        f"""
        WITH same AS (
            SELECT run_key, run_id, prompt_name, domain, tau, created_at FROM run
            WHERE model_revision = (SELECT model_revision FROM run WHERE run_id = ?)
            ORDER BY run_id = ? DESC, created_at DESC LIMIT {MOST_RUNS}
        )
        SELECT run_id, prompt_name, domain, tau, {_COLUMNS}
        FROM same JOIN head_choice c USING (run_key) {_AUDIT}
        WHERE c.layer = ? AND c.head = ? AND c.segment = ? AND c.batch_index = 0
        ORDER BY created_at DESC, run_key DESC
        """,
        [unit.run_id, unit.run_id, unit.layer, unit.head, unit.segment],
    )
