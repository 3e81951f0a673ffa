"""What fell back, over one run or many: units and planned time by kind and layer, and every failed certificate.

Kinds are kept apart: ``expanded``, ``dense by fallback``, ``dense by the router``, and ``kept``: the
router's sparse choice stood. Units are routed units only, so prompts below break-even and tails are not in them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from routesparse.engine.store.owner_view import OwnerView

_CHOSEN = "(SELECT run_key, run_id, prompt_name FROM run WHERE list_contains(?::VARCHAR[], run_id)) r"


def kinds_by_layer(store: OwnerView, run_ids: Sequence[str]) -> pd.DataFrame:
    """Per run, layer and kind: ``units``, their planned ``kernel_us``, how many were ``unmet`` (NULL: unknown) and
    how many ran ``uncertified``."""
    return store.frame(
        f"""
        SELECT r.run_id, c.layer,
               outcome(c.pattern, c.fallback) AS kind,
               count(*) AS units, sum(c.kernel_us) AS kernel_us,
               CASE WHEN count(c.unmet) > 0 THEN count(*) FILTER (WHERE c.unmet) END AS unmet,
               count(*) FILTER (WHERE c.uncertified) AS uncertified
        FROM {_CHOSEN} JOIN head_choice c USING (run_key)
        GROUP BY ALL ORDER BY r.run_id, c.layer, kind
        """,
        [list(run_ids)],
        of=run_ids,
    )


def paid_by_layer(store: OwnerView, run_ids: Sequence[str]) -> pd.DataFrame:
    """Per run and layer: failed certificates (``events``; ``layer_events``: of the layer, not of the head) and the
    predicted time that their steps added."""
    return store.frame(
        f"""
        SELECT r.run_id, f.layer, count(*) AS events, count(*) FILTER (WHERE f.scope = 'layer') AS layer_events,
               sum(f.paid_us) AS paid_us
        FROM {_CHOSEN} JOIN fallback_event f USING (run_key) GROUP BY ALL ORDER BY r.run_id, f.layer
        """,
        [list(run_ids)],
        of=run_ids,
    )


def layer_budgets(store: OwnerView, run_ids: Sequence[str]) -> pd.DataFrame:
    """Per run and layer: planned time against T_l, and whether the plan exceeds it."""
    return store.frame(
        f"""
        SELECT r.run_id, l.layer, l.planned_us, l.limit_us, l.dense_us, l.over_budget
        FROM {_CHOSEN} JOIN layer_run l USING (run_key) ORDER BY r.run_id, l.layer
        """,
        [list(run_ids)],
        of=run_ids,
    )


def layer_certificates(store: OwnerView, run_ids: Sequence[str]) -> pd.DataFrame:
    """Per run and layer of the policy "priced": the layer's certificate, its tau, how many levels the layer climbed."""
    return store.frame(
        f"""
        SELECT r.run_id, l.layer, l.lower_mass, p.tau_layer, l.raised,
               coalesce(layer_uncertified(l.lower_mass, p.tau_layer, c.sparse > 0), false) AS uncertified
        FROM {_CHOSEN} JOIN run p USING (run_key) JOIN layer_run l USING (run_key)
        LEFT JOIN (SELECT run_key, layer, count(*) FILTER (WHERE pattern <> 'dense') AS sparse
                   FROM head_choice GROUP BY run_key, layer) c USING (run_key, layer)
        WHERE p.tau_layer IS NOT NULL ORDER BY r.run_id, l.layer
        """,
        [list(run_ids)],
        of=run_ids,
    )


def least_margin(store: OwnerView, run_ids: Sequence[str]) -> float | None:
    """By how much the nearest certificate of a sparse head or a layer reached its tau; None where there is none."""
    found = store.rows(
        f"""
        SELECT min(margin) FROM (
            SELECT c.lower_mass - p.tau AS margin FROM {_CHOSEN} JOIN run p USING (run_key)
            JOIN head_choice c USING (run_key) WHERE c.pattern <> 'dense'
            UNION ALL
            SELECT l.lower_mass - p.tau_layer FROM run p JOIN layer_run l USING (run_key)
            WHERE list_contains(?::VARCHAR[], p.run_id)
        ) WHERE NOT isnan(margin)
        """,
        [list(run_ids), list(run_ids)],
        of=run_ids,
    )
    return None if found[0][0] is None else float(found[0][0])


def events(store: OwnerView, run_ids: Sequence[str], most: int) -> pd.DataFrame:
    """Units without certified mass, then the dearest failed certificates, ``most`` in all: what was tested, by how much
    it missed, what replaced it, its price. Kind "uncertified": nothing replaced the unit's choice.

    ``deficit`` is tau - lower_mass, both the layer's where ``scope`` is "layer" (NULL: a head's). ``from_*`` and
    ``to_*`` are NULL where the run recorded no candidates.
    """
    return store.frame(
        """
        WITH named AS (SELECT run_key, run_id, prompt_name, tau FROM run WHERE list_contains(?::VARCHAR[], run_id)),
        chosen AS (
            SELECT * FROM (
                SELECT r.run_id, r.prompt_name, f.* FROM named r JOIN fallback_event f USING (run_key)
                UNION ALL BY NAME
                SELECT r.run_id, r.prompt_name, run_key, h.batch_index, h.layer, h.head, h.segment, h.tests AS test,
                       h.candidate AS from_candidate, h.lower_mass, r.tau, 'uncertified' AS kind,
                       h.candidate AS to_candidate, 0.0 AS paid_us, 'head' AS scope
                FROM named r JOIN head_choice h USING (run_key) WHERE h.uncertified
            ) ORDER BY kind = 'uncertified' DESC, paid_us DESC, run_key, layer, head, segment, test LIMIT ?
        ), scores AS (
            SELECT run_key, batch_index, layer, head, segment, candidate, pattern, budget FROM candidate_score
            WHERE run_key IN (SELECT run_key FROM chosen)
        )
        SELECT c.run_id, c.prompt_name, c.batch_index, c.layer, c.head, c.segment, c.test, c.scope, c.lower_mass, c.tau,
               c.tau - c.lower_mass AS deficit, c.kind, a.pattern AS from_pattern, a.budget AS from_budget,
               b.pattern AS to_pattern, b.budget AS to_budget, c.paid_us
        FROM chosen c
        LEFT JOIN scores a ON a.candidate = c.from_candidate AND (a.run_key, a.batch_index, a.layer, a.head, a.segment)
                              = (c.run_key, c.batch_index, c.layer, c.head, c.segment)
        LEFT JOIN scores b ON b.candidate = c.to_candidate AND (b.run_key, b.batch_index, b.layer, b.head, b.segment)
                              = (c.run_key, c.batch_index, c.layer, c.head, c.segment)
        ORDER BY c.kind = 'uncertified' DESC, c.paid_us DESC, c.run_id, c.layer, c.head, c.segment, c.test
        """,
        [list(run_ids), most],
        of=run_ids,
    )
