"""Stage three: official scores, and every method against dense on the same prompts.

Nothing is compared before each pair of predictions is known to come from the same prompt, by its hash. A method's
difference to dense is the mean over tasks of the mean over prompts, in points, with a bootstrap over clusters within
tasks (``engine/stats/paired.py``); all methods use the same draws. Of PG-19 it is the ratio of word perplexities.
Beside it the worst tenth of the changes of the gold answers' log-likelihood, in nats, the share of harmed prompts, each
task's own difference, and H1 to H3 (``conclude.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine import paths
from routesparse.engine.calibrate.origin import now
from routesparse.engine.errors import InputError, ResultsError
from routesparse.engine.files.plain_files import read_json
from routesparse.engine.lab import study
from routesparse.engine.lab.runner.collected import Rows, collected, every_row
from routesparse.engine.lab.runner.conclude import DENSE, SEARCH_TOKENS, Cell, Point, Seen, conclude
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.predictions import (
    NUMBERS,
    Where,
    finished,
    read_times,
    time_commits,
)
from routesparse.engine.lab.runner.prepare import all_prepared
from routesparse.engine.lab.suites import pg19
from routesparse.engine.lab.suites.registry import find
from routesparse.engine.provenance import git_commit, versions
from routesparse.engine.results.evaluations import MOST_BYTES, read
from routesparse.engine.stats import paired
from routesparse.engine.stats.coverage import FEWEST_CLUSTERS

ENOUGH = 80.0  # a task on which dense scores less says nothing about sparse
# Medians over the prompts of a length, where the predictions hold them: the first prompts compile kernels.
MEDIANS = ("select_ms", "prefill_ms", "attention_ms", "fallback")


def score(job: Job) -> dict[str, Any]:
    """Score what was predicted of the job's prompts; write by_method/ and scores.json, and return what that holds.

    Errors: InputError where dense was not run, nothing was predicted, or a prompt changed since.
    """
    by_length = _collected(job)
    found = _scored(job, by_length)
    for length, points in by_length.items():
        for point, rows in points.items():
            for task in job.tasks:
                if task in rows:
                    _write_rows(job, length, point, task, rows[task])
    paths.write_json(job.scores, found)
    return found


def _collected(job: Job) -> dict[int, dict[Point, Rows]]:
    kept = job.kept.exists()
    return collected(job, None if kept else {one.sample_id: one.sha256 for one in all_prepared(job)})


def _scored(job: Job, by_length: Mapping[int, Mapping[Point, Rows]]) -> dict[str, Any]:
    times = read_times(job)
    found: dict[str, Any] = {"about": _about(job, by_length), "tasks": [], "suite": []}
    found["about"]["timed_alone"] = bool(times)
    timed_at = time_commits(job)
    # Of dense, which every cell has: a stage that was cut off has times of some cells alone.
    dense = {_where(row) for row in every_row(by_length, DENSE)}
    found["about"] |= {"cells": len(dense), "timed_cells": len(dense & set(times))}
    for length in job.lengths:
        points = by_length.get(length, {})
        if not points and any(by_length.values()):
            study.note(f"nothing was predicted at {length} tokens; the other lengths are scored")
            continue
        if DENSE not in points:
            raise InputError(
                f"dense has no predictions at {length} tokens; run the stage predict, which adds it"
            )
        for point, rows in sorted(points.items()):
            for task in job.tasks:
                if task in rows:
                    found["tasks"].append(_task(job, length, point, task, rows[task]))
            compared = _compared(job, length, point, rows, points[DENSE], times)
            found["suite"].append(compared | _commits(rows, timed_at))
    found["hypotheses"] = conclude(_cells(job, by_length, times), job.seed)
    return found


def gather(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The folders' scores, made anew, and the verdicts over all prompts of them; nothing is written.

    A folder without predictions gives the scores that it holds, and no prompts to the verdicts; where no folder has
    predictions, one folder's own verdicts are taken. Errors: InputError; ResultsError for verdicts over folders of
    different models, or for prompts that two folders hold.
    """
    scores, prompts, seed = [], [], 0
    weights: dict[str, Path] = {}  # the hash of dense's configuration, to its folder
    for folder in folders:
        if not any((folder / name).exists() for name in ("predictions.jsonl", "kept.jsonl.gz")):
            read(folder / "scores.json")
            scores.append(read_json(folder / "scores.json", MOST_BYTES))
            continue
        job = Job.load(folder)
        by_length = _collected(job)
        scores.append(_scored(job, by_length))
        weights |= dict.fromkeys((row["config_hash"] for row in every_row(by_length, DENSE)), folder)
        prompts += _cells(job, by_length, read_times(job))
        seed = job.seed
    if prompts:
        _refuse_several_models(scores, weights)
    strata = [cell.stratum for cell in prompts]
    twice = next((stratum for stratum in strata if strata.count(stratum) > 1), None)
    if twice is not None:
        raise ResultsError(
            f"two folders hold predictions of {twice[0]}, {twice[2]} at {twice[1]} tokens; report them apart"
        )
    if prompts:
        return scores, conclude(prompts, seed)
    return scores, scores[0].get("hypotheses", []) if len(scores) == 1 else []


