"""What the dense audit says about the three claims, per unit and summed up per prompt, over one run or many.

The truths: the in-prompt certificate speaks about the body's mean mass (``audited_mass``); the conformal one about
g* = min(body mean, recent mean), whose recent part is a census of the probe and so known exactly; the row statement
about single rows (``row_covered``, the share of audited rows at or above it). Dense units make no claim.

So g* needs no second audit. "All runs" means runs of the same model revision. The store knows prompts, not documents:
intervals on pages resample prompts, those of the studies documents or, for code and docs, projects.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.queries import measured

_UNITS = """
    SELECT r.run_id, r.prompt_name, c.batch_index, c.layer, c.head, c.segment, c.pattern, c.budget, c.density,
           c.gate_statistic, c.lower_mass, c.conformal_lower_mass, c.row_lower_mass,
           a."rows" AS audit_rows, a.mass AS audited_mass,
           a.min_mass AS audited_min_mass, gate_statistic(a.mass, c.recent_mass) AS audited_gate,
           c.gate_statistic - gate_statistic(a.mass, c.recent_mass) AS residual,
           CASE WHEN c.conformal_lower_mass > 0 THEN c.gate_statistic - c.conformal_lower_mass END AS delta,
           a.covered, gate_statistic(a.mass, c.recent_mass) >= c.conformal_lower_mass AS conformal_covered,
           a.row_covered,
           a.mean_error, a.max_error, a.bound_paper, a.bound_tight, a.violations, a.forward_error,
           a.executed_error
    FROM (SELECT run_key, run_id, prompt_name, created_at FROM run WHERE list_contains(?::VARCHAR[], run_id)) r
    JOIN audit a USING (run_key)
    JOIN head_choice c USING (run_key, batch_index, layer, head, segment)
    WHERE c.pattern <> 'dense'
