"""Stage three: official scores, and every method against dense on the same prompts.

Nothing is compared before each pair of predictions is known to come from the same prompt, by its hash. A method's
difference to dense is the mean over tasks of the mean over prompts, in points, with a bootstrap over clusters within
tasks (``engine/stats/paired.py``); all methods use the same draws. Of PG-19 it is the ratio of word perplexities.
Beside it the worst tenth of the changes of the gold answers' log-likelihood, in nats, the share of harmed prompts, each
task's own difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine import paths
from routesparse.engine.errors import InputError
from routesparse.engine.files.plain_files import read_json
from routesparse.engine.lab import study
from routesparse.engine.lab.runner.collected import POINT, collected
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.predictions import NUMBERS, WHERE, read_times
from routesparse.engine.lab.runner.prepare import all_prepared
from routesparse.engine.lab.runner.steps import screened
from routesparse.engine.lab.suites import pg19
from routesparse.engine.lab.suites.registry import find
from routesparse.engine.provenance import git_commit, now, versions
from routesparse.engine.results.evaluations import MOST_BYTES, read
from routesparse.engine.stats import paired
from routesparse.engine.stats.clusters import FEWEST_CLUSTERS

ENOUGH = 80.0  # a task on which dense scores less says nothing about sparse


def score(job: Job) -> dict[str, Any]:
    """Score what was predicted of the job's prompts; write by_method/ and scores.json, and return what that holds.

    Errors: InputError where dense was not run, nothing was predicted, or a prompt changed since.
    """
    found, rows = _scored(job)
    # The predictions in the suite's own format, which `routesparse score` and official scripts read.
    for (length, method, setting, extras, task), part in rows.groupby(
        ["length", *POINT, "task"], observed=True
    ):
        name = f"{method.replace(':', '-')}-{setting:g}{'' if extras else '-no-extras'}"
        path = job.out / "by_method" / name / str(length) / f"{task}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in part["row"].dropna()), "utf-8")
    paths.write_json(job.scores, found)
    return found


def gather(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The folders' scores, made anew; nothing is written. A folder without predictions gives the scores that it holds.

    Errors: InputError; ResultsError where such scores can't be read.
    """
    scores = []
    for folder in folders:
        if any((folder / name).exists() for name in ("predictions.jsonl", "kept.jsonl.gz")):
            scores.append(_scored(Job.load(folder))[0])
        else:
            read(folder / "scores.json")
            scores.append(read_json(folder / "scores.json", MOST_BYTES))
    return scores


def _scored(job: Job) -> tuple[dict[str, Any], pd.DataFrame]:
    """What scores.json holds, and the predictions with their ``value``.

    ``timed_...`` are the times that count: those of one process alone where there are any, else their own.
    """
    kept = job.kept.exists()
    rows = collected(job, None if kept else {one.sample_id: one.sha256 for one in all_prepared(job)})
    times = read_times(job)
    rows = rows.join(times.add_prefix("timed_"), on=WHERE)
    # By the prompt's index: several processes write as they finish.
    rows = rows.assign(task=pd.Categorical(rows["task"], job.tasks))
    rows = rows.sort_values(["length", "task", "index"], kind="stable", ignore_index=True)
    if times.empty:
        rows = rows.assign(**{f"timed_{name}": rows[name] for name in NUMBERS})
    found: dict[str, Any] = {
        "about": _about(job, rows, timed_alone=not times.empty),
        "tasks": [],
        "suite": [],
    }
    values = pd.Series(np.nan, rows.index)
    for length in job.lengths:
        here = rows[rows["length"] == length]
        if here.empty and len(rows):
            study.note(f"nothing was predicted at {length} tokens; the other lengths are scored")
            continue
        if not (here["method"] == "dense").any():
            raise InputError(
                f"dense has no predictions at {length} tokens; run the stage predict, which adds it"
            )
        for (*point, task), part in here.dropna(subset=["row"]).groupby([*POINT, "task"], observed=True):
            scored = find(job.suite).score(task, list(part["row"]))
            values[part.index] = scored.values
            told = {"task": task, "n": len(part), "score": scored.score, "area": float(part["area"].mean())}
            parts = {"parts": scored.parts} if scored.parts else {}
            found["tasks"].append(_named(job, length, point) | told | parts)
        here = here.assign(value=values[here.index])
        dense = here[here["method"] == "dense"]
        for point, mine in here.groupby(POINT):
            found["suite"].append(
                _named(job, length, point)
                | _compared(job, mine, dense)
                | {
                    "predicted_by": sorted(set(mine["git_commit"].dropna()) - {""}),
                    "timed_by": sorted(set(mine["timed_timed_by"].dropna().explode().dropna())),
                }
            )
    rows["value"] = values
    if job.screen:
        found["screen"] = [one.told for one in screened(job)]
    return found, rows


def _named(job: Job, length: int, point: Sequence[Any]) -> dict[str, Any]:
    method, setting, extras = point
    about = {"method": method, "setting": float(setting), "extras": bool(extras)}
    return {"suite": job.suite, "length": length, **about}


