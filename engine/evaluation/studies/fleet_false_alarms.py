"""How often the page Fleet raises an alarm about a day on which nothing changed, at the level that it ships with.

    python -m routesparse.engine.evaluation.studies.fleet_false_alarms --seed 1 --out data/results/fleet_alarms_cpu.json

A draw is a day of n requests of a model behind so many in the days before, all of one distribution: verdicts and drift
alarms that are rare, a share of fallbacks that is mostly nothing, a skewed area; all independent of each other. Every
draw is judged by ``stats/fleet_alarms.py`` itself, as a model of its own. Day and requests before are of the sizes in
SIZES, from the fewest that are judged on. Wilson intervals, 95 %.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.device.names import cpu_name
from routesparse.engine.evaluation import study
from routesparse.engine.provenance import git_commit, versions
from routesparse.engine.stats import fleet_alarms
from routesparse.engine.stats.paired import wilson

SIZES = ((20, 20), (20, 140), (60, 400), (200, 400))  # requests of the day, of the days before
BATCH = 500  # draws judged at a time
DAY, BEFORE = "2026-11-20", "2026-11-19"


def main(argv: list[str] | None = None) -> None:
    """Draw until the time is up, every size in turn, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=50_000, help="of each size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start no batch after it")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    random, deadline = np.random.default_rng(arguments.seed), time.monotonic() + arguments.limit_s
    alarms, draws = dict.fromkeys(SIZES, 0), dict.fromkeys(SIZES, 0)
    while min(draws.values()) < arguments.draws and time.monotonic() < deadline:
        for size in SIZES:
            alarms[size] += false_alarms(random, *size, BATCH)
            draws[size] += BATCH
    result = {
        "command": study.command(),
        "created_at": study.now(),
        "device": cpu_name(),
        "versions": versions(),
        "git_commit": git_commit(),
        "seed": arguments.seed,
        "level": fleet_alarms.LEVEL,
        "figures": list(fleet_alarms.FIGURES),
        "rows": [_row(size, alarms[size], draws[size]) for size in SIZES],
    }
    study.save(arguments.out, result)


def false_alarms(
    random: np.random.Generator, n: int, before: int, draws: int, level: float = fleet_alarms.LEVEL
) -> int:
    """Of so many days without a change, those that raise an alarm."""
    found = fleet_alarms.judge(requests(random, n, before, draws), level)
    raised = found[(found["day"] == DAY) & (found["state"] == "alarm")]
    return int(raised["model"].nunique())


def requests(random: np.random.Generator, n: int, before: int, draws: int) -> pd.DataFrame:
    """So many days of n requests, each behind ``before`` others, each of a model of its own."""
    each = n + before
    total = draws * each
    return pd.DataFrame(
        {
            "model": np.repeat([f"m{draw}" for draw in range(draws)], each),
            "day": np.tile(np.repeat([BEFORE, DAY], [before, n]), draws),
            "red": random.random(total) < 0.05,
            "drift_alarm": (random.random(total) < 0.05).astype(float),
            "fell_back": np.where(random.random(total) < 0.3, random.random(total) ** 3, 0.0),
            "density": np.exp(random.normal(-1.5, 0.4, total)),
        }
    )


def _row(size: tuple[int, int], alarms: int, draws: int) -> dict[str, Any]:
    low, high = wilson(alarms / draws, draws)
    return {"n": size[0], "before": size[1], "draws": draws, "alarms": alarms, "low": low, "high": high}


if __name__ == "__main__":
    study.run(main)
