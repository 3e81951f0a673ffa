"""CUDA graphs of a whole decision: hundreds of small launches become one (section 3.4: the router must not cost).

A graph is captured per shape and setting and replayed for every later layer and prompt of that shape. What changes
between replays enters through static buffers: the random draws, the padding, and the addresses of q and k, which the
kernels read from a table, so no query or key is copied. Where attention is part of the graph they are copied, and v:
descriptors hold addresses. What leaves lies in the graph's own memory until the next replay; everything that reads it
is queued on the same stream before that.

A shape is launched at its first call and captured at its second; the pooled probe and attention sinks are never
captured. Graphs are kept between a worker's prompts and between the route() blocks of a model. A session with a
calibration keeps graphs of its own, because they read its error predictor by address.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch

from routesparse.engine.device.constants import copy_to, holding, to_device
from routesparse.engine.device.copies import wait_for_copies
from routesparse.engine.device.inputs import AttentionInputs

T = TypeVar("T")
KEPT = 32  # graphs; each holds its level maps
KEPT_SHARE = 0.05  # of a GPU's memory
# Calls for which a key that had to make room is not captured again: keys that a layer comes round to, but that do not
# fit together, would else capture each other away.
SHUT_OUT = 256


@dataclass
class _Entry:
    """Static buffers and what was captured on them. Queries and keys, most of the memory, are kept where copied."""

    key_start: torch.Tensor | None
    table: torch.Tensor
    draws: torch.Tensor
    copied: dict[str, Any]  # q, k and v
    constants: dict[Any, torch.Tensor] = field(default_factory=dict)  # that the graph reads by address
    graph: Any = None  # with ``replay``
    result: Any = None
    size: int = 0  # bytes of the graph's own memory


class Gpu:
    """What Graphs asks of a GPU: its stream, its memory, a capture. On a CPU there is nothing to count."""

    def stream(self, device: torch.device) -> torch.cuda.Stream | None:
        """The stream that a replay and what reads its result are queued on: on another one they would race."""
        return torch.cuda.current_stream(device) if device.type == "cuda" else None

    def reserved(self, device: torch.device) -> int:
        """Bytes that the allocator holds."""
        return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0

    def most_bytes(self, device: torch.device, held: int) -> float:
        """What all graphs together may hold; held: what they do. As much stays free, where a server left little."""
        if device.type != "cuda":
            return float("inf")
        free, total = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return min(KEPT_SHARE * total, (free + held) / 2)

    def capture(self, function: Callable[[], T]) -> tuple[Any, T]:
        """A graph of what the function queues, and its result."""
        # torch.cuda.graph would wait for the device and empty the allocator's cache first.
        graph = torch.cuda.CUDAGraph()
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            # Other threads may go on using the device.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                result = function()
            finally:
                graph.capture_end()
        current.wait_stream(side)
        return graph, result


class Graphs:
    """Runs a function of (inputs, draws) as a graph from its second call of one key on.

    One device, one thread at a time. What was used last is kept, up to KEPT graphs and KEPT_SHARE of the memory.
    """

    def __init__(self, capture: bool = True, gpu: Gpu | None = None) -> None:
        """capture: False launches everything at each call, with the same results.

        For prompts of all lengths, whose graphs no other prompt would replay, and for several processes on one GPU:
        capturing takes memory from the driver, which waits for all of them. gpu: the seam for tests.
        """
        self._gpu = gpu or Gpu()
        self._capture = capture
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._evicted: dict[Hashable, int] = {}  # the call that each key made room at
        self._calls = 0

    @property
    def captures(self) -> bool:
        """Whether calls are replayed at all."""
        return self._capture

    def run(
        self,
        key: Hashable,
        inputs: AttentionInputs,
        draws: torch.Tensor,
        function: Callable[[AttentionInputs, torch.Tensor], T],
        copied: bool = False,
    ) -> T:
        """function's result for these inputs; draws: host tensor. The key names everything else it depends on.

        copied: the function may take q, k and v by their own addresses. The first call of a key runs eagerly: it
        compiles kernels and fills the caches of constants.
        """
        device = inputs.q.device
        if not self._capture:
            return function(inputs, to_device(draws, device))
        # What inference mode makes is no tensor for a caller outside of it.
        caller = (device, self._gpu.stream(device), torch.is_inference_mode_enabled())
        key = (key, caller, inputs.q.dtype, *(x.shape + x.stride() for x in (inputs.q, inputs.k)))
        self._calls += 1
        if self._calls < self._evicted.get(key, -SHUT_OUT) + SHUT_OUT:
            return function(inputs, to_device(draws, device))
        entry: _Entry | None = self._entries.pop(key, None)
        fresh = entry is None
        if entry is None:
            key_start = None if inputs.key_start is None else torch.empty_like(inputs.key_start)
            table = torch.empty(2, dtype=torch.int64, device=device)
            own_draws = torch.empty(draws.shape, dtype=draws.dtype, device=device)
            try:
                qkv = {name: torch.empty_like(getattr(inputs, name)) for name in ("q", "k", "v") if copied}
            except torch.OutOfMemoryError:
                # A server leaves little beside its own: what was kept goes, and this call needs no copies.
                self._entries.clear()
                return function(inputs, to_device(draws, device))
            entry = _Entry(key_start, table, own_draws, qkv)
            while len(self._entries) >= KEPT:
                self._evict()
        self._entries[key] = entry
        for name, own in entry.copied.items():
            own.copy_(getattr(inputs, name))
        if fresh or not entry.copied:
            q, k = (entry.copied.get(name, getattr(inputs, name)) for name in ("q", "k"))
            copy_to(entry.table, np.array([q.data_ptr(), k.data_ptr()]))
        copy_to(entry.draws, draws)
        if inputs.key_start is not None and entry.key_start is not None:
            entry.key_start.copy_(inputs.key_start)
        if fresh or entry.graph is None:
            static = replace(inputs, key_start=entry.key_start, table=entry.table, **entry.copied)
            try:
                with holding(entry.constants):
                    if fresh:
                        return function(static, entry.draws)
                    before = self._gpu.reserved(device)
                    entry.graph, entry.result = self._gpu.capture(lambda: function(static, entry.draws))
            except BaseException:
                # A call that ended early has made part of the constants only; none may be made while capturing.
                del self._entries[key]
                raise
            entry.size = max(0, self._gpu.reserved(device) - before)
            entry.size += sum(own.nbytes for own in entry.copied.values())
            most = self._gpu.most_bytes(device, self._held())
            while len(self._entries) > 1 and self._held() > most:
                self._evict()
        wait_for_copies(device)
        entry.graph.replay()
        found: T = entry.result
        return found

    def _held(self) -> int:
        return sum(entry.size for entry in self._entries.values())

    def _evict(self) -> None:
        """Forget what was used longest ago."""
        key, _ = self._entries.popitem(last=False)
        self._evicted = {kept: at for kept, at in self._evicted.items() if self._calls < at + SHUT_OUT}
        self._evicted[key] = self._calls


@contextmanager
def beside(device: torch.device, urgent: bool = False) -> Iterator[Callable[[], None]]:
    """Where a graph is captured, what is queued inside becomes a branch beside what follows, until the function yielded
    joins it; elsewhere, nothing changes. urgent: its programs start before those of what follows.

    In a graph alone: what a branch makes is freed into its own stream, and the constants that it shares with others
    are there since the key's first call.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        yield lambda: None
        return
    current, branch = torch.cuda.current_stream(device), torch.cuda.Stream(device, -int(urgent))
    branch.wait_stream(current)
    with torch.cuda.stream(branch):
        yield lambda: current.wait_stream(branch)
