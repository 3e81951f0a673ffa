"""What a page on domains reads: the runs that may be compared, what each of their heads reads, and probe pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from routesparse.engine.errors import InputError
from routesparse.engine.store import queries, thumbnail
from routesparse.engine.store.owner_view import OwnerView

_PICTURE = ("layer", "head", "batch_index", "rows", "columns", "pool", "scale", "positions", "kinds", "mass")


@dataclass(frozen=True)
class Picture:
    """Block mass of one unit's routing rows, float32 [rows, columns]; ``pool`` KV blocks a column, by maximum."""

    layer: int
    head: int
    mass: np.ndarray
    positions: np.ndarray  # int32 [rows], tokens
    pool: int


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
    the run's predicted loss (NULL: not split, the model is not fitted); ``local_band``: its attention there."""
    found = store.frame(
        """
        SELECT run_id, domain, layer, head, sum(c.loss_nats) AS loss_nats,
               avg(local_band) AS local_band,
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


def pictures(store: OwnerView, run_id: str) -> list[Picture]:
    """The probe of every unit, as the bundle has it; none where the bundle is gone. Errors: InputError."""
    place = store.bundle(run_id)
    if place is None:
        return []
    found = []
    try:
        for row in pq.read_table(place / "probe.parquet", columns=list(_PICTURE)).to_pylist():
            mass = thumbnail.full_mass(row["mass"], row["rows"], row["columns"], row["scale"])
            routing = np.frombuffer(row["kinds"], np.uint8) == thumbnail.KINDS.index("routing")
            positions = np.frombuffer(row["positions"], "<i4")
            found.append(Picture(row["layer"], row["head"], mass[routing], positions[routing], row["pool"]))
    # ValueError: bytes of another number than the shape says, in a file changed since it was taken in.
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"the probe of run {run_id} can't be read ({type(error).__name__}); copy the bundle again"
        ) from error
    return found
