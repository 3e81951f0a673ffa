"""The device code of block scores: KV blocks described, rows chosen, then both met in two passes.

A program holds ROWS scored rows,
of whole query blocks, and their squares, and walks over the described KV blocks up to its diagonal twice: for the
rows' normalisers, where it leaves out most tiles far from both ends, and for the shares, whose squares it adds up over
each query block's rows. Logits lie with their rows along the second axis, so that sums over the rows of a query block
hardly cross threads. Two descriptions of a KV block lie EIGHT apart, which is one thread's next register.

The tiles at both ends (sink, padding, diagonal, last keys) come first, with masks and a maximum. It shifts all other
tiles, which take neither: an element's sum over tiles is its thread's own. A logit that is MOST_ABOVE above the best of
both ends, a factor of 10^33, counts as no more than that. ln(keys) is relative to BLOCK_K, so that it is 0 there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import LN2, LOG2E, pointer_from

MOST_ABOVE = tl.constexpr(110.0)  # sums of as many powers of two as there are KV blocks stay finite
EIGHT = tl.constexpr(8)


@triton.jit
def block_features_kernel(
    k_ptr, table_ptr, first_key_ptr, out_ptr, count_ptr, stride_kb, stride_kh, stride_kn, stride_kd,
    kv_heads, keys, described,
    WEIGHT: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr, HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr, CLUSTERS: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """Mean and WEIGHT times variance, at most MOST, of each cluster of one KV block's keys; log2(its keys / BLOCK)."""
    if INDIRECT:
        k_ptr = pointer_from(table_ptr, 1, k_ptr)
    block = tl.program_id(0)
    unit = tl.program_id(1).to(tl.int64)
    batch, kv_head = unit // kv_heads, unit % kv_heads
    key = block * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, HEAD_PADDED)
    real = (key < keys) & (key >= tl.load(first_key_ptr + batch))
    k = tl.load(
        k_ptr
        + batch * stride_kb
        + kv_head * stride_kh
        + key.to(tl.int64)[:, None] * stride_kn
        + d[None, :] * stride_kd,
        mask=real[:, None] & (d < HEAD)[None, :],
        other=0.0,
    ).to(tl.float32)
    if CLUSTERS == 1:
        at = out_ptr + (unit * described + block) * (2 * HEAD) + d
        store_description(k, real, at, count_ptr + unit * described + block, d, WEIGHT, MOST, BLOCK, HEAD)
    else:
        mean = mean_of(k, real)
        distance = distances(k, mean)
        farthest = tl.argmax(tl.where(real, distance, -1.0), 0)
        seed = tl.sum(tl.where((tl.arange(0, BLOCK) == farthest)[:, None], k, 0.0), 0)
        near = (distances(k, seed) < distance) & real
        far_mean, near_mean = mean_of(k, real & (near == 0)), mean_of(k, near)
        near = (distances(k, near_mean) < distances(k, far_mean)) & real
        slot = unit * described + block // EIGHT * (2 * EIGHT) + block % EIGHT
        at = out_ptr + slot * (2 * HEAD) + d
        store_description(k, real & (near == 0), at, count_ptr + slot, d, WEIGHT, MOST, BLOCK, HEAD)
        at += EIGHT * (2 * HEAD)
        store_description(k, near, at, count_ptr + slot + EIGHT, d, WEIGHT, MOST, BLOCK, HEAD)


