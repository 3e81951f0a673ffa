"""Our suites as tasks of lm-evaluation-harness; ``lm_eval_include/`` holds their YAML, which names these functions.

A task's prompts are those of ``routesparse evaluate``, prepared by the same stage in the same folder, and its answers
are scored by the suite's own scorer: the same predictions get the same score in both. ``--metadata`` says which
prompts: length (tokens), n, data and out, as the command's options of those names, and prompt_seed, its --seed: the
harness merges the model's arguments into the metadata, whose seed is that of the random rows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.prepare import Prepared, all_prepared, prepare
from routesparse.engine.lab.suites.measures import DIGITS
from routesparse.engine.lab.suites.registry import find
from routesparse.engine.lab.suites.source import Example
from routesparse.engine.lab.suites.suite import mean_score
from routesparse.engine.models.files import DEMO
from routesparse.engine.progress import no_progress


def dataset(**metadata: Any) -> dict[str, Any]:
    """The harness's custom dataset of one task: its only split. Errors: InputError, as of ``documents``."""
    from datasets import Dataset

    return {"test": Dataset.from_list(documents(**metadata))}


def documents(
    *,
    suite: str,
    task: str,
    length: int = 8192,
    n: int = 25,
    prompt_seed: int = 0,
    data: str | None = None,
    out: str | None = None,
    pretrained: str = DEMO,
    **_: Any,
) -> list[dict[str, Any]]:
    """One task's prompts, made for the tokenizer of the model ``pretrained`` where they are not there yet.

    The harness passes the model's arguments, too; those that no prompt depends on are not read.
    Errors: InputError for a wrong value, text that is missing, or a folder with other prompts.
    """
    folder = Path(out) if out else paths.home() / "evaluations" / suite
    texts = Path(data) if data else paths.texts()
    job = Job(suite, (task,), (int(length),), ("dense",), int(n), int(prompt_seed), pretrained, texts, folder)
    prepare(job, no_progress)
    return [_document(job, prepared) for prepared in all_prepared(job)]


def _document(job: Job, prepared: Prepared) -> dict[str, Any]:
    example = prepared.example
    return {
        "suite": job.suite,
        "prompt": example.prompt,
        "answer_prefix": example.answer_prefix,
        "answer": example.answer,
        "sample_id": prepared.sample_id,
        "prompt_sha256": prepared.sha256,
        "example": json.dumps(dataclasses.asdict(example)),
    }


def process_results(document: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """One answer's score, 0 to 1, by the suite's own scorer."""
    suite, example = find(document["suite"]), Example(**json.loads(document["example"]))
    (value,) = suite.score(example.task, [suite.row(example, results[0])]).values
    return {"points": value}


def points(values: Sequence[float]) -> float:
    """A task's score as RULER prints it and ``routesparse score`` does."""
    return mean_score(values, DIGITS).score