"""


def units(store: OwnerView, run_ids: Sequence[str], most: int) -> pd.DataFrame:
    """The audited sparse units of the runs, each with its three claims and the truths; a random ``most`` of them.

    ``residual`` is g - g*, ``delta`` the delta_q that the conformal claim used (NULL: none, or clipped at 0).
    """
    found = store.frame(
        f"SELECT * FROM ({_UNITS}) USING SAMPLE reservoir({int(most)} ROWS) REPEATABLE (0)",
        [list(run_ids)],
        of=run_ids,
    )
    return measured(found).sort_values(["run_id", "layer", "head", "segment"], ignore_index=True)


def worst(store: OwnerView, run_ids: Sequence[str], most: int) -> pd.DataFrame:
    """The ``most`` audited units of the largest mean output error."""
    found = store.frame(
        f"SELECT * FROM ({_UNITS}) ORDER BY mean_error DESC, run_id, layer, head, segment LIMIT ?",
        [list(run_ids), most],
        of=run_ids,
    )
    return measured(found)


def coverage(store: OwnerView, run_ids: Sequence[str]) -> pd.DataFrame:
    """Per run, family and layer: how many audited units make each claim, and how many of these are covered.

    Columns ``in_prompt_units``, ``in_prompt_covered`` and so on for ``conformal`` and ``row`` (there a sum of shares).
    """
    return store.frame(
        f"""
        SELECT run_id, pattern, layer, count(*) AS units, sum(audit_rows) AS audit_rows, sum(violations) AS violations,
               max(executed_error) AS executed_error,
               count(covered) AS in_prompt_units, count(*) FILTER (WHERE covered) AS in_prompt_covered,
               count(conformal_covered) AS conformal_units,
               count(*) FILTER (WHERE conformal_covered) AS conformal_covered,
               count(row_covered) AS row_units, coalesce(sum(row_covered), 0) AS row_covered
        FROM ({_UNITS}) GROUP BY ALL ORDER BY run_id, pattern, layer
        """,
        [list(run_ids)],
        of=run_ids,
    )


def layer_claims(store: OwnerView, run_ids: Sequence[str]) -> pd.DataFrame:
    """Per run and layer of the policy "priced": the layer's certificate and the audited truth beside it.

    ``lower_mass`` is the least claim of the layer's segments and prompts, ``audited_mass`` the least mean over heads
    (dense heads count 1), NULL where a sparse head was not audited. ``claims`` counts the segments and prompts that
    ran sparse. ``covered`` is NULL where either is missing, and where the least of several claims is no larger than
    the least truth: another segment's claim was larger, and is not kept. A truth below it broke its own claim.
    """
    return store.frame(
        """
        WITH chosen AS (
            SELECT run_key, run_id, prompt_name, tau_layer, created_at FROM run
            WHERE tau_layer IS NOT NULL AND list_contains(?::VARCHAR[], run_id)
        ), truth AS (
            SELECT run_key, layer, CASE WHEN bool_and(mean_mass IS NOT NULL) THEN min(mean_mass) END AS audited_mass,
                   sum(sparse) AS sparse_units, count(*) FILTER (WHERE sparse > 0) AS claims
            FROM (
                SELECT c.run_key, c.layer, count(*) FILTER (WHERE c.pattern <> 'dense') AS sparse,
                       CASE WHEN bool_and(c.pattern = 'dense' OR a.mass IS NOT NULL)
                            THEN avg(CASE WHEN c.pattern = 'dense' THEN 1.0 ELSE a.mass END) END AS mean_mass
                FROM chosen JOIN head_choice c USING (run_key)
                LEFT JOIN audit a USING (run_key, batch_index, layer, head, segment)
                GROUP BY c.run_key, c.layer, c.segment, c.batch_index
            ) GROUP BY run_key, layer
        )
        SELECT r.run_id, r.prompt_name, l.layer, l.lower_mass, r.tau_layer, l.raised, t.audited_mass,
               CASE WHEN t.claims = 1 OR t.audited_mass < l.lower_mass THEN t.audited_mass >= l.lower_mass END
               AS covered,
               t.sparse_units, t.claims,
               coalesce(layer_uncertified(l.lower_mass, r.tau_layer, t.sparse_units > 0), false) AS uncertified
        FROM chosen r JOIN layer_run l USING (run_key) LEFT JOIN truth t USING (run_key, layer)
        ORDER BY r.run_id, l.layer
        """,
        [list(run_ids)],
        of=run_ids,
    )


def gaps(store: OwnerView, run_ids: Sequence[str]) -> pd.DataFrame:
    """One row: median and 95th percentile of truth minus claim, and of bound over error for both error bounds.

    NULL where nothing was measured. Looseness leaves out units without error.
    """
    return store.frame(
        f"""
        SELECT median(audited_mass - lower_mass) AS in_prompt_gap,
               quantile_cont(audited_mass - lower_mass, 0.95) AS in_prompt_gap_p95,
               median(audited_gate - conformal_lower_mass) AS conformal_gap,
               quantile_cont(audited_gate - conformal_lower_mass, 0.95) AS conformal_gap_p95,
               median(bound_tight / max_error) FILTER (WHERE max_error > 0) AS tight_looseness,
               quantile_cont(bound_tight / max_error, 0.95) FILTER (WHERE max_error > 0) AS tight_looseness_p95,
               median(bound_paper / max_error) FILTER (WHERE max_error > 0) AS paper_looseness,
               quantile_cont(bound_paper / max_error, 0.95) FILTER (WHERE max_error > 0) AS paper_looseness_p95,
               avg(mean_error) AS mean_error, max(max_error) AS max_error, count(*) AS units
        FROM ({_UNITS})
        """,
        [list(run_ids)],
        of=run_ids,
    )


def forward_errors(store: OwnerView, run_id: str) -> pd.DataFrame:
    """Per layer the error of its attention output against the dense forward's, layers before included; empty where
    the run had no full audit."""
    found = store.frame(
        """
        SELECT l.layer, l.forward_error FROM run JOIN layer_run l USING (run_key)
        WHERE run.run_id = ? AND l.forward_error IS NOT NULL ORDER BY l.layer
        """,
        [run_id],
        of=[run_id],
    )
    return measured(found).dropna(ignore_index=True)
