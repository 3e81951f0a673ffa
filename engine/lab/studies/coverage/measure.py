"""Measure every unit of the planned windows once: what calibrations, coverage, controls and drift are computed from.

    python -m routesparse.engine.lab.studies.coverage.measure --plan plan.jsonl.gz --profile PROFILE.json \\
        --out units.jsonl --processes 5 --limit-s 530

All windows are routed by the default policy, in float32 (TF32 off), with one shipped latency profile, so that the
selected candidates are those of the CPU default wherever this runs. --out grows by a line per run (its command,
devices, commit, plan and every planned window) and one per window, with its units column by column, or why it has
none; what it holds already is skipped, so the same command goes on where it was cut off.

The truth of a unit is the whole body, or one row of each of 1,024 strata of it: independent rows would add their own
noise to delta.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from routesparse.engine.calibrate.origin import now
from routesparse.engine.calibrate.row_files import Appender, read_lines
from routesparse.engine.config import RouterConfig
from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import share
from routesparse.engine.crew.work import Piece, Work
from routesparse.engine.device.names import device_name
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.coverage.plan import Planned, read_plan
from routesparse.engine.lab.studies.coverage.units import measure
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.provenance import git_commit, versions

DIGITS = 6  # of a number: masses to a millionth


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the journal."""
    parser = study.parser(__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="what coverage.plan wrote")
    parser.add_argument("--profile", type=Path, required=True, help="latency profile (.json)")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing after it")
    study.add_processes(parser)
    arguments = parser.parse_args(argv)
    deadline = time.time() + arguments.limit_s
    header, planned = read_plan(arguments.plan)
    config = RouterConfig(seed=arguments.seed, break_even_tokens=0)
    opened = functools.partial(_opened, arguments.model, arguments.profile, config)
    crew, count = Processes(arguments.processes, arguments.ray).crew(opened)
    gpus = [device_name(torch.device("cuda", i)) for i in range(torch.cuda.device_count())]
    about = {
        "command": study.command(),
        "created_at": now(),
        "devices": {"cpu": device_name(torch.device("cpu")), "cores": os.cpu_count(), "cuda": gpus},
        "processes": {"cpu": 0 if gpus else count, "cuda": count if gpus else 0},
        "versions": versions(),
        "git_commit": git_commit(),
        "config": config.to_dict(),
        "plan": header,
        "windows": [window.facts for window in planned],
    }
    there = read_lines(arguments.out) if arguments.out.exists() else ()
    done = {(record["part"], record["sha256"]) for _, record in there if "units" in record}
    lots = [
        [Piece(f"window {one.number}", one)] for one in planned if (one.part, one.window.sha256) not in done
    ]
    with Appender(arguments.out) as file:
        file.write(about)
        work = Work("measure", opened, lots, lambda piece, record: file.write(record))
        outcome = share(work, crew, count, study.note, deadline)
        for (piece,) in lots:
            if reason := outcome.failed.get(piece.name):
                file.write({**piece.given.facts, "failed": reason})
    study.note(f"{outcome.done} measured, {len(outcome.failed)} failed, {outcome.left} left")


def _opened(
    model: str, profile: Path, config: RouterConfig, place: int
) -> Callable[[Planned], dict[str, Any]]:
    loaded, costs = load_float32(model, place), LatencyProfile.load(profile)

    def do(planned: Planned) -> dict[str, Any]:
        window, units = measure(loaded, planned, config, costs)
        return {**planned.facts, **window, "device": loaded.device, "units": columns(units)}

    return do


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, numbers rounded to DIGITS; None where a row lacks a value, or for NaN."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [_plain(row.get(name)) for row in rows] for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None
    return value


def load_float32(model: str, place: int) -> LoadedModel:
    """The model in float32 whatever the device, GPUs in turn, and no TF32 anywhere."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{place % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    loaded = load_model(model, device="cpu")
    return replace(loaded, model=loaded.model.float().to(device), device=device, dtype="float32")


if __name__ == "__main__":
    study.run(main)
