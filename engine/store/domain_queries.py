"""What the page Domains reads: the runs that may be compared, and what each of their heads reads."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView


def runs(store: OwnerView) -> pd.DataFrame:
    """Every routed run of one prompt, newest first."""
    return store.frame(
        """
        SELECT run.run_id, created_at, model, model_revision, config_json, prompt_name, prompt_sha256, domain, tokens,
               layers, heads, block_k, device, dtype, policy, price, tau, tau_layer, budget, calibration, audit_depth,
               probe_mode, tuned_price, density, coverage, delta, drift_alarm, loss_nats,
               loss_bound, loss_fit, coalesce(loss_alarm, false) AS loss_alarm,
               config_json->>'rope' AS rope, origin = 'sample' AS is_sample
        FROM run JOIN ingested_bundle USING (bundle_id) WHERE routed AND batch = 1
        ORDER BY created_at DESC, run_key DESC
        """
    )


def heads(store: OwnerView, run_ids: Sequence[str]) -> pd.DataFrame:
    """A row a run and head: ``density``, the mean over its segments by their causal area; ``loss_nats``: its part of
    the run's predicted loss (NULL: not split, the model is not fitted); and method/shape.py's shares as recorded."""
    found = store.frame(
        """
        SELECT run_id, domain, layer, head, sum(c.loss_nats) AS loss_nats,
               avg(sink_share) AS sink, avg(local_share) AS "local", avg(vertical_share) AS vertical,
               avg(slash_share) AS slash, avg(scattered_share) AS scattered,
               sum(c.density * c.tokens * (first_token + c.tokens / 2.0))
               / sum(c.tokens * (first_token + c.tokens / 2.0)) AS density
        FROM (SELECT run_key, run_id, domain, layers, heads FROM run WHERE list_contains(?::VARCHAR[], run_id)) r
        JOIN head_choice c USING (run_key)
        WHERE layer >= 0 AND layer < layers AND head >= 0 AND head < heads
        GROUP BY run_id, domain, layer, head ORDER BY run_id, layer, head
        """,
        [list(run_ids)],
        of=run_ids,
    )
    return queries.measured(found)
