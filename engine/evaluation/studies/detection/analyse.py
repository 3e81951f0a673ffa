"""Which claim foretells a lost answer: rank correlation, ROC curve and the verdict's own alarms.

    python -m routesparse.engine.evaluation.studies.detection.analyse detection.jsonl --out data/results/detection.json

FILES are what ``run.py`` wrote (with FILE.jsonl also FILE.0.jsonl, ...). An answer is lost where a method's score is
below dense attention's on the same prompt, by however little; the same once more for a drop of TENTH or more. Prompts
that dense fails altogether can lose none and are left out. *Lost nats* are the gold answer's log-likelihood under dense
attention less that under the method.

Pairs of one task and length are compared, never of two. Twice over: *all*, over every method and setting, which asks
whether the claim tells a starved prefill from a generous one; *within*, over prompts of one method and setting, which
asks whether it tells the prompt that is hurt from the one that is not. Intervals: 95 % percentiles over resampled
prompts in each task and length; those with fewer than FEWEST prompts are left out of the comparison. None: fewer than
FEWEST answers on one side.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine.errors import InputError
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies.detection.names import ALARMS, CLAIMS, CONTROL, WHOLE
from routesparse.engine.evaluation.studies.selection import rows
from routesparse.engine.stats.detection import area_under_curve, detected, spearman
from routesparse.engine.stats.paired import Draws

FALSE_ALARMS = (0.05, 0.1, 0.2)
FEWEST = 8
TENTH = 0.1
RESAMPLES = 1_000
ALL = "all tasks"
Row = dict[str, Any]
Prompt = tuple[str, int, int]  # task, length, index


@dataclass(frozen=True)
class Told:
    """The prefills of some methods, as columns over n of them."""

    rows: Sequence[Row]
    drop: np.ndarray  # [n], of the score
    nats: np.ndarray  # [n], lost
    margin: float = 0.0

    @property
    def lost(self) -> np.ndarray:
        """bool [n]"""
        return self.drop > 0 if self.margin == 0 else self.drop >= self.margin - 1e-9

    def of(self, chosen: np.ndarray) -> Told:
        """Those that are chosen, bool [n]."""
        place = np.flatnonzero(chosen)
        kept = [self.rows[i] for i in place.tolist()]
        return Told(kept, self.drop[place], self.nats[place], self.margin)

    def column(self, name: str) -> np.ndarray:
        """float64 [n], NaN where a row lacks it."""
        return np.array([row.get(name, np.nan) for row in self.rows], dtype=np.float64)

    def groups(self, *names: str) -> np.ndarray:
        """int64 [n]: equal where all these fields are."""
        keys = [tuple(row[name] for name in names) for row in self.rows]
        known = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        return np.array([known[key] for key in keys])

    def weights(self, seed: int) -> np.ndarray:
        """How often each prefill counts, [1 + B, n]: prompts are drawn, with all methods' prefills of them."""
        strata = self.groups("task", "length")
        labels = {
            str(s): [row["index"] for row, own in zip(self.rows, strata, strict=True) if own == s]
            for s in dict.fromkeys(strata.tolist())
        }
        draws = Draws(labels, seed, RESAMPLES)
        found = np.empty((1 + RESAMPLES, len(self.rows)))
        for name in labels:
            found[:, strata == int(name)] = draws.counts[name][:, draws.places[name]]
        return found