def _about(job: Job, rows: pd.DataFrame, timed_alone: bool) -> dict[str, Any]:
    # Of dense, which every cell has: a stage that was cut off has times of some cells alone.
    cells = rows[rows["method"] == "dense"].drop_duplicates(WHERE)
    processes = rows["processes"].fillna(1).max() if len(rows) else 1
    return {
        "suite": job.suite,
        "command": job.command,
        "processes": int(processes),
        "devices": sorted(set(rows["device"].dropna()) - {""}),
        "predicted_by_commits": sorted(set(rows["git_commit"].dropna()) - {""}),
        "seed": job.seed,
        "n": job.n,
        "model": Path(job.model).name,
        "created_at": now(),
        "git_commit": git_commit(),
        "versions": versions(),
        "resamples": paired.RESAMPLES,
        "timed_alone": timed_alone,
        "cells": len(cells),
        "timed_cells": int(cells["timed_timed_by"].notna().sum()),
    }


def _compared(job: Job, mine: pd.DataFrame, dense: pd.DataFrame) -> dict[str, Any]:
    """One method over all tasks, on the prompts that it and dense both have."""
    base = dense[["task", "sample_id", "value", "gold_nats", "row"]]
    both = mine.merge(base, on=["task", "sample_id"], suffixes=("", "_dense"))
    if both.empty:
        return {"n": 0}
    is_books = job.suite == pg19.SUITE.name  # its splits are parts of one set of books
    strata = dict(iter(both.groupby(pd.Series("books", both.index) if is_books else "task", observed=True)))
    draws = paired.Draws({name: list(part["cluster"]) for name, part in strata.items()}, job.seed)
    medians = {name: both[f"timed_{name}"].median() for name in ("select_ms", "prefill_ms", "attention_ms")}
    medians["fallback"] = both["fallback"].median()
    found = {
        "n": draws.n,
        "clusters": draws.clusters,
        **{
            name: float(np.mean([part[name].mean() for part in strata.values()]))
            for name in ("area", "select_ms", "prefill_ms")
        },
        # A bootstrap within tasks needs enough of them in each.
        "few_clusters": min(counts.shape[1] for counts in draws.counts.values()) < FEWEST_CLUSTERS,
        # Over the prompts that hold the number: the first ones compile kernels.
        "medians": {name: None if pd.isna(one) else float(one) for name, one in medians.items()},
    }
    return found | (_perplexities(draws, both) if is_books else _points(job, draws, strata))


def _perplexities(draws: paired.Draws, books: pd.DataFrame) -> dict[str, Any]:
    mine, base = (pd.DataFrame(books[name].tolist()) for name in ("row", "row_dense"))

    def ratio(nll: str, units: str) -> dict[str, float]:
        found = ({"books": sums.to_numpy(float)} for sums in (mine[nll], base[nll], mine[units]))
        return asdict(paired.perplexity_ratio(draws, *found))

    return {
        "measures": pg19.measures(books["row"].tolist()),
        "word_perplexity_ratio": ratio("nll", "words"),
        "last_1k_ratio": ratio("last_nll", "last_tokens"),
    }


def _points(job: Job, draws: paired.Draws, strata: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Points where answers were decoded, likelihoods of the gold answer on all prompts."""
    decoded = {task: part.dropna(subset=["value", "value_dense"]) for task, part in strata.items()}
    gold = {
        task: (part["gold_nats_dense"] - part["gold_nats"]).to_numpy(float) for task, part in strata.items()
    }
    some, likelihood = (
        draws,
        {
            "gold_log_likelihood": asdict(paired.interval(draws.means(gold))),
            "worst_decile": asdict(paired.interval(draws.worst_means(gold))),
        },
    )
    decoded = {task: part for task, part in decoded.items() if len(part)}
    if not decoded:
        return {"decoded": 0, **likelihood}
    if sum(map(len, decoded.values())) < draws.n:
        some = paired.Draws({task: list(part["cluster"]) for task, part in decoded.items()}, job.seed)
    ours, dense = (
        {task: part[name].to_numpy(float) for task, part in decoded.items()}
        for name in ("value", "value_dense")
    )
    change = paired.difference(some, ours, dense)
    enough = [task for task in dense if 100 * dense[task].mean() >= ENOUGH]
    return {
        **({} if some is draws else {"decoded": some.n}),
        "score": float(100 * some.means(ours)[0]),
        "difference": change.mean.in_points(),
        "harmed": change.harmed,
        "gained": change.gained,
        "harmed_share": change.harmed / some.n,
        "newcombe": None if change.newcombe is None else [100 * bound for bound in change.newcombe],
        "few_discordant": change.few,
        **likelihood,
        "tasks_where_dense_reaches_80": enough,
        "by_task": [
            _of_task(some, task, ours[task], dense[task])
            | {"gold_n": len(gold[task])}
            | {"gold_log_likelihood": asdict(paired.interval(draws.stratum_means(task, gold[task])))}
            for task in ours
        ],
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
