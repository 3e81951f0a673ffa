"""From the device to the host without waiting: copies that leave on their own, and lap times.

On a GPU both are queued on the current stream (pinned memory; events) and waited for only when somebody reads them,
which is after the prompt. On a CPU they are plain copies and the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch


class Readout:
    """Tensors on their way to the host; ``numpy`` waits for them once."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._host = {name: _leave(tensor) for name, tensor in tensors.items()}
        self._done = _event() if any(tensor.is_cuda for tensor in tensors.values()) else None

    def numpy(self) -> dict[str, np.ndarray]:
        """The tensors by name."""
        if self._done is not None:
            self._done.synchronize()
        return {name: tensor.numpy() for name, tensor in self._host.items()}


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


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Host values on a device; on a GPU the copy is queued, not waited for."""
    host = torch.as_tensor(values)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def _leave(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
