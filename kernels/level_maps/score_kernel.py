"""The device code of the block-sparse families: one query block's scores binned, budgets placed at edges of bins.

Importing this module imports Triton, so only the launcher does, inside functions. One warp works on a query
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
LEVELS = tl.constexpr(16)  # of either family, at most
# In shared memory, 4 bytes each: 256 bins, 256 of another kind, and one word for what has no bin.
ALLOCATE = tl.constexpr("{ .shared .align 16 .b32 bins[513]; mov.u32 $0, bins; }")
LOAD = tl.constexpr("ld.shared.b32 $0, [$1];")
STORE = tl.constexpr("st.shared.b32 [$1], $2; mov.b32 $0, 0;")
ADD = tl.constexpr("red.shared.add.u32 [$1], $2; mov.b32 $0, 0;")


@triton.jit
def score_levels_kernel(
    scores_ptr,
    top_k_ptr,
    top_p_ptr,
    top_k_count_ptr,
    top_p_count_ptr,
    budgets_ptr,
    shares_ptr,
    first_key_ptr,
    heads,
    query_blocks,
    key_blocks,
    position,
    segment_keys,
    budgets,
    shares,
    softcap,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LOCAL_BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    BITS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PTX: tl.constexpr,
):
    """One query block: bin its scores, best first, place each budget at a bin's edge, give each block its level."""
    BINS: tl.constexpr = 1 << BITS
    row = tl.program_id(0).to(tl.int64)
    query_block = (row % query_blocks).to(tl.int32)
    batch = row // query_blocks // heads
    base, last, sink = blocks_of(query_block, first_key_ptr, batch, position, segment_keys, BLOCK_Q, BLOCK_K)
    local = tl.maximum(base - LOCAL_BLOCKS, sink)
    # Every plan reads the sink and from ``local`` to the diagonal; what the budgets rank lies between.
    forced = tl.maximum(last - local + 1, 0) + ((local > sink) & (last >= sink)).to(tl.int32)
    ranked = tl.maximum(local - sink - 1, 0)
    row_ptr = scores_ptr + row * key_blocks
    step = tl.arange(0, CHUNK)

    high = tl.full([CHUNK], -float("inf"), tl.float32)
    low = tl.full([CHUNK], float("inf"), tl.float32)
    for start in range(0, local, CHUNK):
        score = scores_of(row_ptr, start + step, key_blocks, softcap, SOFTCAP)
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
    for start in range(0, local, CHUNK):
        n = start + step
        bin_ = bins_of(scores_of(row_ptr, n, key_blocks, softcap, SOFTCAP), high, per_width, BINS)
        if PTX:
            if (start <= sink) | (start + CHUNK > local):
                bin_ = tl.where(is_ranked(n, sink, ranked), bin_, 2 * BINS)
            put(ADD, shared, bin_, tl.full([CHUNK], 1, tl.int32))
        else:
            open_ = is_ranked(n, sink, ranked)
            counted += tl.histogram(tl.where(open_, bin_, 0), BINS, mask=open_)
    if PTX:
        tl.debug_barrier()
        count = word(shared, bin_of)
    else:
        count = tl.trans(tl.reshape(counted, [LANES, BINS // LANES]))

    up_to = sums_to(count)
    weight = count.to(tl.float32) * tl.exp((bin_of + 0.5) * -width)
    whole = sums_to(weight)
    total = tl.max(tl.max(whole, 0), 0)
    # Floats that are not negative are in the order of their bits.
    better = (tl.maximum(whole - weight, 0.0) / tl.maximum(total, 1e-30)).to(tl.int32, bitcast=True)

    # One lane a level: the bins of a level are the first ones, as far as its limit goes.
    level = tl.arange(0, LANES)
    by_share = level >= LEVELS
    real = (level < budgets) | (by_share & (level - LEVELS < shares))
    limit = tl.load(budgets_ptr + level, mask=level < budgets, other=0) - forced
    share = tl.load(shares_ptr + level - LEVELS, mask=by_share & real, other=0.0)
    limit = tl.where(by_share, share.to(tl.int32, bitcast=True) - 1, limit)
    both = tl.zeros([2 * BINS], dtype=tl.int32)
    if PTX:
        put(STORE, shared, bin_of, up_to)
        put(STORE, shared, bin_of + BINS, better)
        tl.debug_barrier()
    else:
        both = tl.ravel(tl.trans(tl.join(tl.ravel(tl.trans(up_to)), tl.ravel(tl.trans(better)))))
    bins = tl.zeros([LANES], dtype=tl.int32)
    for halving in tl.static_range(BITS + 1):
        half = tl.maximum(BINS >> (halving + 1), 1)
        at = bins + (half - 1)
        found = take(shared, both, at + tl.where(by_share, BINS, 0), PTX)
        bins += tl.where(found <= limit, half, 0)
    at = tl.maximum(bins - 1, 0)
    read = forced + tl.where(bins > 0, take(shared, both, at, PTX), 0)
    tl.store(top_k_count_ptr + row * budgets + level, read, mask=level < budgets)
    tl.store(top_p_count_ptr + row * shares + (level - LEVELS), read, mask=by_share & real)

    # A bin's level is the number of levels that end before it: top-k's in the lower half of a word, top-p's above.
    one = tl.where(by_share, 65536, 1)
    edge = tl.where(real & (bins < BINS), bins, 2 * BINS)
    if PTX:
        tl.debug_barrier()
        put(STORE, shared, bin_of, tl.zeros_like(bin_of))
        tl.debug_barrier()
        put(ADD, shared, edge, one)
        tl.debug_barrier()
        ends = word(shared, bin_of)
    else:
        ends = tl.histogram(edge, BINS, mask=(edge < BINS) & (by_share == 0))
        ends += tl.histogram(edge, BINS, mask=(edge < BINS) & by_share) * 65536
        ends = tl.trans(tl.reshape(ends, [LANES, BINS // LANES]))
    ended = sums_to(ends)
    top_k, top_p = ended & 65535, ended >> 16
    found = tl.where(top_k == budgets, NEVER, top_k) | (tl.where(top_p == shares, NEVER, top_p) << 8)
    table = tl.zeros([BINS], dtype=tl.int32)
    if PTX:
        put(STORE, shared, bin_of, found)
        tl.debug_barrier()
    else:
        table = tl.ravel(tl.trans(found))

    for start in range(0, last + 1, CHUNK):
        n = start + step
        bin_ = bins_of(scores_of(row_ptr, n, key_blocks, softcap, SOFTCAP), high, per_width, BINS)
        # Pieces without a forced or hidden block are spared the questions.
        if (start > sink) & (start + CHUNK <= local):
            level_of = take(shared, table, bin_, PTX)
        else:
            open_ = is_ranked(n, sink, ranked)
            # Of the others those before the sink and beyond the diagonal are NEVER twice.
            fixed = tl.where((n >= sink) & (n <= last), 0, NEVER * 257)
            level_of = tl.where(open_, take(shared, table, tl.where(open_, bin_, 0), PTX), fixed)
        tl.store(top_k_ptr + row * key_blocks + n, (level_of & 255).to(tl.uint8), mask=n < key_blocks)
        tl.store(top_p_ptr + row * key_blocks + n, (level_of >> 8).to(tl.uint8), mask=n < key_blocks)
    nothing = tl.full([CHUNK], NEVER, tl.uint8)
    for start in range((last // CHUNK + 1) * CHUNK, key_blocks, CHUNK):
        n = start + step
        tl.store(top_k_ptr + row * key_blocks + n, nothing, mask=n < key_blocks)
        tl.store(top_p_ptr + row * key_blocks + n, nothing, mask=n < key_blocks)


@triton.jit
def scores_of(row_ptr, n, key_blocks, softcap, SOFTCAP: tl.constexpr):
    """Scores [CHUNK] float32 of blocks n."""
    score = tl.load(row_ptr + n, mask=n < key_blocks, other=0.0).to(tl.float32)
    if SOFTCAP:
        score = softcap * (2.0 * tl.sigmoid(2.0 * score / softcap) - 1.0)
    return score


@triton.jit
def is_ranked(n, sink, ranked):
    """Blocks between the sink and the local ones."""
    return (n - (sink + 1)).to(tl.uint32) < ranked.to(tl.uint32)


@triton.jit
def bins_of(score, high, per_width, BINS: tl.constexpr):
    """Bins of scores up to high, 0 the best."""
    # A fused soft cap rounds once less than high did: the best score may come out above it.
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
