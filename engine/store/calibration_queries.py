"""How stored runs stand to what was measured beforehand: planned against measured layer time, and drift."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from routesparse.engine.store.owner_view import OwnerView

MOST_RUNS = 50


def layer_times(store: OwnerView, profile: str) -> pd.DataFrame:
    """Per layer of the newest MOST_RUNS runs: what the profile planned, what was measured, probe to kernel, in us."""
    return store.frame(
        """
        SELECT run.run_id, run.prompt_name, run.tokens, run.created_at, l.layer, l.planned_us,
               l.probe_us + l.index_us + l.route_us + l.kernel_us AS measured_us, l.dense_us
        FROM (SELECT * FROM run WHERE profile = ? AND routed ORDER BY created_at DESC, run_key DESC LIMIT ?) run
        JOIN layer_run l USING (run_key) ORDER BY run.created_at, run.run_key, l.layer
        """,
        [profile, MOST_RUNS],
    )


def drift(store: OwnerView, calibrations: Sequence[str]) -> pd.DataFrame:
    """The runs that used one of the calibrations, newest first, with their drift (NULL: not assessed)."""
    return store.frame(
        """
        SELECT run_id, prompt_name, domain, tokens, calibration, calibration_mismatch, delta, drift_distance, drift_p,
               drift_alarm, coverage
        FROM run WHERE list_contains(?::VARCHAR[], calibration) AND routed ORDER BY created_at DESC, run_key DESC
        """,
        [list(calibrations)],
    )


def profiles_in_use(store: OwnerView) -> list[str]:
    """The names of the latency profiles that stored runs were planned with, the most used first."""
    found = store.rows(
        "SELECT profile FROM run WHERE routed GROUP BY profile ORDER BY count(*) DESC, profile"
    )
    return [row[0] for row in found]
