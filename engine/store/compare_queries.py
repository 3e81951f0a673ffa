"""What several runs say side by side: their decisions, one head in its other segments and in other runs, sweeps."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView

MOST_RUNS = 1_000
_COLUMNS = """
    c.segment, c.first_token, c.tokens, c.pattern, c.budget, c.density, c.gate_statistic, c.lower_mass, c.disagreement,
    c.risk, c.kernel_us, c.fallback, c.loss_nats, a.mass AS audited_mass, a.mean_error AS audited_error
"""
# By which a head's figures may be compared.
SETTINGS = "concat_ws('|', policy, price, tau, tau_layer, budget, calibration, probe_mode, block_q, block_k)"
_AUDIT = "LEFT JOIN audit a USING (run_key, batch_index, layer, head, segment)"
_CHOSEN = "(SELECT run_key, run_id, domain FROM run WHERE list_contains(?::VARCHAR[], run_id)) r"


def choices_of_runs(store: OwnerView, run_ids: Sequence[str]) -> pd.DataFrame:
    """Every decision of the runs with what was audited of it (NULL where it was not)."""
    return store.frame(
        f"""
        SELECT r.run_id, c.batch_index, c.layer, c.head, c.segment, c.candidate, c.pattern, c.budget, c.density,
               c.gate_statistic, c.lower_mass, c.conformal_lower_mass, c.disagreement, c.risk, c.kernel_us, c.fallback,
               c.uncertified,
               a.mass AS audited_mass, a.mean_error AS audited_error
        FROM {_CHOSEN} JOIN head_choice c USING (run_key)
        LEFT JOIN (SELECT * FROM audit WHERE run_key IN
                   (SELECT run_key FROM run WHERE list_contains(?::VARCHAR[], run_id))) a
               USING (run_key, batch_index, layer, head, segment)
        ORDER BY r.run_id, c.batch_index, c.layer, c.head, c.segment
        """,
        [list(run_ids), list(run_ids)],
    )


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
    """The same layer, head and segment number in the newest runs of the same weights, this one included: of each prompt
    under the same settings the newest. ``alike``: the settings are this run's.

    Weights count by their revision: another checkpoint's head of the same number is another head.
    """
    return store.frame(
        f"""
        WITH this AS (SELECT model_revision AS weights, {SETTINGS} AS settings FROM run WHERE run_id = ?),
        same AS (
            SELECT run_key, run_id, prompt_name, domain, tau, created_at, {SETTINGS} = this.settings AS alike
            FROM run, this WHERE model_revision = weights
            QUALIFY row_number() OVER (
                PARTITION BY prompt_sha256, {SETTINGS} ORDER BY run_id = ? DESC, created_at DESC, run_key DESC) = 1
            ORDER BY alike DESC, created_at DESC LIMIT {MOST_RUNS}
        )
        SELECT run_id, prompt_name, domain, tau, alike, {_COLUMNS}
        FROM same JOIN head_choice c USING (run_key) {_AUDIT}
        WHERE c.layer = ? AND c.head = ? AND c.segment = ? AND c.batch_index = 0
        ORDER BY created_at DESC, run_key DESC
        """,
        [unit.run_id, unit.run_id, unit.layer, unit.head, unit.segment],
    )


def runs_of(store: OwnerView, sweep_id: str) -> pd.DataFrame:
    """The stored runs of one sweep, oldest first, with the columns of queries.runs; empty where there are none."""
    found = store.rows("SELECT run_id FROM run WHERE sweep = ?", [sweep_id])
    run_ids = tuple(row[0] for row in found) or ("",)  # which no run has
    return queries.runs(store, queries.RunFilter(run_ids=run_ids)).iloc[::-1].reset_index(drop=True)


def sweeps(store: OwnerView) -> pd.DataFrame:
    """The sweeps of one prompt that are stored, the newest first: ``sweep``, ``prompt_name``, ``runs`` (how many)."""
    return store.frame(
        """
        SELECT sweep, min(prompt_name) AS prompt_name, count(*) AS runs
        FROM run WHERE sweep IS NOT NULL GROUP BY sweep HAVING count(DISTINCT prompt_sha256) = 1
        ORDER BY min(created_at) DESC, sweep
        """
    )
