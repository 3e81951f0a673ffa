"""From the device to the host without waiting: copies that leave on their own, and lap times.

On a GPU copies are queued on a stream of their own (pinned memory), beside the attention kernel that follows, lap
times on the current one; both are waited for only when somebody reads them, which is after the prompt. On a CPU they
are plain copies and the wall clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import torch

from routesparse.kernels import probe_triton, record_triton


class Copies:
    """Tensors on their way to the host; ``numpy`` waits for them once."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        device = next(iter(tensors.values())).device
        self._done: torch.cuda.Event | None = None
        if device.type != "cuda":
            self._host = dict(tensors)
            return
        stream = _leaving(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._host = {name: _leave(tensor) for name, tensor in tensors.items()}
            self._done = _event()
        for tensor in tensors.values():
            tensor.record_stream(stream)

    def numpy(self) -> dict[str, np.ndarray]:
        """The tensors by name."""
        if self._done is not None:
            self._done.synchronize()
        return {name: tensor.numpy() for name, tensor in self._host.items()}


class Readout:
    """Packed tensors on their way to the host, as one copy."""

    def __init__(self, packed: Packed) -> None:
        self._layout = packed.layout
        self._copies = Copies({"values": packed.values})

    def numpy(self) -> dict[str, np.ndarray]:
        """The tensors by name, once they have arrived."""
        values, found, start = self._copies.numpy()["values"], {}, 0
        for name, (shape, dtype) in self._layout.items():
            end = start + math.prod(shape)
            found[name] = values[start:end].reshape(shape).astype(dtype)
            start = end
        return found


Layout = dict[str, tuple[tuple[int, ...], np.dtype]]  # shape and type by name


@dataclass(frozen=True)
class Packed:
    """Tensors by name in one flat float64 tensor (exact for every integer that they hold)."""

    values: torch.Tensor
    layout: Layout

    def places(self) -> dict[str, int]:
        """Where each tensor starts."""
        sizes = [math.prod(shape) for shape, _ in self.layout.values()]
        return dict(zip(self.layout, accumulate(sizes, initial=0), strict=False))

    def part(self, name: str) -> torch.Tensor:
        """One of the tensors, flat, to be written to."""
        start = self.places()[name]
        return self.values[start : start + math.prod(self.layout[name][0])]


def pack(tensors: Mapping[str, torch.Tensor]) -> Packed:
    """All of them in one tensor, on their device."""
    layout = {
        name: (tuple(x.shape), np.dtype(str(x.dtype).removeprefix("torch."))) for name, x in tensors.items()
    }
    return Packed(torch.cat([x.flatten().double() for x in tensors.values()]), layout)


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
        if self._times.is_cuda:
            probe_triton.stamp(self._times, self._place)
        else:
            self._times[self._place] = time.perf_counter_ns()
        self._place += 1

    def elapsed_us(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """float64 [laps], when all have ended; out: where they go."""
        if out is None:
            out = torch.empty(len(self._times) - 1, dtype=torch.float64, device=self._times.device)
        if self._times.is_cuda:
            record_triton.write_laps(self._times, out)
        else:
            torch.div(self._times.diff().double(), 1e3, out=out)
        return out


_Key = tuple[bytes, str, tuple[int, ...], torch.device]
_held: ContextVar[dict[_Key, torch.Tensor] | None] = ContextVar("held", default=None)


def constant(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A table of constants on a device, moved there once. Not to be written to."""
    key = (values.tobytes(), values.dtype.str, values.shape, device)
    held = _held.get()
    if held is None:
        return _constant(*key)
    if key not in held:
        held[key] = _constant(*key)
    return held[key]


@contextmanager
def holding(held: dict[_Key, torch.Tensor]) -> Iterator[None]:
    """Constants used inside live as long as ``held``: a CUDA graph knows them by address only."""
    token = _held.set(held)
    try:
        yield
    finally:
        _held.reset(token)


@lru_cache(maxsize=4_096)
def _constant(data: bytes, dtype: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return to_device(np.frombuffer(data, dtype).reshape(shape).copy(), device)


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Host values on a device; on a GPU the copy is queued, not waited for."""
    host = torch.as_tensor(values)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def wait_for_copies(device: torch.device) -> None:
    """On a GPU, what is queued from here on comes after the copies that are leaving: their sources may be reused."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_leaving(device))


@lru_cache
def _leaving(device: torch.device) -> torch.cuda.Stream:
    """The stream that carries copies from a GPU to the host."""
    return torch.cuda.Stream(device)


def _leave(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
