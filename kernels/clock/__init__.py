"""A clock that also runs inside a CUDA graph, which has no events of its own."""

from __future__ import annotations

import torch

from routesparse.kernels.clock import naive
from routesparse.kernels.common import dispatched_on_gpu, power_of_two, variant


@dispatched_on_gpu(naive.stamp)
def stamp(out: torch.Tensor, place: int) -> None:
    """Write the GPU's clock, in nanoseconds, to out[place] (int64) when the work before is done."""
    from routesparse.kernels.clock.kernel import stamp_kernel

    variant(stamp_kernel)[(1,)](out, place, num_warps=1)


@dispatched_on_gpu(naive.write_laps)
def write_laps(times: torch.Tensor, laps: torch.Tensor) -> None:
    """times int64 [laps + 1] in nanoseconds -> laps float64 [laps] in microseconds."""
    from routesparse.kernels.clock.kernel import laps_kernel

    variant(laps_kernel)[(1,)](times, laps, len(laps), COUNT=power_of_two(len(laps)), num_warps=1)
