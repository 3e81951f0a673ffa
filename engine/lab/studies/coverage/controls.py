"""What must lose coverage: the policy or the calibration done wrongly, replayed from the recorded candidates.

The controls are about *selection*: a candidate taken because its gate statistic g is high enough is one whose g
tends to be too high (winner's curse). So each is judged on the router's own choice, before step 5; after step 5 the
effect is smaller, because the certificate's rows are fresh and send the most flattered choices away.

- all candidates: delta from the residuals g - g* of every candidate of fold B, or of those that the gate admits
- aligned rows: the router scores the last rows of query blocks instead of random ones
- another domain's delta

A unit's lambda is the g of its floor at the price, read from the same rows: a router that reads other rows has another
lambda too. The replay must give the recorded choice. What the controls showed, also under the policy "certified":
data/results/TRUST.md and data/results/notes/certificates.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.calibration.artifact import Calibration, conformal_delta
from routesparse.engine.errors import InputError
from routesparse.engine.lab.studies.coverage.data import stacked
from routesparse.engine.lab.studies.coverage.plan import BUCKETS, DOMAINS
from routesparse.engine.method.router import admissible, cheapest_admissible, gate_statistic, priced_threshold
from routesparse.engine.stats.coverage import summarise

CONFIDENCE = 0.95
REPLAYED = 0.999  # share of first choices that the rounded records must give again
MASS_EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0)


class Candidates:
    """Every candidate's statistics and truth over some units, and what a router would choose by them."""

    def __init__(self, units: pd.DataFrame) -> None:
        self.units = units
        recent = stacked(units, "recent_all")
        self.gate_statistic = gate_statistic(stacked(units, "mass_all"), recent)
        self.aligned = gate_statistic(stacked(units, "aligned_all"), recent)
        self.true = stacked(units, "true_all")
        self.target = gate_statistic(self.true, recent)
        self.cost = stacked(units, "kernel_us_all")
        self.dense = units["dense"].to_numpy()
        self.is_dense = self.only(self.dense)
        self.sparse = (np.arange(self.cost.shape[1]) < self.dense[:, None]) & np.isfinite(self.cost)

    def threshold(self, statistic: np.ndarray) -> np.ndarray:
        """lambda of each unit's candidates, [units, C], for a router that goes by ``statistic`` [units, C]: it follows
        the statistic of the candidate at the price."""
        return priced_threshold(statistic, self.units["priced"].to_numpy(np.int64)[:, None])

    def passing(self, statistic: np.ndarray) -> np.ndarray:
        """bool [units, C]: what the gate admits by this statistic."""
        return admissible(statistic, self.threshold(statistic))

    def choose(self, statistic: np.ndarray) -> np.ndarray:
        """int64 [units]: what the gate rule takes by another statistic than g, [units, C]."""
        choice, threshold = np.empty(len(self.dense), np.int64), self.threshold(statistic)
        # Short prompts have fewer candidates; the rule's last one is dense.
        for dense in np.unique(self.dense):
            rows, width = self.dense == dense, int(dense) + 1
            choice[rows] = cheapest_admissible(
                statistic[rows, :width], self.cost[rows, :width], threshold[rows, :width]
            )
        return choice

    def residuals(self, kept: np.ndarray, statistic: np.ndarray | None = None) -> list[np.ndarray]:
        """statistic - g* of the kept sparse candidates (bool [units, C]), one array per window."""
        off = (self.gate_statistic if statistic is None else statistic) - self.target
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
        off = ((self.gate_statistic if statistic is None else statistic) - self.target)[kept]
        return {"delta": delta, **cover(self.units[some], off <= delta)}


def cover(units: pd.DataFrame, covered: pd.Series | np.ndarray) -> dict[str, Any]:
    """``stats.coverage.summarise`` by window and cluster (``plan.cluster``)."""
    if not len(units):
        return {}
    return vars(
        summarise(np.asarray(covered, dtype=float), units["number"].to_numpy(), units["cluster"].to_numpy())
    )


def controls(
    units: pd.DataFrame, fold_b: pd.DataFrame, calibrations: dict[str, Calibration]
) -> dict[str, Any]:
    """By domain on the first length bucket: each control beside what is done right."""
    least, most = BUCKETS[0]
    tests, folds = (u[(u["tokens"] >= least) & (u["tokens"] <= most)] for u in (units, fold_b))
    found: dict[str, Any] = {
        domain: _of_domain(
            Candidates(tests[tests["domain"] == domain]), Candidates(folds[folds["domain"] == domain])
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
    routed, made = test.choose(test.gate_statistic), fold_b.choose(fold_b.gate_statistic)
    replayed = float((routed == test.units["first"].to_numpy()).mean())
    if replayed < REPLAYED:
        raise InputError(
            f"only {replayed:.1%} of the router's choices follow from the records; measure again with this version"
        )
    kept = test.units["chosen"].to_numpy()
    deltas = {
        "selected": conformal_delta(fold_b.residuals(fold_b.only(made)), CONFIDENCE),
        "all_admissible": conformal_delta(
            fold_b.residuals(fold_b.passing(fold_b.gate_statistic)), CONFIDENCE
        ),
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
            "mean_mass": _mean_mass(test, aligned),
            "mean_mass_random_rows": _mean_mass(test, routed),
            "in_prompt": cover(certified, certified["true_mass"] >= certified["aligned_lower"]),
            "in_prompt_random_rows": cover(certified, certified["true_mass"] >= certified["lower"]),
            "omitted_by_offset": np.mean(sparse["omitted_by_offset"].to_list(), axis=0).tolist(),
        },
        "spread_by_mass": _spread(test),
        "replayed": replayed,
    }


def _mean_mass(candidates: Candidates, choice: np.ndarray) -> float:
    """Audited mass of the chosen sparse candidates."""
    return float(candidates.true[candidates.only(choice) & candidates.sparse].mean())


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
