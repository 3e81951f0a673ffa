"""From the device to the host without waiting: copies that leave on their own and are waited for when somebody reads.

On a GPU copies are queued on a stream of their own (pinned memory): records leave while the attention kernel runs, and
a replayed graph waits only for the copies of its last replay. On a CPU they are plain copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch


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
            self._done = torch.cuda.Event()
            self._done.record()
        for tensor in tensors.values():
            tensor.record_stream(stream)

    @property
    def have_arrived(self) -> bool:
        """Whether ``numpy`` would wait for nothing."""
        return self._done is None or self._done.query()

    def numpy(self) -> dict[str, np.ndarray]:
        """The tensors by name."""
        if self._done is not None:
            self._done.synchronize()
        return {name: tensor.numpy() for name, tensor in self._host.items()}


class Readout:
    """Packed tensors on their way to the host, as one copy."""

    def __init__(self, packed: Packed, copies: Copies | None = None) -> None:
        """copies: has them already, as "values"."""
        self._layout = packed.layout
        self._copies = copies or Copies({"values": packed.values})

    def first(self, name: str) -> float:
        """The first number of one tensor, once it has arrived."""
        start = places_of(self._layout)[name]
        return float(self._copies.numpy()["values"][start])

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
        return places_of(self.layout)

    def part(self, name: str) -> torch.Tensor:
        """One of the tensors, flat, to be written to."""
        start = self.places()[name]
        return self.values[start : start + math.prod(self.layout[name][0])]


def places_of(layout: Layout) -> dict[str, int]:
    """Where each tensor of a layout starts."""
    sizes = [math.prod(shape) for shape, _ in layout.values()]
    return dict(zip(layout, accumulate(sizes, initial=0), strict=False))


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
