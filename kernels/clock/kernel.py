"""The device code of lap times: the GPU's own clock."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["place"])
def stamp_kernel(out_ptr, place):
    """The GPU's own clock in nanoseconds."""
    now = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(out_ptr + place, now)


@triton.jit
def laps_kernel(times_ptr, laps_ptr, count, COUNT: tl.constexpr):
    """Nanoseconds int64 [count + 1] -> microseconds between them, float64 [count]."""
    lap = tl.arange(0, COUNT)
    real = lap < count
    after = tl.load(times_ptr + lap + 1, mask=real, other=0)
    before = tl.load(times_ptr + lap, mask=real, other=0)
    tl.store(laps_ptr + lap, (after - before).to(tl.float64) / 1e3, mask=real)
