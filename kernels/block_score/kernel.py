"""The device code of block scores: KV blocks described, then met by sampled rows in two passes.

Importing this module imports Triton, so only the launcher does, inside functions. A program holds ROWS sampled rows,
of whole query blocks, and their squares, and walks over the described KV blocks up to its diagonal twice: for the
rows' normalisers, and for the shares, whose squares it adds up over each query block's rows. The second pass computes
its logits with rows and KV blocks exchanged: a thread then holds several rows of one KV block, and sums over rows
hardly cross threads. Tiles without an edge (padding, the diagonal, the last keys) are spared all masks, and their
ln(keys in b), equal for all, is left out: counts of the others are relative to BLOCK_K.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import LN2, LOG2E, pointer_from


@triton.jit
def block_features_kernel(
    k_ptr,
    table_ptr,
    first_key_ptr,
    out_ptr,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_kd,
    kv_heads,
    keys,
    key_blocks,
    WEIGHT: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    INDIRECT: tl.constexpr,
):
    """Mean and WEIGHT times variance, at most MOST, of one KV block's real keys."""
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
    count = tl.maximum(tl.sum(real.to(tl.float32), 0), 1.0)
    mean = tl.sum(k, 0) / count
    deviation = tl.where(real[:, None], k - mean[None, :], 0.0)
    spread = tl.minimum(tl.sum(deviation * deviation, 0) * (WEIGHT / count), MOST)
    out = out_ptr + (unit * key_blocks + block) * (2 * HEAD) + d
    tl.store(out, mean, mask=d < HEAD)
    tl.store(out + HEAD, spread, mask=d < HEAD)


