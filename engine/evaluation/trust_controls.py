"""What must lose coverage: the policy or the calibration done wrongly, replayed from the recorded candidates.

METHOD's controls are about *selection*: a candidate taken because its gate statistic g is high enough is one whose g
tends to be too high (winner's curse). So each is judged on the router's own choice, before step 5; after step 5 the
effect is smaller, because the certificate's rows are fresh and send the most flattered choices away.

- all candidates: delta from the residuals g - g* of every candidate of fold B, or of those that the gate admits
- aligned rows: the router scores the last rows of query blocks instead of random ones
- another domain's delta
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.calibration import Calibration, conformal_delta
from routesparse.engine.coverage_stats import summarise
from routesparse.engine.errors import InputError
from routesparse.engine.evaluation.trust_data import stacked
from routesparse.engine.evaluation.trust_plan import BUCKETS, DOMAINS

CONFIDENCE = 0.95
REPLAYED = 0.999  # share of first choices that the rounded records must give again
MASS_EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0)


class Candidates:
    """Every candidate's statistics and truth over some units, and what a router would choose by them."""

    def __init__(self, units: pd.DataFrame, gate: float) -> None:
        self.units, self.gate_threshold = units, gate
        recent = stacked(units, "recent_all")
        self.gate = np.minimum(stacked(units, "mass_all"), recent)
        self.aligned = np.minimum(stacked(units, "aligned_all"), recent)
        self.true = stacked(units, "true_all")
        self.target = np.minimum(self.true, recent)
        self.cost = stacked(units, "kernel_us_all")
        place = np.arange(self.cost.shape[1])
        self.is_dense = place == units["dense"].to_numpy()[:, None]
        self.sparse = (place < units["dense"].to_numpy()[:, None]) & np.isfinite(self.cost)

    def choose(self, statistic: np.ndarray) -> np.ndarray:
        """int64 [units]: the cheapest candidate whose statistic [units, C] reaches lambda; dense otherwise."""
        admissible = (self.sparse & (statistic >= self.gate_threshold)) | self.is_dense
        return np.asarray(np.where(admissible, self.cost, np.inf).argmin(1))

    def residuals(self, kept: np.ndarray, statistic: np.ndarray | None = None) -> list[np.ndarray]:
        """statistic - g* of the kept sparse candidates (bool [units, C]), one array per window."""
        off = (self.gate if statistic is None else statistic) - self.target
        number = self.units["number"].to_numpy()
        return [
            off[rows][kept[rows] & self.sparse[rows]] for rows in (number == n for n in np.unique(number))
        ]

    def only(self, choice: np.ndarray) -> np.ndarray:
        """bool [units, C] of one candidate a unit."""
        return np.asarray(np.arange(self.cost.shape[1]) == choice[:, None])

    def coverage(
        self, choice: np.ndarray, delta: float, statistic: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Share of the chosen sparse candidates with statistic - g* <= delta."""
        if not np.isfinite(delta):
            return {"delta": None}
        kept = self.only(choice) & self.sparse
        some = kept.any(1)
        off = ((self.gate if statistic is None else statistic) - self.target)[kept]
        return {"delta": delta, **cover(self.units[some], off <= delta)}


def cover(units: pd.DataFrame, covered: pd.Series | np.ndarray) -> dict[str, Any]:
    """``coverage_stats.summarise`` by window and cluster (``trust_plan.cluster``)."""
    if not len(units):
        return {}
    return vars(
        summarise(np.asarray(covered, dtype=float), units["number"].to_numpy(), units["cluster"].to_numpy())
    )


def controls(
    units: pd.DataFrame, fold_b: pd.DataFrame, gate: float, calibrations: dict[str, Calibration]
) -> dict[str, Any]:
    """By domain on the first length bucket: each control beside what is done right."""
    least, most = BUCKETS[0]
    tests, folds = (u[(u["tokens"] >= least) & (u["tokens"] <= most)] for u in (units, fold_b))
    found: dict[str, Any] = {
        domain: _of_domain(
            Candidates(tests[tests["domain"] == domain], gate),
            Candidates(folds[folds["domain"] == domain], gate),
        )
        for domain in DOMAINS
    }
    sparse = tests[tests["is_sparse"]]
    found["across"] = {
        name: {
            domain: {
                "delta": c.delta(most, CONFIDENCE),
                **cover(rows, rows["residual"] <= c.delta(most, CONFIDENCE)),
            }
            for domain, rows in sparse.groupby("domain")
        }
        for name, c in calibrations.items()
    }
    return found


def _of_domain(test: Candidates, fold_b: Candidates) -> dict[str, Any]:
    """Errors: InputError where the recorded candidates do not give the recorded first choices."""
    routed, made = test.choose(test.gate), fold_b.choose(fold_b.gate)
    replayed = float((routed == test.units["first"].to_numpy()).mean())
    if replayed < REPLAYED:
        raise InputError(
            f"only {replayed:.1%} of the router's choices follow from the records; measure again with this version"
        )
    kept = test.units["chosen"].to_numpy()
    deltas = {
        "selected": conformal_delta(fold_b.residuals(fold_b.only(made)), CONFIDENCE),
        "all_admissible": conformal_delta(fold_b.residuals(fold_b.gate >= fold_b.gate_threshold), CONFIDENCE),
        "all_candidates": conformal_delta(fold_b.residuals(fold_b.sparse), CONFIDENCE),
    }
    aligned = test.choose(test.aligned)
    sparse = test.units[test.units["is_sparse"]]
    certified = sparse[sparse["aligned_lower"].notna()]
    return {
        "routed_choice": {name: test.coverage(routed, delta) for name, delta in deltas.items()},
        "kept_choice": {name: test.coverage(kept, delta) for name, delta in deltas.items()},
        "aligned_rows": {
            **test.coverage(aligned, deltas["selected"], test.aligned),
            "below_tau": _below(test, aligned),
            "below_tau_random_rows": _below(test, routed),
            "in_prompt": cover(certified, certified["true_mass"] >= certified["aligned_lower"]),
            "in_prompt_random_rows": cover(certified, certified["true_mass"] >= certified["lower"]),
            "omitted_by_offset": np.mean(sparse["omitted_by_offset"].to_list(), axis=0).tolist(),
        },
        "spread_by_mass": _spread(test),
        "replayed": replayed,
    }


def _below(candidates: Candidates, choice: np.ndarray, tau: float = 0.9) -> float:
    """Share of the chosen sparse candidates whose body mean mass is below tau."""
    kept = candidates.only(choice) & candidates.sparse
    return float((candidates.true[kept] < tau).mean())


def _spread(candidates: Candidates) -> list[dict[str, float]]:
    """How far the mean of the routing rows lies off the body's, by the candidate's true mass."""
    true = candidates.true[candidates.sparse]
    off = stacked(candidates.units, "mass_all")[candidates.sparse] - true
    place = np.digitize(true, MASS_EDGES[1:-1])
    return [
        {
            "from": MASS_EDGES[i],
            "to": MASS_EDGES[i + 1],
            "candidates": int((place == i).sum()),
            "sd": float(off[place == i].std()),
            "q95": float(np.quantile(off[place == i], 0.95)),
        }
        for i in range(len(MASS_EDGES) - 1)
        if (place == i).any()
    ]
