"""The fastest launch configuration of ``triton_kernel`` here, measured once per process and kind of problem."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from routesparse.kernels.common import instead_of_launching

_chosen: dict[Hashable, Config] = {}
_TIMED_RUNS = 3


@dataclass(frozen=True)
class Config:
    """A launch configuration: whether whole blocks are loaded by TMA descriptors or by pointers, warps and stages."""

    descriptor: bool
    num_warps: int
    num_stages: int


def fastest(kind: Hashable, configs: Sequence[Config], run: Callable[[Config], None]) -> Config:
    """The config with which ``run`` takes the least time; measured at the first call of this kind, then remembered.

    Measuring waits for the device, which a CUDA graph's capture forbids: there the first config is returned unmeasured.
    """
    if len(configs) == 1:
        return configs[0]
    if instead_of_launching.get() is not None:
        # The measuring below will run them all.
        for config in configs:
            run(config)
        return configs[0]
    if kind not in _chosen:
        if torch.cuda.is_current_stream_capturing():
            return configs[0]
        _chosen[kind] = min(configs, key=lambda config: _time_ms(lambda: run(config)))
    return _chosen[kind]


def _time_ms(run: Callable[[], None]) -> float:
    """The shortest of a few timed runs; the run before them compiles."""
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