@triton.jit
def block_score_kernel(
    q_ptr,
    table_ptr,
    features_ptr,
    sinks_ptr,
    first_key_ptr,
    out_ptr,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_qd,
    heads,
    group,
    units,
    tiles,
    first,
    rows,
    query_blocks,
    key_blocks,
    position,
    segment_keys,
    scale,
    softcap,
    LEAST: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PICKED: tl.constexpr,
    ROWS: tl.constexpr,
    N: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    INDIRECT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """PICKED sampled rows of each of ROWS / PICKED query blocks: the KV blocks' scores, at least LEAST. scale > 0.

    The last query blocks, which see most, come first.
    """
    STRIDE: tl.constexpr = BLOCK_Q // PICKED
    GROUP: tl.constexpr = ROWS // PICKED
    if INDIRECT:
        q_ptr = pointer_from(table_ptr, 0, q_ptr)
    unit = (tl.program_id(0) % units).to(tl.int64)
    tile = tiles - 1 - tl.program_id(0) // units
    batch, head = unit // heads, unit % heads
    slot = tl.arange(0, ROWS)
    query_block = tile * GROUP + slot // PICKED
    place = slot % PICKED
    row = query_block * BLOCK_Q + place * STRIDE + (place + query_block) % STRIDE
    row = tl.minimum(row, rows - 1)
    d = tl.arange(0, HEAD_PADDED)
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
    if UPCAST:
        q = q.to(tl.float32)
        squares = squares.to(tl.float32)
    features = features_ptr + (batch * (heads // group) + head // group) * key_blocks * (2 * HEAD)
    first_key = tl.load(first_key_ptr + batch).to(tl.int32)

    # The rows' own last KV block; tiles of N KV blocks: those that any row sees, and among them those without an edge.
    own = (row + position) // BLOCK_K
    begin = first_key // BLOCK_K // N
    end = tl.max(own, 0) // N + 1
    free_from = tl.minimum(begin + (first_key > begin * (N * BLOCK_K)).to(tl.int32), end)
    free_to = tl.minimum((tl.min(own, 0) + 1) // N, segment_keys // BLOCK_K // N)
    free_to = tl.maximum(tl.minimum(free_to, end), free_from)
    edges = free_from - begin + end - free_to

    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS:
        counted = tl.log2(tl.full([ROWS], BLOCK_K, tl.float32))
        top = tl.load(sinks_ptr + head).to(tl.float32) * LOG2E - counted
        total += 1.0
    for at in tl.range(free_from, free_to, num_stages=STAGES):
        means, spreads = described(features, at * N, key_blocks, False, N, HEAD, HEAD_PADDED, UPCAST)
        logits = capped(
            products(q, squares, tl.trans(means), tl.trans(spreads), PRECISION), scale, softcap, SOFTCAP
        )
        new = tl.maximum(top, tl.max(logits, 1))
        total = total * tl.exp2(top - new) + tl.sum(tl.exp2(logits - new[:, None]), 1)
        top = new
    for edge in range(0, edges):
        at = tl.where(begin + edge < free_from, begin + edge, begin + edge - free_from + free_to)
        means, spreads = described(features, at * N, key_blocks, True, N, HEAD, HEAD_PADDED, UPCAST)
        logits = capped(
            products(q, squares, tl.trans(means), tl.trans(spreads), PRECISION), scale, softcap, SOFTCAP
        )
        n = at * N + tl.arange(0, N)
        logits += relative_counts(n, first_key, segment_keys, BLOCK_K)[None, :]
        logits = tl.where(n[None, :] <= own[:, None], logits, -float("inf"))
        new = tl.maximum(top, tl.max(logits, 1))
        # Rows of the padding see nothing.
        shift = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp2(top - shift) + tl.sum(tl.exp2(logits - shift[:, None]), 1)
        top = new
    whole = tl.where(total > 0.0, top + tl.log2(total), float("inf"))

    out = out_ptr + unit * query_blocks * key_blocks
    for at in tl.range(free_from, free_to, num_stages=STAGES):
        means, spreads = described(features, at * N, key_blocks, False, N, HEAD, HEAD_PADDED, UPCAST)
        logits = capped(
            products(means, spreads, tl.trans(q), tl.trans(squares), PRECISION), scale, softcap, SOFTCAP
        )
        store_scores(
            logits, whole, out, tile * GROUP, at * N, query_blocks, key_blocks, LEAST, N, GROUP, PICKED
        )
    for edge in range(0, edges):
        at = tl.where(begin + edge < free_from, begin + edge, begin + edge - free_from + free_to)
        means, spreads = described(features, at * N, key_blocks, True, N, HEAD, HEAD_PADDED, UPCAST)
        logits = capped(
            products(means, spreads, tl.trans(q), tl.trans(squares), PRECISION), scale, softcap, SOFTCAP
        )
        n = at * N + tl.arange(0, N)
        logits += relative_counts(n, first_key, segment_keys, BLOCK_K)[:, None]
        logits = tl.where(n[:, None] <= own[None, :], logits, -float("inf"))
        store_scores(
            logits, whole, out, tile * GROUP, at * N, query_blocks, key_blocks, LEAST, N, GROUP, PICKED
        )

    # KV blocks before the first real key and after the diagonal.
    m = tile * GROUP + tl.arange(0, GROUP)
    nothing = tl.full([GROUP, N], LEAST, tl.float16)
    for past in range(0, begin + tl.cdiv(key_blocks, N) - end):
        n = tl.where(past < begin, past, past - begin + end) * N + tl.arange(0, N)
        inside = (m < query_blocks)[:, None] & (n < key_blocks)[None, :]
        to = out + m.to(tl.int64)[:, None] * key_blocks + n[None, :]
        tl.store(to, nothing, mask=inside)


@triton.jit
def described(
    features,
    start,
    key_blocks,
    EDGE: tl.constexpr,
    N: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Means and weighted variances [N, D] of KV blocks from start on; EDGE: some may not be there."""
    n = start + tl.arange(0, N)
    d = tl.arange(0, HEAD_PADDED)
    at = features + n.to(tl.int64)[:, None] * (2 * HEAD) + d[None, :]
    if EDGE or HEAD != HEAD_PADDED:
        inside = (n < key_blocks)[:, None] & (d < HEAD)[None, :]
        means = tl.load(at, mask=inside, other=0.0)
        spreads = tl.load(at + HEAD, mask=inside, other=0.0)
    else:
        means = tl.load(at)
        spreads = tl.load(at + HEAD)
    if UPCAST:
        means = means.to(tl.float32)
        spreads = spreads.to(tl.float32)
    return means, spreads


@triton.jit
def products(a, b, c, d, PRECISION: tl.constexpr):
    """a c + b d in float32."""
    return tl.dot(b, d, tl.dot(a, c, input_precision=PRECISION), input_precision=PRECISION)


@triton.jit
def capped(logits, scale, softcap, SOFTCAP: tl.constexpr):
    """Base-2 logits of unscaled products."""
    if SOFTCAP:
        # tanh(x) = 2 sigmoid(2 x) - 1.
        return (softcap * LOG2E) * (2.0 * tl.sigmoid(logits * (2.0 * scale / softcap)) - 1.0)
    return logits * (scale * LOG2E)


@triton.jit
def relative_counts(n, first_key, segment_keys, BLOCK_K: tl.constexpr):
    """log2(keys in KV block n / BLOCK_K), -inf where there is none."""
    low = tl.maximum(n * BLOCK_K, first_key)
    count = tl.minimum((n + 1) * BLOCK_K, segment_keys) - low
    real = tl.log2(tl.maximum(count, 1).to(tl.float32) / BLOCK_K)
    return tl.where(count > 0, real, -float("inf"))


@triton.jit
def store_scores(
    logits,
    whole,
    out,
    query_block,
    key_block,
    query_blocks,
    key_blocks,
    LEAST: tl.constexpr,
    N: tl.constexpr,
    GROUP: tl.constexpr,
    PICKED: tl.constexpr,
):
    """Scores of N KV blocks in GROUP query blocks: logits [N, GROUP PICKED], whole [GROUP PICKED] their normalisers."""
    squared = tl.exp2(2.0 * logits - (2.0 * whole)[None, :])
    mean = tl.sum(tl.reshape(squared, [N, GROUP, PICKED]), 2) * (1.0 / PICKED)
    score = tl.maximum(tl.log2(tl.maximum(mean, 1e-30)) * (0.5 * LN2), LEAST)
    m = query_block + tl.arange(0, GROUP)
    n = key_block + tl.arange(0, N)
    inside = (n < key_blocks)[:, None] & (m < query_blocks)[None, :]
    tl.store(out + m.to(tl.int64)[None, :] * key_blocks + n[:, None], score.to(tl.float16), mask=inside)