@triton.jit
def store_description(
    k, side, out, count_ptr, d,
    WEIGHT: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Of the keys of one side, k [BLOCK, D] and side bool [BLOCK]."""
    count = tl.sum(side.to(tl.float32), 0)
    mean = mean_of(k, side)
    deviation = tl.where(side[:, None], k - mean[None, :], 0.0)
    spread = tl.minimum(tl.sum(deviation * deviation, 0) * (WEIGHT / tl.maximum(count, 1.0)), MOST)
    tl.store(out, mean, mask=d < HEAD)
    tl.store(out + HEAD, spread, mask=d < HEAD)
    tl.store(count_ptr, tl.where(count > 0.0, tl.log2(tl.maximum(count, 1.0) / BLOCK), -float("inf")))


@triton.jit
def mean_of(k, side):
    """Mean [D] of the keys of one side, 0 without any."""
    return tl.sum(tl.where(side[:, None], k, 0.0), 0) / tl.maximum(tl.sum(side.to(tl.float32), 0), 1.0)


@triton.jit
def distances(k, centre):
    """Squared distances [BLOCK] of keys from a centre [D]."""
    away = k - centre[None, :]
    return tl.sum(away * away, 1)


@triton.jit
def row_distances_kernel(
    q_ptr, table_ptr, out_ptr, stride_qb, stride_qh, stride_qn, stride_qd, heads, first, rows, query_blocks,
    BLOCK_Q: tl.constexpr, HEAD: tl.constexpr, PIECE: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """Squared distances of one query block's rows from their mean, PIECE components at a time: registers are few."""
    if INDIRECT:
        q_ptr = pointer_from(table_ptr, 0, q_ptr)
    # Heads first: a token's lie side by side in memory.
    unit = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    batch, head = unit // heads, unit % heads
    i = tl.arange(0, BLOCK_Q)
    row = tl.minimum(block * BLOCK_Q + i, rows - 1)
    q_rows = q_ptr + batch * stride_qb + head * stride_qh + (row + first).to(tl.int64)[:, None] * stride_qn
    distance = tl.zeros([BLOCK_Q], dtype=tl.float32)
    for start in tl.static_range(0, HEAD, PIECE):
        d = start + tl.arange(0, PIECE)
        q = tl.load(q_rows + d[None, :] * stride_qd, mask=(d < HEAD)[None, :], other=0.0).to(tl.float32)
        distance += distances(q, tl.sum(q, 0) / BLOCK_Q)
    tl.store(out_ptr + (unit * query_blocks + block) * BLOCK_Q + i, distance)


@triton.jit
def scored_rows_kernel(
    distance_ptr, out_ptr, rows, query_blocks, BLOCK_Q: tl.constexpr, PICKED: tl.constexpr
):
    """The PICKED rows of one query block that are scored, in order.

    The least distance of those that stand out is found bit by bit: as many rows as stand out have it or more. That a
    program has PICKED rows must not hang on how it rounds, so nothing here is computed but counts.
    """
    OUTSTANDING: tl.constexpr = PICKED // 2
    STRIDE: tl.constexpr = (BLOCK_Q - OUTSTANDING) // (PICKED - OUTSTANDING)
    block = tl.program_id(0)
    at = tl.program_id(1).to(tl.int64) * query_blocks + block
    i = tl.arange(0, BLOCK_Q)
    # As whole numbers, which are in the same order; NaN, whatever its sign, is one of them.
    bits = tl.maximum(tl.load(distance_ptr + at * BLOCK_Q + i).to(tl.int32, bitcast=True), 0)
    least = tl.full([], 0, tl.int32)
    for bit in tl.static_range(31):
        higher = least | (1 << (30 - bit))
        least = tl.where(tl.sum((bits >= higher).to(tl.int32), 0) >= OUTSTANDING, higher, least)
    above = bits > least
    # Of those level with the least the first ones count.
    level = bits == least
    room = OUTSTANDING - tl.sum(above.to(tl.int32), 0)
    standing = above | (level & (tl.cumsum(level.to(tl.int32), 0) <= room))
    place = tl.cumsum((standing == 0).to(tl.int32), 0) - 1
    other = (place % STRIDE == block % STRIDE) & (place // STRIDE < PICKED - OUTSTANDING)
    chosen = standing | ((standing == 0) & other)
    slot = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(out_ptr + at * PICKED + slot, tl.minimum(block * BLOCK_Q + i, rows - 1), mask=chosen)


@triton.jit
def block_score_kernel(
    q_ptr, table_ptr, picked_ptr, features_ptr, count_ptr, sinks_ptr, first_key_ptr, out_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    heads, group, units, tiles, first, rows, query_blocks, key_blocks, described, position, segment_keys,
    scale, softcap, LEAST: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PICKED: tl.constexpr,
    ROWS: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, ALIGNED: tl.constexpr,
    CLUSTERS: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr, INDIRECT: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """PICKED rows of each of ROWS / PICKED query blocks: the KV blocks' scores, at least LEAST. scale > 0.

    The last query blocks, which see most, come first. N divides TILE: descriptions of a product, and of a tile that is
    sampled whole.
    """
    GROUP: tl.constexpr = ROWS // PICKED
    BLOCKS: tl.constexpr = N // CLUSTERS
    PARTS: tl.constexpr = TILE // N
    if INDIRECT:
        q_ptr = pointer_from(table_ptr, 0, q_ptr)
    unit = (tl.program_id(0) % units).to(tl.int64)
    tile = tiles - 1 - tl.program_id(0) // units
    batch, head = unit // heads, unit % heads
    slot = tl.arange(0, ROWS)
    query_block = tile * GROUP + slot // PICKED
    picked = picked_ptr + (unit * query_blocks + query_block) * PICKED + slot % PICKED
    row = tl.load(picked, mask=query_block < query_blocks, other=rows - 1)
    # One product is enough: queries beside their squares, means beside variances.
    column = tl.arange(0, 2 * HEAD_PADDED)
    d = column % HEAD_PADDED
    q = tl.load(
        q_ptr
        + batch * stride_qb
        + head * stride_qh
        + (row + first).to(tl.int64)[:, None] * stride_qn
        + d[None, :] * stride_qd,
        mask=(d < HEAD)[None, :],
        other=0.0,
    )
    squares = (q.to(tl.float32) * q.to(tl.float32) * scale).to(q.dtype)
    q = tl.where((column < HEAD_PADDED)[None, :], q, squares)
    if UPCAST:
        q = q.to(tl.float32)
    kv_unit = (batch * (heads // group) + head // group) * described
    features, counts = features_ptr + kv_unit * (2 * HEAD), count_ptr + kv_unit
    first_key = tl.load(first_key_ptr + batch).to(tl.int32)

    # The rows' own last KV block; products of BLOCKS KV blocks that any row sees, the first and the last with edges.
    own = (row + position) // BLOCK_K
    first_block = first_key // BLOCK_K
    begin = first_block // BLOCKS
    end = tl.max(own, 0) // BLOCKS + 1
    free_from = tl.minimum(begin + 1, end)
    free_to = tl.minimum((tl.min(own, 0) + 1) // BLOCKS, segment_keys // BLOCK_K // BLOCKS)
    free_to = tl.maximum(tl.minimum(free_to, end - 1), free_from)
    edges = free_from - begin + end - free_to
    # Tiles between the first one and the aligned query blocks' own, of which one in STEP is sampled.
    aligned = tile * GROUP // ALIGNED * ALIGNED * BLOCK_Q + position
    tile_from = first_block // (TILE // CLUSTERS) + 1
    between = aligned // BLOCK_K // (TILE // CLUSTERS) - tile_from
    samples = tl.where(between >= 2 * STEP, (between - STEP // 2 + STEP - 1) // STEP, 0)
    each = between.to(tl.float32) / tl.maximum(samples, 1).to(tl.float32)
    sampled_from = tl.where(samples > 0, tile_from * PARTS, free_from)
    sampled_to = tl.where(samples > 0, (tile_from + between) * PARTS, free_from)

    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS:
        counted = tl.log2(tl.full([ROWS], BLOCK_K, tl.float32))
        top = tl.load(sinks_ptr + head).to(tl.float32) * LOG2E - counted
        total += 1.0
    for edge in range(0, edges):
        at = tl.where(begin + edge < free_from, begin + edge, begin + edge - free_from + free_to)
        keys = descriptions(features, at * N, described, True, N, HEAD, HEAD_PADDED, UPCAST)
        products = tl.dot(keys, tl.trans(q), input_precision=PRECISION)
        logits = capped(products, scale, softcap, SOFTCAP)
        logits = visible(logits, counts, at, own, described, CLUSTERS, N)
        new = tl.maximum(top, tl.max(logits, 0))
        # Rows of the padding see nothing.
        shift = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp2(top - shift) + tl.sum(tl.exp2(logits - shift[None, :]), 0)
        top = new
    sums = tl.zeros([N, ROWS], tl.float32)
    shift = tl.where(top == -float("inf"), 0.0, top)
    plain = sampled_from - free_from
    for i in tl.range(0, plain + samples * PARTS + free_to - sampled_to, num_stages=STAGES):
        sample = i - plain
        is_sample = (sample >= 0) & (sample < samples * PARTS)
        at = (tile_from + STEP // 2 + sample // PARTS * STEP) * PARTS + sample % PARTS
        at = tl.where(
            is_sample, at, tl.where(sample < 0, free_from + i, sampled_to + sample - samples * PARTS)
        )
        keys = descriptions(features, at * N, described, False, N, HEAD, HEAD_PADDED, UPCAST)
        products = tl.dot(keys, tl.trans(q), input_precision=PRECISION)
        logits = counted_in(capped(products, scale, softcap, SOFTCAP), counts, at, CLUSTERS, N)
        sums += tl.where(is_sample, each, 1.0) * tl.exp2(tl.minimum(logits - shift[None, :], MOST_ABOVE))
    total += tl.sum(sums, 0)
    whole = tl.where(total > 0.0, shift + tl.log2(tl.maximum(total, 1e-30)), float("inf"))

    out = out_ptr + unit * query_blocks * key_blocks
    for at in tl.range(free_from, free_to, num_stages=STAGES):
        keys = descriptions(features, at * N, described, False, N, HEAD, HEAD_PADDED, UPCAST)
        products = tl.dot(keys, tl.trans(q), input_precision=PRECISION)
        logits = counted_in(capped(products, scale, softcap, SOFTCAP), counts, at, CLUSTERS, N)
        score = scores(logits, whole, LEAST, N, CLUSTERS, GROUP, PICKED)
        store_scores(score, out, tile * GROUP, at * BLOCKS, query_blocks, key_blocks, BLOCKS, GROUP)
    for edge in range(0, edges):
        at = tl.where(begin + edge < free_from, begin + edge, begin + edge - free_from + free_to)
        keys = descriptions(features, at * N, described, True, N, HEAD, HEAD_PADDED, UPCAST)
        products = tl.dot(keys, tl.trans(q), input_precision=PRECISION)
        logits = capped(products, scale, softcap, SOFTCAP)
        logits = visible(logits, counts, at, own, described, CLUSTERS, N)
        score = scores(logits, whole, LEAST, N, CLUSTERS, GROUP, PICKED)
        store_scores(score, out, tile * GROUP, at * BLOCKS, query_blocks, key_blocks, BLOCKS, GROUP)

    # KV blocks before the first real key and after the diagonal.
    nothing = tl.full([BLOCKS, GROUP], LEAST, tl.float32)
    for past in range(0, begin + tl.cdiv(key_blocks, BLOCKS) - end):
        at = tl.where(past < begin, past, past - begin + end)
        store_scores(nothing, out, tile * GROUP, at * BLOCKS, query_blocks, key_blocks, BLOCKS, GROUP)


@triton.jit
def descriptions(
    features, start, described,
    EDGE: tl.constexpr, N: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Means beside weighted variances [N, 2 D] from a description on; EDGE: some may not be there."""
    n = start + tl.arange(0, N)
    column = tl.arange(0, 2 * HEAD_PADDED)
    if HEAD == HEAD_PADDED:
        at = features + n.to(tl.int64)[:, None] * (2 * HEAD) + column[None, :]
        keys = tl.load(at, mask=(n < described)[:, None], other=0.0) if EDGE else tl.load(at)
    else:
        d = column % HEAD_PADDED
        at = features + n.to(tl.int64)[:, None] * (2 * HEAD) + (column // HEAD_PADDED * HEAD + d)[None, :]
        keys = tl.load(at, mask=(n < described)[:, None] & (d < HEAD)[None, :], other=0.0)
    if UPCAST:
        keys = keys.to(tl.float32)
    return keys


@triton.jit
def capped(logits, scale, softcap, SOFTCAP: tl.constexpr):
    """Base-2 logits of unscaled products."""
    if SOFTCAP:
        # tanh(x) = 2 sigmoid(2 x) - 1.
        return (softcap * LOG2E) * (2.0 * tl.sigmoid(logits * (2.0 * scale / softcap)) - 1.0)
    return logits * (scale * LOG2E)


@triton.jit
def counted_in(logits, counts, at, CLUSTERS: tl.constexpr, N: tl.constexpr):
    """Logits [N, ROWS] of keys, with the keys that each description stands for; a whole block stands for BLOCK_K."""
    if CLUSTERS == 1:
        return logits
    return logits + tl.load(counts + at * N + tl.arange(0, N))[:, None]


@triton.jit
def visible(logits, counts, at, own, described, CLUSTERS: tl.constexpr, N: tl.constexpr):
    """Logits with their keys' counts, -inf where a description has none or lies after a row's own block."""
    p = tl.arange(0, N)
    count = tl.load(counts + at * N + p, mask=at * N + p < described, other=-float("inf"))
    n = at * N + p if CLUSTERS == 1 else at * (N // 2) + p // (2 * EIGHT) * EIGHT + p % EIGHT
    return tl.where(n[:, None] <= own[None, :], logits + count[:, None], -float("inf"))


@triton.jit
def scores(
    logits, whole,
    LEAST: tl.constexpr, N: tl.constexpr, CLUSTERS: tl.constexpr, GROUP: tl.constexpr, PICKED: tl.constexpr,
):  # fmt: skip
    """Scores [N / CLUSTERS, GROUP] of logits [N, GROUP PICKED] and their normalisers [GROUP PICKED]."""
    ROWS: tl.constexpr = GROUP * PICKED
    share = tl.exp2(tl.minimum(logits - whole[None, :], 0.0))
    if CLUSTERS == 2:
        pairs = tl.reshape(share, [N // (2 * EIGHT), 2, EIGHT, ROWS])
        share = tl.minimum(tl.reshape(tl.sum(pairs, 1), [N // 2, ROWS]), 1.0)
    mean = tl.sum(tl.reshape(share * share, [N // CLUSTERS, GROUP, PICKED]), 2) * (1.0 / PICKED)
    return tl.maximum(tl.log2(tl.maximum(mean, 1e-30)) * (0.5 * LN2), LEAST)


@triton.jit
def store_scores(
    score, out, query_block, key_block, query_blocks, key_blocks, BLOCKS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Scores [BLOCKS, GROUP] from a KV block and a query block on."""
    m = query_block + tl.arange(0, GROUP)
    n = key_block + tl.arange(0, BLOCKS)
    inside = (n < key_blocks)[:, None] & (m < query_blocks)[None, :]
    tl.store(out + m.to(tl.int64)[None, :] * key_blocks + n[:, None], score.to(tl.float16), mask=inside)