def _refuse_several_models(scores: Sequence[Mapping[str, Any]], weights: Mapping[str, Path]) -> None:
    names = sorted({one["about"]["model"] for one in scores})
    if len(names) > 1:
        raise ResultsError(
            f"the folders are of different models, {', '.join(names)}; report each model apart"
        )
    if len(weights) > 1:
        held = " and ".join(sorted({folder.name for folder in weights.values()}))
        raise ResultsError(
            f"dense was predicted in {held} with different weights, number formats or tokenizers; report them apart"
        )


def _cells(
    job: Job, by_length: Mapping[int, Mapping[Point, Rows]], times: Mapping[Where, Mapping[str, float]]
) -> list[Cell]:
    """PG-19 has none: it counts nats, not points. Where a job has times of one process alone, what was not timed has
    no part in the tests."""
    if job.suite == pg19.SUITE.name:
        return []
    plain, suite = min(max(job.lengths), SEARCH_TOKENS), find(job.suite)

    def seen(task: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Seen]:
        ordered = _in_order(rows)
        values = suite.score(task, [row["row"] for row in ordered]).values
        return {
            row["sample_id"]: Seen(
                float(value),
                -row["gold_nats"],
                times[_where(row)]["prefill_ms"] if times else row["prefill_ms"],
                row["cluster"],
                row["area"],
            )
            for row, value in zip(ordered, values, strict=True)
            if value is not None
        }

    def usable(task: str, rows: Rows) -> bool:
        return not times or all(_where(row) in times for row in rows[task].values())

    alone = bool(times) or _processes(job) == 1
    return [
        Cell(
            (job.suite, length, task),
            length == plain,
            # A setting that was predicted and not timed leaves its stratum out, and is not forgotten.
            {
                point: seen(task, rows[task]) if usable(task, rows) else {}
                for point, rows in points.items()
                if task in rows
            },
            timed_alone=alone,
        )
        for length, points in by_length.items()
        for task in job.tasks
    ]


def _commits(rows: Rows, timed_at: Mapping[Where, set[str]]) -> dict[str, list[str]]:
    """Of a method at one length: the code that predicted, and the code that was timed alone, which may differ."""
    found = [row for by_sample in rows.values() for row in by_sample.values()]
    timed = set().union(*(timed_at.get(_where(row), set()) for row in found))
    predicted = {row["git_commit"] for row in found if row.get("git_commit")}
    return {"predicted_by": sorted(predicted), "timed_by": sorted(timed)}


def _where(row: Mapping[str, Any]) -> Where:
    return row["length"], row["task"], row["config_hash"]


def _processes(job: Job) -> int:
    """How many processes predicted at once, as rows say."""
    return max((row.get("processes", 1) for row in finished(job)), default=1)


def _about(job: Job, by_length: Mapping[int, Mapping[Point, Rows]]) -> dict[str, Any]:
    rows = every_row(by_length)
    return {
        "suite": job.suite,
        "command": job.command,
        "processes": _processes(job),
        "devices": sorted({row["device"] for row in rows if row.get("device")}),
        "predicted_by_commits": sorted({row["git_commit"] for row in rows if row.get("git_commit")}),
        "seed": job.seed,
        "n": job.n,
        "model": Path(job.model).name,
        "created_at": now(),
        "git_commit": git_commit(),
        "versions": versions(),
        "resamples": paired.RESAMPLES,
    }


