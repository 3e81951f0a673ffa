"""A hand-over between warp groups that is right by PTX's memory model and that racecheck reports all the same.

    compute-sanitizer --tool racecheck python tests/kernels/attention/handover.py

One warp group stores a word, meets at its own barrier and arrives at an mbarrier; the other waits for that phase,
reads the word, meets and arrives at a second mbarrier, for which the writer waits before it stores again. Nothing else
is in the kernel, no copy either. The words read are checked. What racecheck says of ``hopper_kernel``, which hands its
rows and tiles over in this way, is to be read beside what it says here: a transfer that happens once is clean, one that
comes round again is reported, and so is one beside a TMA copy. The tool does not follow these barriers.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

TURNS = 3
_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


@gluon.jit
def _write(word, full, empty, TURNS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    for turn in range(TURNS):
        mbarrier.wait(empty, (turn & 1) ^ 1)
        word.store(gl.full([1], 7, gl.int32, layout) + turn)
        _barrier()
        mbarrier.arrive(full, count=1)


@gluon.jit
def _read(out_ptr, word, full, empty, TURNS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    lane = gl.arange(0, 128, layout)
    for turn in range(TURNS):
        mbarrier.wait(full, turn & 1)
        found = gl.max(word.load(layout), 0)
        _barrier()
        mbarrier.arrive(empty, count=1)
        gl.store(out_ptr + turn * 128 + lane, lane * 0 + found)


@gluon.jit
def handover_kernel(out_ptr, TURNS: gl.constexpr):
    word = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(empty, count=1)
    fence_async_shared()
    gl.warp_specialize(
        [(_read, (out_ptr, word, full, empty, TURNS)), (_write, (word, full, empty, TURNS))], [4], [72]
    )


if __name__ == "__main__":
    out = torch.zeros(TURNS, 128, dtype=torch.int32, device="cuda")
    handover_kernel[(1,)](out, TURNS=TURNS, num_warps=4)
    expected = (7 + torch.arange(TURNS, device="cuda", dtype=torch.int32)).unsqueeze(1).expand(-1, 128)
    assert torch.equal(out, expected)
    print(f"read what was written, {TURNS} times")
