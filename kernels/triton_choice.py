"""Which launch configuration of the Triton kernel is the fastest here: measured once per kind of problem."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

_chosen: dict[Hashable, Config] = {}
_TIMED_RUNS = 3


@dataclass(frozen=True)
class Config:
    """How the kernel loads whole blocks (TMA descriptors or pointers), its warps and pipeline stages."""

    descriptor: bool
    num_warps: int
    num_stages: int


def fastest(kind: Hashable, configs: Sequence[Config], run: Callable[[Config], None]) -> Config:
    """The config with the smallest time of ``run``; measured at the first call of this kind, then remembered.

    The measurement waits for the device; while a CUDA graph is captured, the first config is taken unmeasured.
    """
    if len(configs) == 1:
        return configs[0]
    if kind not in _chosen:
        if torch.cuda.is_current_stream_capturing():
            return configs[0]
        _chosen[kind] = min(configs, key=lambda config: _time_ms(lambda: run(config)))
    return _chosen[kind]


def _time_ms(run: Callable[[], None]) -> float:
    """The shortest of a few timed runs, after one that compiles."""
    run()
    times = []
    for _ in range(_TIMED_RUNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times)
