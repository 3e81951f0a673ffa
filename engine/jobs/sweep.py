"""A sweep: one prompt under several values of one setting, submitted together; one job, and one run, for each value.

The jobs are ordinary ones that share a sweep id. What is varied is a field of ``RunRequest``, checked by its rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from routesparse.engine.config import LatencyBudget
from routesparse.engine.errors import ConfigError
from routesparse.engine.jobs.job import Job
from routesparse.engine.jobs.request import RunRequest

MOST_POINTS = 12
VARIED = ("price", "budget", "calibration")  # fields of RunRequest
NONE = "none"  # as a value: no time limit, no calibration


def value_of(name: str, text: str) -> float | str | None:
    """A typed value of the varied field ``name`` as RunRequest takes it. Errors: ConfigError for no number or limit."""
    text = text.strip()
    if name == "price":
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"price {text!r} is no number; pass one such as 0.5") from None
    if text.lower() == NONE:
        return None
    return str(LatencyBudget.parse(text)) if name == "budget" else text


def check_size(count: int) -> None:
    """Errors: ConfigError for fewer than two settings, or more than MOST_POINTS."""
    if not 2 <= count <= MOST_POINTS:
        given = "1 value is" if count == 1 else f"{count or 'no'} values are"
        raise ConfigError(f"{given} given; a sweep needs from 2 to {MOST_POINTS} different ones")


def newest(jobs: Sequence[Job]) -> list[Job]:
    """The newest job of each setting in the order of submission: a failed one may have been tried again.

    jobs: all of one sweep, oldest first. No request is read: one of a newer version is unreadable here.
    """
    return list({(job.request_json, job.prompt_sha256): job for job in jobs}.values())


def varied_in(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The fields of VARIED that differ among settings that have all of them."""
    return [name for name in VARIED if len({one[name] for one in settings}) > 1]


def with_values(request: RunRequest, name: str, values: Sequence[Any]) -> list[RunRequest]:
    """The request once for each value of the field ``name``. Errors: ConfigError."""
    return [replace(request, **{name: value}) for value in values]
