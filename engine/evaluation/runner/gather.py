"""Folders of evaluations for a report: scored anew from their predictions, and H1 to H3 over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from routesparse.engine import fields
from routesparse.engine.errors import ResultsError
from routesparse.engine.evaluation.runner.conclude import conclude
from routesparse.engine.evaluation.runner.job import Job
from routesparse.engine.evaluation.runner.score import cells, score
from routesparse.engine.evaluation.studies.selection import rows
from routesparse.engine.results.evaluations import MOST_BYTES, read


def gather(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The folders' scores, and the verdicts over all prompts of them.

    A folder without predictions gives the scores that it holds, and no prompts to the verdicts; where no folder has
    predictions, one folder's own verdicts are taken. Errors: InputError, ResultsError.
    """
    scores, prompts, seed = [], [], 0
    for folder in folders:
        if not rows.parts(folder / "predictions.jsonl"):
            read(folder / "scores.json")
            scores.append(fields.read_json(folder / "scores.json", MOST_BYTES))
            continue
        job = Job.load(folder)
        scores.append(score(job))
        prompts += cells(job)
        seed = job.seed
    strata = [cell.stratum for cell in prompts]
    twice = next((stratum for stratum in strata if strata.count(stratum) > 1), None)
    if twice is not None:
        raise ResultsError(
            f"two folders hold predictions of {twice[0]}, {twice[2]} at {twice[1]} tokens; report them apart"
        )
    if prompts:
        return scores, conclude(prompts, seed)
    return scores, scores[0].get("hypotheses", []) if len(scores) == 1 else []