def main(argv: list[str] | None = None) -> None:
    """Read the files, write the study's result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=0, help="of the resamples")
    parser.add_argument("--note", default="", help="what a reader has to know about the files")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    paths = [
        path for file in arguments.files for path in ([file] if file.suffix == ".gz" else rows.parts(file))
    ]
    headers = [row for path in paths for row in rows.read_lines(path) if "method" not in row]
    measured, failed = rows.read_rows(paths)
    if not headers or not measured:
        raise InputError(
            f"{', '.join(map(str, arguments.files))} hold no prefill; pass files that run.py wrote"
        )
    result = analysed(list(measured.values()), arguments.seed)
    about = {"analysis": study.command(), "note": arguments.note, "failed": len(failed)}
    study.save(arguments.out, {**headers[0], **about, **result})


def analysed(measured: Sequence[Row], seed: int) -> dict[str, Any]:
    """Everything that the page tells.

    Errors: InputError where dense attention was not measured, or nothing has enough prompts.
    """
    told, unanswered = paired(measured)
    prompts = Counter((task, length) for task, length, _ in {_prompt(row) for row in told.rows})
    thin = sorted(stratum for stratum, count in prompts.items() if count < FEWEST)
    compared = [
        row["method"] not in (*WHOLE, CONTROL) and (row["task"], row["length"]) not in thin
        for row in told.rows
    ]
    if not any(compared):
        raise InputError(f"no task and length has {FEWEST} prompts that a sparse method ran on; measure more")
    sparse = told.of(np.array(compared))
    scopes = {
        task: sparse.of(np.array([row["task"] == task for row in sparse.rows]))
        for task in dict.fromkeys(row["task"] for row in sparse.rows)
    }
    return {
        "lengths": sorted({row["length"] for row in told.rows}),
        "unanswered": unanswered,
        "thin": [f"{task} at {length:,}" for task, length in thin],
        "resamples": RESAMPLES,
        "prefills": len(told.rows),
        "methods": methods_of(told),
        "foresight": {name: foresight(found, seed) for name, found in {**scopes, ALL: sparse}.items()},
        "of_a_tenth": foresight(replace(sparse, margin=TENTH), seed),
        "alarms": [alarms(told, sparse, name, seed) for name in ALARMS],
    }


def paired(measured: Sequence[Row]) -> tuple[Told, int]:
    """Every prefill beside dense attention's of the same prompt, and how many prompts dense answers not at all.

    Errors: InputError where a prompt lacks dense attention.
    """
    dense = {_prompt(row): row["score"] for row in measured if row["method"] == "dense"}
    missing = {_prompt(row) for row in measured} - dense.keys()
    if missing:
        raise InputError(
            f"{len(missing)} prompts lack dense attention, such as {min(missing)}; run --methods dense"
        )
    kept = sorted((row for row in measured if dense[_prompt(row)] > 0), key=rows.key_of)
    drop = np.array([dense[_prompt(row)] - row["score"] for row in kept])
    nats = np.array([(row["nats"] - row["nats_dense"]) * row["positions"] for row in kept])
    return Told(kept, drop, nats), sum(score == 0 for score in dense.values())


def _prompt(row: Row) -> Prompt:
    return row["task"], row["length"], row["index"]


def foresight(told: Told, seed: int) -> dict[str, Any]:
    """What each claim foretells on these prefills; a claim that they lack is left out."""
    found: dict[str, Any] = {
        "n": len(told.rows),
        "prompts": len({_prompt(row) for row in told.rows}),
        "lost": int(told.lost.sum()),
        "claims": {},
    }
    for claim, (column, sign) in CLAIMS.items():
        known = ~np.isnan(told.column(column))
        if known.any():
            mine = told.of(known)
            found["claims"][claim] = _claim(mine, sign * mine.column(column), seed)
    return found


def _claim(told: Told, trouble: np.ndarray, seed: int) -> dict[str, Any]:
    """trouble [n]: the claim, larger where it says worse."""
    weights = told.weights(seed)
    within = told.groups("task", "length", "method", "setting")
    pooled = told.groups("task", "length")
    enough = min(told.lost.sum(), (~told.lost).sum()) >= FEWEST
    measures = {
        "rho": spearman(trouble, told.nats, weights, pooled),
        "rho_within": spearman(trouble, told.nats, weights, within),
        "auc": area_under_curve(trouble, told.lost, weights, pooled),
        "auc_within": area_under_curve(trouble, told.lost, weights, within),
    }
    curve = {f"{share:g}": detected(trouble, told.lost, weights, share) for share in FALSE_ALARMS}
    return {
        "n": len(told.rows),
        "lost": int(told.lost.sum()),
        **{name: _interval(draws, enough or "auc" not in name) for name, draws in measures.items()},
        "detected": {share: _interval(draws, enough) for share, draws in curve.items()},
    }


def _interval(draws: np.ndarray, enough: bool | np.bool_) -> list[float] | None:
    """Estimate and interval; None where it is not defined in the sample, or too rarely in the resamples."""
    known = draws[1:][~np.isnan(draws[1:])]
    if not enough or np.isnan(draws[0]) or len(known) < 0.9 * (len(draws) - 1):
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return [round(float(value), 4) for value in (draws[0], low, high)]


def methods_of(told: Told) -> list[dict[str, Any]]:
    """A line for each method and setting: what was lost, and the means of what was claimed."""
    groups: dict[tuple[str, float], list[int]] = defaultdict(list)
    for place, row in enumerate(told.rows):
        groups[row["method"], row["setting"]].append(place)
    found = []
    for (method, setting), places in groups.items():
        mine = told.of(np.isin(np.arange(len(told.rows)), places))
        columns = {column for column, _ in CLAIMS.values()} | {"score", *ALARMS}
        found.append(
            {
                "method": method,
                "setting": setting,
                "n": len(places),
                "lost": int(mine.lost.sum()),
                "nats": float(mine.nats.mean()),
                **{name: _mean(mine.column(name)) for name in sorted(columns)},
            }
        )
    return found


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def alarms(told: Told, sparse: Told, name: str, seed: int) -> dict[str, Any]:
    """How often the verdict raises an alarm: where an answer is lost, where none is, and on the controls."""
    raised, weights = sparse.column(name), sparse.weights(seed)
    shares = {}
    for kind, chosen in (("lost", sparse.lost), ("kept", ~sparse.lost)):
        total = (weights * chosen).sum(1)
        draws = np.divide(
            (weights * chosen) @ raised, total, out=np.full(len(total), np.nan), where=total > 0
        )
        shares[kind] = {
            "n": int(chosen.sum()),
            "alarmed": _interval(draws, chosen.sum() >= FEWEST),
        }
    controls = {}
    for control in (*WHOLE, CONTROL):
        column = [row[name] for row in told.rows if row["method"] == control]
        controls[control] = {"n": len(column), "alarms": int(sum(column))}
    return {"alarm": name, **shares, "controls": controls}


if __name__ == "__main__":
    study.run(main)
