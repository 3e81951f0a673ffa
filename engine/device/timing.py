"""Lap times: by events of the current stream, or by the device's own clock inside a CUDA graph."""

from __future__ import annotations

import time
from itertools import pairwise

import torch

from routesparse.kernels import clock


class Laps:
    """Times between marks in one stream of work, in microseconds."""

    def __init__(self, device: torch.device) -> None:
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []
        self._cuda = device.type == "cuda"
        self.lap()

    def lap(self) -> None:
        """End a lap here."""
        if self._cuda:
            self._events.append(_event())
        else:
            self._times.append(time.perf_counter())

    def elapsed_us(self) -> list[float]:
        """Every lap's time; waits for the last one."""
        if not self._cuda:
            return [(after - before) * 1e6 for before, after in pairwise(self._times)]
        self._events[-1].synchronize()
        return [before.elapsed_time(after) * 1e3 for before, after in pairwise(self._events)]


class Stamps:
    """Laps as a tensor, by the device's own clock: what runs inside a CUDA graph has no events of its own."""

    def __init__(self, device: torch.device, laps: int) -> None:
        self._times = torch.empty(laps + 1, dtype=torch.int64, device=device)
        self._place = 0
        self.laps = laps
        self.lap()

    def lap(self) -> None:
        """End a lap here."""
        clock.stamp(self._times, self._place)
        self._place += 1

    def elapsed_us(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """float64 [laps], when all have ended; out: where they go."""
        if out is None:
            out = torch.empty(len(self._times) - 1, dtype=torch.float64, device=self._times.device)
        clock.write_laps(self._times, out)
        return out


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