def _in_order(rows: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """By the prompt's index: several processes write as they finish, and L-Eval's topics depend on the order."""
    return sorted(rows.values(), key=lambda row: row["index"])


def _named(job: Job, length: int, point: Point) -> dict[str, Any]:
    return {"suite": job.suite, "length": length, "method": point[0], "setting": point[1], "extras": point[2]}


def _write_rows(
    job: Job, length: int, point: Point, task: str, rows: Mapping[str, Mapping[str, Any]]
) -> None:
    """The predictions in the suite's own format, which `routesparse score` and official scripts read."""
    name = f"{point[0].replace(':', '-')}-{point[1]:g}{'' if point[2] else '-no-extras'}"
    path = job.out / "by_method" / name / str(length) / f"{task}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row["row"]) + "\n" for row in _in_order(rows)), "utf-8")


def _task(
    job: Job, length: int, point: Point, task: str, rows: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    scored = find(job.suite).score(task, [row["row"] for row in _in_order(rows)])
    return {
        **_named(job, length, point),
        "task": task,
        "n": scored.n,
        "score": scored.score,
        **({"parts": scored.parts} if scored.parts else {}),
        "area": float(np.mean([row["area"] for row in rows.values()])),
    }


def _compared(
    job: Job,
    length: int,
    point: Point,
    rows: Rows,
    dense: Rows,
    times: Mapping[Where, Mapping[str, float]],
) -> dict[str, Any]:
    """One method over all tasks, on the prompts that it and dense both have."""
    common = {
        task: set(rows[task]) & set(dense[task]) for task in job.tasks if task in rows and task in dense
    }
    common = {task: samples for task, samples in common.items() if samples}
    if not common:
        return {**_named(job, length, point), "n": 0}
    mine, base = (
        {task: _in_order({one: side[task][one] for one in samples}) for task, samples in common.items()}
        for side in (rows, dense)
    )
    if job.suite == pg19.SUITE.name:  # its splits are parts of one set of books
        mine, base = ({"books": [row for found in side.values() for row in found]} for side in (mine, base))
    draws = paired.Draws({task: [row["cluster"] for row in found] for task, found in mine.items()}, job.seed)
    numbers = {
        name: float(np.mean([np.mean([row[name] for row in found]) for found in mine.values()]))
        for name in ("area", "select_ms", "prefill_ms")
    }
    found = {**_named(job, length, point), "n": draws.n, "clusters": draws.clusters, **numbers}
    # A bootstrap within tasks needs enough of them in each.
    found["few_clusters"] = min(counts.shape[1] for counts in draws.counts.values()) < FEWEST_CLUSTERS
    found["medians"] = {name: _medians(_timed(mine, times) if times else mine, name) for name in MEDIANS}
    if job.suite == pg19.SUITE.name:
        return found | _perplexities(draws, mine, base)
    return found | _points(job, draws, mine, base)


def _timed(
    side: Mapping[str, Sequence[Mapping[str, Any]]], times: Mapping[Where, Mapping[str, float]]
) -> dict[str, list[dict[str, Any]]]:
    """The predictions with the times of one process alone in place of their own; none where it did not time them."""
    return {
        task: [{**row, **dict.fromkeys(NUMBERS), **times.get(_where(row), {})} for row in found]
        for task, found in side.items()
    }


def _medians(side: Mapping[str, Sequence[Mapping[str, Any]]], name: str) -> float | None:
    """Of the prompts that hold the number; None where none does."""
    held = [row[name] for found in side.values() for row in found if row.get(name) is not None]
    return float(np.median(held)) if held else None


def _perplexities(
    draws: paired.Draws, mine: Mapping[str, Sequence], base: Mapping[str, Sequence]
) -> dict[str, Any]:
    def sums(side: Mapping[str, Sequence], name: str) -> dict[str, list[float]]:
        return {task: [row["row"][name] for row in found] for task, found in side.items()}

    def ratio(nll: str, units: str) -> dict[str, float]:
        return asdict(paired.perplexity_ratio(draws, sums(mine, nll), sums(base, nll), sums(mine, units)))

    return {
        "measures": pg19.measures([row["row"] for found in mine.values() for row in found]),
        "word_perplexity_ratio": ratio("nll", "words"),
        "last_1k_ratio": ratio("last_nll", "last_tokens"),
    }


def _points(
    job: Job, draws: paired.Draws, mine: Mapping[str, Sequence], base: Mapping[str, Sequence]
) -> dict[str, Any]:
    suite = find(job.suite)

    def values(side: Mapping[str, Sequence]) -> dict[str, np.ndarray]:
        return {
            task: np.array(suite.score(task, [row["row"] for row in found]).values, dtype=float)
            for task, found in side.items()
        }

    def likelihoods(side: Mapping[str, Sequence]) -> dict[str, np.ndarray]:
        return {task: -np.array([row["gold_nats"] for row in found]) for task, found in side.items()}

    ours, dense = values(mine), values(base)
    change = paired.difference(draws, ours, dense)
    gold_ours, gold_dense = likelihoods(mine), likelihoods(base)
    gold = {task: gold_ours[task] - gold_dense[task] for task in gold_ours}
    enough = [task for task in dense if 100 * dense[task].mean() >= ENOUGH]
    return {
        "score": float(100 * draws.means(ours)[0]),
        "difference": change.mean.in_points(),
        "harmed": change.harmed,
        "gained": change.gained,
        "harmed_share": change.harmed / draws.n,
        "newcombe": None if change.newcombe is None else [100 * bound for bound in change.newcombe],
        "few_discordant": change.few,
        "gold_log_likelihood": asdict(paired.interval(draws.means(gold))),
        "worst_decile": asdict(paired.interval(draws.worst_means(gold))),
        "tasks_where_dense_reaches_80": enough,
        "by_task": [_of_task(draws, task, ours[task], dense[task]) for task in ours],
    }


def _of_task(draws: paired.Draws, task: str, ours: np.ndarray, dense: np.ndarray) -> dict[str, Any]:
    """One task's difference, on the draws of the whole suite."""
    clusters = draws.counts[task].shape[1]
    return {
        "task": task,
        "n": len(ours),
        "clusters": clusters,
        "few_clusters": clusters < FEWEST_CLUSTERS,
        "score": float(100 * ours.mean()),
        "dense": float(100 * dense.mean()),
        "difference": paired.interval(draws.stratum_means(task, ours - dense)).in_points(),
        "harmed": int((ours < dense).sum()),
    }
