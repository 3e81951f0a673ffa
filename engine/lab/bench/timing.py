"""Sustained device times: a kernel is repeated until the GPU's power limit has settled, then the runs are counted.

At the power limit short runs vary by 10 %, so only sustained runs are compared.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from routesparse.engine.provenance import git_commit, now, versions


@dataclass(frozen=True)
class Timing:
    """Median and the 20th and 80th percentile of the counted runs, in ms."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    runs: int


def sustained(
    run: Callable[..., object], *inputs: object, seconds: float = 0.7, least_runs: int = 3
) -> Timing:
    """Time ``run(*inputs)`` back to back for about ``seconds``; the first third of the runs is not counted."""
    run(*inputs)
    torch.cuda.synchronize()
    probe_ms = _elapsed_ms(run, inputs, 1)[0]
    runs = max(least_runs, int(seconds * 1e3 / max(probe_ms, 1e-3)))
    times = sorted(_elapsed_ms(run, inputs, runs)[runs // 3 :])
    return Timing(
        times[len(times) // 2], times[int(0.2 * len(times))], times[int(0.8 * len(times))], len(times)
    )


def _elapsed_ms(run: Callable[..., object], inputs: tuple[object, ...], runs: int) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
    events[0].record()
    for event in events[1:]:
        run(*inputs)
        event.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairwise(events)]


def matmul_ceiling_tflops() -> float:
    """What the matrix units reach on a large bf16 product in this run: the bound that no attention passes."""
    a = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4096, 14336, device="cuda", dtype=torch.bfloat16)
    return 2 * 8192 * 4096 * 14336 / sustained(torch.matmul, a, b).median_ms / 1e9


def header(seed: int) -> dict[str, Any]:
    """Where and with what a benchmark ran, and the command that makes the file again."""
    return {
        "command": "routesparse " + shlex.join(sys.argv[1:]),
        "created_at": now(),
        "device": torch.cuda.get_device_name(),
        "power_limit": _power_limit(),
        "versions": versions(),
        "git_commit": git_commit(),
        "dtype": "bfloat16",
        "seed": seed,
    }


def _power_limit() -> str | None:
    """The board's power limit as the driver prints it; None where there is no nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader"]
    try:
        printed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    # A line per GPU of the host, which are alike.
    return printed.splitlines()[0].strip()
