"""The predictions of a job that may be compared: one prompt a sample, one configuration a method, one model."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from routesparse.engine.errors import InputError
from routesparse.engine.lab import study
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.predictions import finished

POINT = ["method", "setting", "extras"]
_KEPT = [
    *("length", *POINT, "task", "index", "sample_id", "cluster", "config_hash", "row", "gold_nats", "area"),
    *("select_ms", "prefill_ms", "attention_ms", "fallback"),
    *("weights", "device", "git_commit", "processes"),
]


def collected(job: Job, prepared: Mapping[str, str] | None) -> pd.DataFrame:
    """Predictions of the job's prompts, of a method's configurations the last one made.

    What is left out for another configuration (other weights, rules or kernels) is noted. prepared: the hash of each
    sample's prompt; None for a folder with kept predictions, which needs no prompts: there a sample's predictions must
    agree on it.
    Errors: InputError for a prediction of another prompt, or of several models' weights.
    """
    made = [row for row in finished(job) if row["seed"] == job.seed and row["suite"] == job.suite]
    if prepared is None:
        made = [
            row
            for row in made
            if row["length"] in job.lengths and row["task"] in job.tasks and row["index"] < job.n
        ]
    else:
        made = [row for row in made if row["sample_id"] in prepared]
    prompts = dict(prepared or {})
    for row in made:
        if prompts.setdefault(row["sample_id"], row["prompt_sha256"]) != row["prompt_sha256"]:
            raise InputError(
                f"{row['sample_id']} was predicted from another prompt than the prepared one; choose another --out"
            )
    found = pd.DataFrame(made, columns=_KEPT)
    current = found["config_hash"] == found.groupby(["length", *POINT])["config_hash"].transform("last")
    _note_left_out(found[~current])
    found = found[current]
    weights = sorted(found["weights"].dropna().unique())
    if len(weights) > 1:
        raise InputError(
            f"{job.out.name} holds predictions of different weights ({', '.join(weights)}), which can't be compared; "
            "predict every method anew with one model, or choose another --out"
        )
    return found


def _note_left_out(rows: pd.DataFrame) -> None:
    """A line a length; of many methods only how many."""
    for length, part in rows.groupby("length"):
        names = [f"{name}={setting:g}" for name, setting in part.groupby(POINT[:2]).groups]
        study.note(
            f"{len(part)} predictions of {', '.join(names) if len(names) < 4 else f'{len(names)} methods'} at "
            f"{length:,} tokens are of an older configuration (weights, rule or kernels) and left out"
        )
