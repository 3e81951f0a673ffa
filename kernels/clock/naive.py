"""The host's clock."""

from __future__ import annotations

import time

import torch


def stamp(out: torch.Tensor, place: int) -> None:
    """Write the clock, in nanoseconds, to out[place] (int64) when the work before is done."""
    out[place] = time.perf_counter_ns()


def write_laps(times: torch.Tensor, laps: torch.Tensor) -> None:
    """times int64 [laps + 1] in nanoseconds -> laps float64 [laps] in microseconds."""
    torch.div(times.diff().double(), 1e3, out=laps)
