"""What comparing reads: the decisions of several runs, all candidates of one, and who chose what in which domain."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from routesparse.engine.store.owner_view import OwnerView

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


def candidates_of_run(store: OwnerView, run_id: str) -> pd.DataFrame:
    """Every candidate of every unit of one run, sorted by unit and candidate: what a replay of the router reads."""
    return store.frame(
        f"""
        SELECT s.batch_index, s.layer, s.head, s.segment, s.candidate, s.pattern, s.budget, s.density, s.mass,
               s.recent_mass, s.disagreement, s.predicted_error, s.kernel_us, s.chosen
        FROM {_CHOSEN} JOIN candidate_score s USING (run_key)
        ORDER BY s.batch_index, s.layer, s.head, s.segment, s.candidate
        """,
        [[run_id]],
    )


def patterns_by_domain(store: OwnerView, run_ids: Sequence[str]) -> pd.DataFrame:
    """Per domain, layer, head and pattern the number of units that took it; runs without a domain are left out."""
    return store.frame(
        f"""
        SELECT r.domain, c.layer, c.head, c.pattern, count(*) AS units
        FROM {_CHOSEN} JOIN head_choice c USING (run_key) WHERE r.domain IS NOT NULL
        GROUP BY ALL ORDER BY r.domain, c.layer, c.head, c.pattern
        """,
        [list(run_ids)],
    )
