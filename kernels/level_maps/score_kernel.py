"""The device code of the ranked families: one query block's scores, binned for top-k and compared with floors.

One warp works on a query
block and walks over its row up to the diagonal. Bins are counted, and levels looked up, in shared memory by a few
lines of PTX: Triton's own histogram spends some 60 instructions on each element, its gather some 20. The interpreter
knows no PTX and takes Triton's.

One warp a row, up to the diagonal, takes 107 us where Triton's histogram took 560 (a single run while tuning, H200,
131,072 tokens, 32 heads). 512 bins cost 1.5 times as much as 256.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import NEVER, blocks_of

LANES = tl.constexpr(32)
# In shared memory, 4 bytes each: 256 bins, and one word for what has no bin.
ALLOCATE = tl.constexpr("{ .shared .align 16 .b32 bins[257]; mov.u32 $0, bins; }")
LOAD = tl.constexpr("ld.shared.b32 $0, [$1];")
STORE = tl.constexpr("st.shared.b32 [$1], $2; mov.b32 $0, 0;")
ADD = tl.constexpr("red.shared.add.u32 [$1], $2; mov.b32 $0, 0;")


@triton.jit
def score_levels_kernel(
    scores_ptr, question_ptr, top_k_ptr, floor_ptr, top_k_count_ptr, floor_count_ptr, budgets_ptr,
    floors_ptr, first_key_ptr, heads, query_blocks, key_blocks, position, segment_keys, budgets,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, LOCAL_BLOCKS: tl.constexpr, CHUNK: tl.constexpr,
    BITS: tl.constexpr, FLOORS: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One query block: bin its scores, best first, place each budget at a bin's edge, give each block its levels."""
    BINS: tl.constexpr = 1 << BITS
    row = tl.program_id(0).to(tl.int64)
    query_block = (row % query_blocks).to(tl.int32)
    unit = row // query_blocks
    base, last, sink = blocks_of(
        query_block, first_key_ptr, unit // heads, position, segment_keys, BLOCK_Q, BLOCK_K
    )
    local = tl.maximum(base - LOCAL_BLOCKS, sink)
    # Every plan reads the sink and from ``local`` to the diagonal; what the budgets rank lies between.
    forced = tl.maximum(last - local + 1, 0) + ((local > sink) & (last >= sink)).to(tl.int32)
    ranked = tl.maximum(local - sink - 1, 0)
    row_ptr = scores_ptr + row * key_blocks
    asked_ptr = question_ptr + unit * key_blocks
    step = tl.arange(0, CHUNK)

    high = tl.full([CHUNK], -float("inf"), tl.float32)
    low = tl.full([CHUNK], float("inf"), tl.float32)
    for start in range(0, local, CHUNK):
        score = scores_of(row_ptr, asked_ptr, start + step, key_blocks)
        if (start > sink) & (start + CHUNK <= local):
            high, low = tl.maximum(high, score), tl.minimum(low, score)
        else:
            open_ = is_ranked(start + step, sink, ranked)
            high = tl.maximum(high, tl.where(open_, score, -float("inf")))
            low = tl.minimum(low, tl.where(open_, score, float("inf")))
    high = tl.max(high, 0)
    spread = tl.where(ranked > 0, high - tl.min(low, 0), 0.0)
    width = tl.maximum(spread, 1e-20) / BINS
    per_width = 1.0 / width

    # Bins as [bins of a lane, lanes], consecutive ones in a lane: sums over bins are then a lane's own.
    bin_of = tl.arange(0, LANES)[None, :] * (BINS // LANES) + tl.arange(0, BINS // LANES)[:, None]
    shared = 0
    if PTX:
        shared = tl.inline_asm_elementwise(ALLOCATE, "=r,r", [sink], dtype=tl.int32, is_pure=False, pack=1)
        put(STORE, shared, bin_of, tl.zeros_like(bin_of))
        tl.debug_barrier()
    counted = tl.zeros([BINS], dtype=tl.int32)
    above = (tl.zeros([CHUNK], dtype=tl.int32),) * FLOORS
    for start in range(0, local, CHUNK):
        n = start + step
        score = scores_of(row_ptr, asked_ptr, n, key_blocks)
        if (start > sink) & (start + CHUNK <= local):
            above = add_above(above, score, floors_ptr, FLOORS)
        else:
            counts = tl.where(is_ranked(n, sink, ranked), score, -float("inf"))
            above = add_above(above, counts, floors_ptr, FLOORS)
        bin_ = bins_of(score, high, per_width, BINS)
        if PTX:
            if (start <= sink) | (start + CHUNK > local):
                bin_ = tl.where(is_ranked(n, sink, ranked), bin_, BINS)
            put(ADD, shared, bin_, tl.full([CHUNK], 1, tl.int32))
        else:
            open_ = is_ranked(n, sink, ranked)
            counted += tl.histogram(tl.where(open_, bin_, 0), BINS, mask=open_)
    for floor in tl.static_range(FLOORS):
        tl.store(floor_count_ptr + row * FLOORS + floor, forced + tl.sum(above[floor], 0))
    if PTX:
        tl.debug_barrier()
        count = word(shared, bin_of)
    else:
        count = tl.trans(tl.reshape(counted, [LANES, BINS // LANES]))
    up_to = sums_to(count)

    # One lane a level: the bins of a level are the first ones, as far as its limit goes.
    level = tl.arange(0, LANES)
    real = level < budgets
    limit = tl.load(budgets_ptr + level, mask=real, other=0) - forced
    sums = tl.zeros([BINS], dtype=tl.int32)
    if PTX:
        put(STORE, shared, bin_of, up_to)
        tl.debug_barrier()
    else:
        sums = tl.ravel(tl.trans(up_to))
    bins = tl.zeros([LANES], dtype=tl.int32)
    for halving in tl.static_range(BITS + 1):
        half = tl.maximum(BINS >> (halving + 1), 1)
        found = take(shared, sums, bins + (half - 1), PTX)
        bins += tl.where(found <= limit, half, 0)
    read = forced + tl.where(bins > 0, take(shared, sums, tl.maximum(bins - 1, 0), PTX), 0)
    tl.store(top_k_count_ptr + row * budgets + level, read, mask=real)

    # A bin's level is the number of levels that end before it.
    edge = tl.where(real & (bins < BINS), bins, BINS)
    if PTX:
        tl.debug_barrier()
        put(STORE, shared, bin_of, tl.zeros_like(bin_of))
        tl.debug_barrier()
        put(ADD, shared, edge, tl.full([LANES], 1, tl.int32))
        tl.debug_barrier()
        ends = word(shared, bin_of)
    else:
        ends = tl.histogram(tl.where(edge < BINS, edge, 0), BINS, mask=edge < BINS)
        ends = tl.trans(tl.reshape(ends, [LANES, BINS // LANES]))
    ended = sums_to(ends)
    of_bin = tl.where(ended == budgets, NEVER, ended)
    table = tl.zeros([BINS], dtype=tl.int32)
    if PTX:
        put(STORE, shared, bin_of, of_bin)
        tl.debug_barrier()
    else:
        table = tl.ravel(tl.trans(of_bin))

    for start in range(0, last + 1, CHUNK):
        n = start + step
        score = scores_of(row_ptr, asked_ptr, n, key_blocks)
        bin_ = bins_of(score, high, per_width, BINS)
        floor_level = levels_below(score, floors_ptr, FLOORS)
        # Pieces without a forced or hidden block are spared the questions.
        if (start > sink) & (start + CHUNK <= local):
            level_of = take(shared, table, bin_, PTX)
        else:
            open_ = is_ranked(n, sink, ranked)
            # Of the others those before the sink and beyond the diagonal are NEVER.
            fixed = tl.where((n >= sink) & (n <= last), 0, NEVER)
            level_of = tl.where(open_, take(shared, table, tl.where(open_, bin_, 0), PTX), fixed)
            floor_level = tl.where(open_, floor_level, fixed)
        tl.store(top_k_ptr + row * key_blocks + n, level_of.to(tl.uint8), mask=n < key_blocks)
        tl.store(floor_ptr + row * key_blocks + n, floor_level.to(tl.uint8), mask=n < key_blocks)
    nothing = tl.full([CHUNK], NEVER, tl.uint8)
    for start in range((last // CHUNK + 1) * CHUNK, key_blocks, CHUNK):
        n = start + step
        tl.store(top_k_ptr + row * key_blocks + n, nothing, mask=n < key_blocks)
        tl.store(floor_ptr + row * key_blocks + n, nothing, mask=n < key_blocks)


@triton.jit
def scores_of(row_ptr, asked_ptr, n, key_blocks):
    """Scores [CHUNK] float32 of blocks n, or what the question makes of them."""
    score = tl.load(row_ptr + n, mask=n < key_blocks, other=0.0).to(tl.float32)
    return tl.maximum(score, tl.load(asked_ptr + n, mask=n < key_blocks, other=-float("inf")))


@triton.jit
def add_above(counts, score, floors_ptr, FLOORS: tl.constexpr):
    """Count for each floor, [CHUNK] each, the scores that reach it."""
    added = ()
    for floor in tl.static_range(FLOORS):
        reaches = (score >= tl.load(floors_ptr + floor)).to(tl.int32)
        # A kernel can not unpack.
        added = added + (counts[floor] + reaches,)  # type: ignore[assignment]  # noqa: RUF005
    return added


@triton.jit
def levels_below(score, floors_ptr, FLOORS: tl.constexpr):
    """The number of floors above each score, NEVER where all are."""
    level = tl.zeros_like(score).to(tl.int32)
    for floor in tl.static_range(FLOORS):
        level += (score < tl.load(floors_ptr + floor)).to(tl.int32)
    return tl.where(level == FLOORS, NEVER, level)


@triton.jit
def is_ranked(n, sink, ranked):
    """Blocks between the sink and the local ones."""
    return (n - (sink + 1)).to(tl.uint32) < ranked.to(tl.uint32)


@triton.jit
def bins_of(score, high, per_width, BINS: tl.constexpr):
    """Bins of scores up to high, 0 the best."""
    return tl.minimum(tl.maximum(((high - score) * per_width).to(tl.int32), 0), BINS - 1)


@triton.jit
def sums_to(x):
    """Sums up to and with each bin, x [bins of a lane, lanes]."""
    of_lane = tl.sum(x, 0)
    return tl.cumsum(x, 0) + (tl.cumsum(of_lane, 0) - of_lane)[None, :]


@triton.jit
def take(shared, words, place, PTX: tl.constexpr):
    """Words at places, in shared memory or, for the interpreter, of a tensor."""
    if PTX:
        return word(shared, place)
    return tl.gather(words, place, 0)


@triton.jit
def word(shared, place):
    """Words in shared memory."""
    return tl.inline_asm_elementwise(
        LOAD, "=r,r", [shared + place * 4], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def put(asm: tl.constexpr, shared, place, value):
    """Store or add words; every element of the tensors must have a thread of its own."""
    tl.inline_asm_elementwise(
        asm, "=r,r,r", [shared + place * 4, value], dtype=tl.int32, is_pure=False, pack=1
    )
