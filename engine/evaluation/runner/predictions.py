"""The predictions of a job's folder, by configuration and prompt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from routesparse.engine.evaluation.runner.job import Job
from routesparse.engine.evaluation.studies.selection import rows


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    """What names a prediction: the configuration and the prompt."""
    return row["config_hash"], row["sample_id"], row["seed"]


def finished(job: Job) -> Iterable[dict[str, Any]]:
    """The predictions made so far, without those that failed; of two for one key the later one counts."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for path in rows.parts(job.predictions):
        found |= {key(row): row for row in rows.read_lines(path) if "failed" not in row}
    return found.values()
