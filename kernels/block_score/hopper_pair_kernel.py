"""Block scores on Hopper: two consumer warpgroups, each of 64 scored rows of two heads, fed by a producer warpgroup.

Importing this module imports Gluon, Triton's lower-level language, so only ``hopper_launch`` does, inside a function.

The same two passes as in ``kernel``. Rows lie along the first axis of a product, so that a row's normaliser is one
register and a sum over the rows of a query block stays in a warp, or in two. Two heads that share their keys meet each
tile of descriptions: copies from the L2 cache, which bind a kernel with one head, are then half as many. Both heads'
products are issued at once; shares of the first are taken while the second's product runs, and while the other
consumer's do.

The grid is one program per multiprocessor; program p takes every P-th item (two heads, 128 rows of each), those that
see most first. The producer copies tiles of 64 descriptions by TMA ahead of the consumers, across items, and fills in
the scores of what no row sees. A consumer loads its next queries while it computes its second pass.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Long argument lists read better in full lines than with one argument to a line.
# fmt: off

# The barrier's name changed after Triton 3.6.
_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


@gluon.jit
def _reach(tile, first_key, rows, position, segment_keys, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    ALIGNED: gl.constexpr, CLUSTERS: gl.constexpr, GROUP: gl.constexpr):
    """Of GROUP query blocks: the first tile of descriptions and the end, those without a mask; how many tiles the
    normaliser may sample from."""
    BLOCKS: gl.constexpr = 64 // CLUSTERS
    first_row = tile * (GROUP * BLOCK_Q)
    first_own = (first_row + position) // BLOCK_K
    last_own = (gl.minimum(first_row + GROUP * BLOCK_Q, rows) - 1 + position) // BLOCK_K
    begin = first_key // BLOCK_K // BLOCKS
    end = last_own // BLOCKS + 1
    free_from = gl.minimum(begin + 1, end)
    free_to = gl.minimum((first_own + 1) // BLOCKS, segment_keys // BLOCK_K // BLOCKS)
    free_to = gl.maximum(gl.minimum(free_to, end - 1), free_from)
    aligned = tile * GROUP // ALIGNED * ALIGNED * BLOCK_Q + position
    between = aligned // BLOCK_K // BLOCKS - (begin + 1)
    return begin, end, free_from, free_to, between


@gluon.jit
def _samples(free_from, free_to, begin, between, STEP: gl.constexpr):
    """Tiles of the first pass without a mask: how many lie before the sampled ones, how many samples, where the sampled
    stretch ends, the number of all, and what a sample counts."""
    samples = gl.where(between >= 2 * STEP, (between - STEP // 2 + STEP - 1) // STEP, 0)
    each = between.to(gl.float32) / gl.maximum(samples, 1).to(gl.float32)
    sampled_from = gl.where(samples > 0, begin + 1, free_from)
    sampled_to = gl.where(samples > 0, begin + 1 + between, free_from)
    plain = sampled_from - free_from
    return plain, samples, sampled_to, plain + samples + free_to - sampled_to, each


@gluon.jit
def _free_tile(i, free_from, begin, plain, samples, sampled_to, each, STEP: gl.constexpr):
    """The i-th tile of the first pass without a mask, and what it counts."""
    sample = i - plain
    is_sample = (sample >= 0) & (sample < samples)
    at = gl.where(sample < 0, free_from + i, sampled_to + sample - samples)
    at = gl.where(is_sample, begin + 1 + STEP // 2 + sample * STEP, at)
    return at, gl.where(is_sample, each, 1.0)


@gluon.jit
def _edge_tile(i, begin, free_from, free_to):
    """The i-th tile that needs a mask."""
    return gl.where(begin + i < free_from, begin + i, begin + i - free_from + free_to)


@gluon.jit
def _copy(desc, boxes, full, empty, it, start, HEAD: gl.constexpr, STAGES: gl.constexpr):
    """64 descriptions into one stage: means and spreads in panels of 64 elements."""
    PANELS: gl.constexpr = 2 * HEAD // 64
    slot = it % STAGES
    mbarrier.wait(empty.index(slot), ((it // STAGES) & 1) ^ 1)
    mbarrier.expect(full.index(slot), 64 * 2 * HEAD * 2)
    for panel in gl.static_range(PANELS):
        tma.async_copy_global_to_shared(desc, [start, panel * 64], full.index(slot),
            boxes.index(slot * PANELS + panel))


@gluon.jit
def _item(item, units, tiles, heads, group, described):
    """Tile of query blocks, prompt, first head and the place of its descriptions. units: pairs of heads."""
    unit = item % units
    tile = tiles - 1 - item // units
    batch = unit // (heads // 2)
    head = unit % (heads // 2) * 2
    return tile, batch, head, (batch * (heads // group) + head // group) * described


@gluon.jit
def _produce(desc, boxes, full, empty, first_key_ptr, out_ptr, heads, group, units, tiles, rows, query_blocks,
    key_blocks, described, position, segment_keys, LEAST: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    ALIGNED: gl.constexpr, CLUSTERS: gl.constexpr, PICKED: gl.constexpr, STEP: gl.constexpr, HEAD: gl.constexpr,
    STAGES: gl.constexpr):
    GROUP: gl.constexpr = 128 // PICKED
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    it = 0
    for item in range(gl.program_id(0), units * tiles, gl.num_programs(0)):
        tile, batch, head, base = _item(item, units, tiles, heads, group, described)
        first_key = gl.load(first_key_ptr + batch).to(gl.int32)
        begin, end, free_from, free_to, between = _reach(tile, first_key, rows, position, segment_keys, BLOCK_Q,
            BLOCK_K, ALIGNED, CLUSTERS, GROUP)
        plain, samples, sampled_to, count, each = _samples(free_from, free_to, begin, between, STEP)
        edges = free_from - begin + end - free_to
        for i in range(0, edges):
            at = _edge_tile(i, begin, free_from, free_to)
            _copy(desc, boxes, full, empty, it, base + at * 64, HEAD, STAGES)
            it += 1
        for i in range(0, count):
            at, _weight = _free_tile(i, free_from, begin, plain, samples, sampled_to, each, STEP)
            _copy(desc, boxes, full, empty, it, base + at * 64, HEAD, STAGES)
            it += 1
        for at in range(free_from, free_to):
            _copy(desc, boxes, full, empty, it, base + at * 64, HEAD, STAGES)
            it += 1
        for i in range(0, edges):
            at = _edge_tile(i, begin, free_from, free_to)
            _copy(desc, boxes, full, empty, it, base + at * 64, HEAD, STAGES)
            it += 1

        # KV blocks before the first real key and after the diagonal.
        nothing = gl.full([GROUP, 128], LEAST, gl.float32, layout).to(gl.float16)
        m = tile * GROUP + gl.arange(0, GROUP, gl.SliceLayout(1, layout))
        n = gl.arange(0, 128, gl.SliceLayout(0, layout))
        blocks: gl.constexpr = 64 // CLUSTERS
        for half in gl.static_range(2):
            unit = batch * heads + head + half
            out = out_ptr + (unit.to(gl.int64) * query_blocks + gl.expand_dims(m.to(gl.int64), 1)) * key_blocks
            for start in range(0, begin * blocks, 128):
                block = gl.expand_dims(start + n, 0)
                hidden = (block < begin * blocks) & (block < key_blocks)
                gl.store(out + block, nothing, mask=gl.expand_dims(m < query_blocks, 1) & hidden)
            for start in range(gl.maximum(end, 0) * blocks, key_blocks, 128):
                block = gl.expand_dims(start + n, 0)
                gl.store(out + block, nothing, mask=gl.expand_dims(m < query_blocks, 1) & (block < key_blocks))


@gluon.jit
def _queries(q_ptr, picked_ptr, item, items, which: gl.constexpr, heads, group, units, tiles, first, rows, query_blocks,
    stride_qb, stride_qh, stride_qn, stride_qd, L: gl.constexpr, PICKED: gl.constexpr, HEAD: gl.constexpr,
    HALF: gl.constexpr):
    """The 64 scored queries of one head of an item's half; nothing is read past the last item."""
    tile, batch, head, _base = _item(gl.minimum(item, items - 1), units, tiles, heads, group, 0)
    head += which
    slot = gl.arange(0, 64, gl.SliceLayout(1, L)) + HALF * 64
    query_block = tile * (128 // PICKED) + slot // PICKED
    picked = picked_ptr + ((batch * heads + head).to(gl.int64) * query_blocks + query_block) * PICKED + slot % PICKED
    row = gl.load(picked, mask=query_block < query_blocks, other=rows - 1)
    d = gl.arange(0, HEAD, gl.SliceLayout(0, L))
    at = q_ptr + batch.to(gl.int64) * stride_qb + head.to(gl.int64) * stride_qh
    return gl.load(at + gl.expand_dims((row + first).to(gl.int64) * stride_qn, 1) + gl.expand_dims(d * stride_qd, 0))


@gluon.jit
def _own_blocks(picked_ptr, unit, tile, rows, query_blocks, position, BLOCK_K: gl.constexpr, PICKED: gl.constexpr,
    HALF: gl.constexpr, layout: gl.constexpr):
    """The KV block of each of a head's 64 rows."""
    slot = gl.arange(0, 64, layout) + HALF * 64
    query_block = tile * (128 // PICKED) + slot // PICKED
    picked = picked_ptr + (unit.to(gl.int64) * query_blocks + query_block) * PICKED + slot % PICKED
    row = gl.load(picked, mask=query_block < query_blocks, other=rows - 1)
    return (row + position) // BLOCK_K


@gluon.jit
def _issue(queries, squares, both, slot, zero):
    """Unscaled logits [64, 64] of one head and stage, on their way: its first tile holds means, its second one spreads."""
    token = warpgroup_mma(queries, both.index(2 * slot).permute((1, 0)), zero, use_acc=False, is_async=True)
    return warpgroup_mma(squares, both.index(2 * slot + 1).permute((1, 0)), token, is_async=True)


@gluon.jit
def _both(q_tiles, square_tiles, both, full, it, HALF: gl.constexpr, S: gl.constexpr, STAGES: gl.constexpr):
    """Products of both heads on their way."""
    slot = it % STAGES
    mbarrier.wait(full.index(slot), (it // STAGES) & 1)
    zero = gl.zeros([64, 64], gl.float32, S)
    token0 = _issue(q_tiles.index(HALF), square_tiles.index(HALF), both, slot, zero)
    token1 = _issue(q_tiles.index(2 + HALF), square_tiles.index(2 + HALF), both, slot, zero)
    return token0, token1


@gluon.jit
def _store_queries(q, queries, squares, scale):
    queries.store(q)
    wide = q.to(gl.float32)
    squares.store((wide * wide * scale).to(q.dtype))


@gluon.jit
def _counts(counts, at, S: gl.constexpr):
    """log2(keys / BLOCK_K) of a tile's descriptions, [64]."""
    return gl.load(counts + at * 64 + gl.arange(0, 64, gl.SliceLayout(0, S)))


@gluon.jit
def _visible(logits, counts, at, own, described, per_count, CLUSTERS: gl.constexpr, S: gl.constexpr):
    """Unscaled logits with their keys' counts, -inf where a description lies after a row's own block or has no key."""
    column = gl.arange(0, 64, gl.SliceLayout(0, S))
    count = gl.load(counts + at * 64 + column, mask=at * 64 + column < described, other=-float("inf"))
    # Two descriptions of a KV block lie eight apart.
    block = at * (64 // CLUSTERS) + (column if CLUSTERS == 1 else column // 16 * 8 + column % 8)
    seen = gl.expand_dims(block, 0) <= gl.expand_dims(own, 1)
    return gl.where(seen, logits + gl.expand_dims(count * per_count, 0), -float("inf"))


@gluon.jit
def _add_edge(logits, top, total, scale2):
    """Normaliser's maximum and sum with one more tile that has a mask."""
    new = gl.maximum(top, gl.max(logits, 1) * scale2)
    # Rows of the padding see nothing.
    shift = gl.where(new == -float("inf"), 0.0, new)
    powers = gl.exp2(logits * scale2 - gl.expand_dims(shift, 1))
    return new, total * gl.exp2(top - shift) + gl.sum(powers, 1)


@gluon.jit
def _sum_of(logits, shift, offset, scale2, CLUSTERS: gl.constexpr):
    """A tile's part of the normaliser, without a mask and with the maximum that the edges had."""
    logits = logits * scale2 - gl.expand_dims(shift, 1)
    if CLUSTERS == 2:
        logits += gl.expand_dims(offset, 0)
    return gl.sum(gl.exp2(gl.minimum(logits, 110.0)), 1)


@gluon.jit
def _write(logits, whole, offset, scale2, out_ptr, unit, tile, at, query_blocks, key_blocks, LEAST: gl.constexpr,
    CLUSTERS: gl.constexpr, PICKED: gl.constexpr, HALF: gl.constexpr):
    """Scores of one head and tile. offset: log2 of the keys' counts, of two clusters."""
    GROUP: gl.constexpr = 128 // PICKED
    WIDTH: gl.constexpr = 64 // CLUSTERS
    O: gl.constexpr = gl.BlockedLayout([1, WIDTH // 32], [1, 32], [GROUP // 2, 8 // GROUP], [1, 0])
    # Squares of the shares, which a sampled normaliser may put above 1.
    if CLUSTERS == 1:
        squared = gl.exp2(gl.minimum(logits * (2.0 * scale2) - gl.expand_dims(2.0 * whole, 1), 0.0))
    else:
        logits = logits * scale2 - gl.expand_dims(whole, 1) + gl.expand_dims(offset, 0)
        share = gl.sum(gl.reshape(gl.exp2(gl.minimum(logits, 0.0)), [64, 4, 2, 8]), 2)
        share = gl.minimum(gl.reshape(share, [64, 32]), 1.0)
        squared = share * share
    mean = gl.sum(gl.reshape(squared, [GROUP // 2, PICKED, WIDTH]), 1)
    mean = gl.convert_layout(mean, O) * (1.0 / PICKED)
    score = gl.log2(gl.maximum(mean, 1e-30)) * (0.5 * 0.6931471805599453)
    m = tile * GROUP + HALF * (GROUP // 2) + gl.arange(0, GROUP // 2, gl.SliceLayout(1, O))
    n = gl.expand_dims(at * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, O)), 0)
    out = out_ptr + (unit.to(gl.int64) * query_blocks + gl.expand_dims(m.to(gl.int64), 1)) * key_blocks
    mask = gl.expand_dims(m < query_blocks, 1) & (n < key_blocks)
    gl.store(out + n, gl.maximum(score, LEAST).to(gl.float16), mask=mask)


@gluon.jit
def _consume(q_tiles, square_tiles, both, full, empty, q_ptr, table_ptr, picked_ptr, count_ptr, sinks_ptr,
    first_key_ptr, out_ptr, stride_qb, stride_qh, stride_qn, stride_qd, heads, group, units, tiles, first, rows,
    query_blocks, key_blocks, described, position, segment_keys, scale, LEAST: gl.constexpr, BLOCK_Q: gl.constexpr,
    BLOCK_K: gl.constexpr, ALIGNED: gl.constexpr, CLUSTERS: gl.constexpr, PICKED: gl.constexpr, STEP: gl.constexpr,
    HEAD: gl.constexpr, SINKS: gl.constexpr, INDIRECT: gl.constexpr, STAGES: gl.constexpr, HALF: gl.constexpr):
    """A consumer: one half of every item's query blocks, of two heads."""
    GROUP: gl.constexpr = 128 // PICKED
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    L: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD, HEAD // 8], [4, 1], [1, 0])
    s_rows: gl.constexpr = gl.SliceLayout(1, S)
    s_columns: gl.constexpr = gl.SliceLayout(0, S)
    dtype: gl.constexpr = q_tiles.dtype
    items = units * tiles
    scale2 = scale * 1.4426950408889634
    per_count = 1.0 / scale2
    if INDIRECT:
        address = gl.multiple_of(gl.load(table_ptr), 16)
        q_ptr = gl.multiple_of(address.to(gl.pointer_type(dtype), bitcast=True), 16)
    it = 0
    q0 = _queries(q_ptr, picked_ptr, gl.program_id(0), items, 0, heads, group, units, tiles, first, rows, query_blocks,
        stride_qb, stride_qh, stride_qn, stride_qd, L, PICKED, HEAD, HALF)
    q1 = _queries(q_ptr, picked_ptr, gl.program_id(0), items, 1, heads, group, units, tiles, first, rows, query_blocks,
        stride_qb, stride_qh, stride_qn, stride_qd, L, PICKED, HEAD, HALF)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        tile, batch, head, base = _item(item, units, tiles, heads, group, described)
        unit = batch * heads + head
        if HEAD != 64:
            # Registers are too few for both.
            q1 = _queries(q_ptr, picked_ptr, item, items, 1, heads, group, units, tiles, first, rows, query_blocks,
                stride_qb, stride_qh, stride_qn, stride_qd, L, PICKED, HEAD, HALF)
        _barrier()
        _store_queries(q0, q_tiles.index(HALF), square_tiles.index(HALF), scale)
        _store_queries(q1, q_tiles.index(2 + HALF), square_tiles.index(2 + HALF), scale)
        fence_async_shared()
        _barrier()
        first_key = gl.load(first_key_ptr + batch).to(gl.int32)
        begin, end, free_from, free_to, between = _reach(tile, first_key, rows, position, segment_keys, BLOCK_Q,
            BLOCK_K, ALIGNED, CLUSTERS, GROUP)
        plain, samples, sampled_to, count, each = _samples(free_from, free_to, begin, between, STEP)
        edges = free_from - begin + end - free_to
        counts = count_ptr + base
        own0 = _own_blocks(picked_ptr, unit, tile, rows, query_blocks, position, BLOCK_K, PICKED, HALF, s_rows)
        own1 = _own_blocks(picked_ptr, unit + 1, tile, rows, query_blocks, position, BLOCK_K, PICKED, HALF, s_rows)

        total0 = gl.zeros([64], gl.float32, s_rows)
        total1 = gl.zeros([64], gl.float32, s_rows)
        top0 = total0 - float("inf")
        top1 = total1 - float("inf")
        if SINKS:
            # ln(keys) is relative to BLOCK_K.
            counted = gl.log2(gl.full([64], BLOCK_K, gl.float32, s_rows))
            top0 = gl.load(sinks_ptr + head).to(gl.float32) * 1.4426950408889634 - counted
            top1 = gl.load(sinks_ptr + head + 1).to(gl.float32) * 1.4426950408889634 - counted
            total0 = total0 + 1.0
            total1 = total1 + 1.0
        for i in range(0, edges):
            token0, token1 = _both(q_tiles, square_tiles, both, full, it, HALF, S, STAGES)
            logits0, logits1 = warpgroup_mma_wait(0, deps=[token0, token1])
            mbarrier.arrive(empty.index(it % STAGES), count=1)
            it += 1
            at = _edge_tile(i, begin, free_from, free_to)
            logits0 = _visible(logits0, counts, at, own0, described, per_count, CLUSTERS, S)
            top0, total0 = _add_edge(logits0, top0, total0, scale2)
            logits1 = _visible(logits1, counts, at, own1, described, per_count, CLUSTERS, S)
            top1, total1 = _add_edge(logits1, top1, total1, scale2)
        shift0 = gl.where(top0 == -float("inf"), 0.0, top0)
        shift1 = gl.where(top1 == -float("inf"), 0.0, top1)
        offset = gl.zeros([64], gl.float32, s_columns)
        for i in range(0, count):
            at, weight = _free_tile(i, free_from, begin, plain, samples, sampled_to, each, STEP)
            if CLUSTERS == 2:
                offset = _counts(counts, at, S)
            token0, token1 = _both(q_tiles, square_tiles, both, full, it, HALF, S, STAGES)
            logits0 = warpgroup_mma_wait(2, deps=[token0])
            total0 += weight * _sum_of(logits0, shift0, offset, scale2, CLUSTERS)
            logits1 = warpgroup_mma_wait(0, deps=[token1])
            mbarrier.arrive(empty.index(it % STAGES), count=1)
            it += 1
            total1 += weight * _sum_of(logits1, shift1, offset, scale2, CLUSTERS)
        whole0 = gl.where(total0 > 0.0, shift0 + gl.log2(gl.maximum(total0, 1e-30)), float("inf"))
        whole1 = gl.where(total1 > 0.0, shift1 + gl.log2(gl.maximum(total1, 1e-30)), float("inf"))

        # The next queries are on their way during the second pass.
        after = item + gl.num_programs(0)
        q0 = _queries(q_ptr, picked_ptr, after, items, 0, heads, group, units, tiles, first, rows, query_blocks,
            stride_qb, stride_qh, stride_qn, stride_qd, L, PICKED, HEAD, HALF)
        if HEAD == 64:
            q1 = _queries(q_ptr, picked_ptr, after, items, 1, heads, group, units, tiles, first, rows, query_blocks,
                stride_qb, stride_qh, stride_qn, stride_qd, L, PICKED, HEAD, HALF)
        for at in range(free_from, free_to):
            if CLUSTERS == 2:
                offset = _counts(counts, at, S)
            token0, token1 = _both(q_tiles, square_tiles, both, full, it, HALF, S, STAGES)
            logits0 = warpgroup_mma_wait(2, deps=[token0])
            _write(logits0, whole0, offset, scale2, out_ptr, unit, tile, at, query_blocks, key_blocks, LEAST, CLUSTERS,
                PICKED, HALF)
            logits1 = warpgroup_mma_wait(0, deps=[token1])
            mbarrier.arrive(empty.index(it % STAGES), count=1)
            it += 1
            _write(logits1, whole1, offset, scale2, out_ptr, unit + 1, tile, at, query_blocks, key_blocks, LEAST,
                CLUSTERS, PICKED, HALF)
        offset = gl.zeros([64], gl.float32, s_columns)
        for i in range(0, edges):
            token0, token1 = _both(q_tiles, square_tiles, both, full, it, HALF, S, STAGES)
            logits0, logits1 = warpgroup_mma_wait(0, deps=[token0, token1])
            mbarrier.arrive(empty.index(it % STAGES), count=1)
            it += 1
            at = _edge_tile(i, begin, free_from, free_to)
            logits0 = _visible(logits0, counts, at, own0, described, per_count, CLUSTERS, S)
            _write(logits0, whole0, offset, scale2, out_ptr, unit, tile, at, query_blocks, key_blocks, LEAST, CLUSTERS,
                PICKED, HALF)
            logits1 = _visible(logits1, counts, at, own1, described, per_count, CLUSTERS, S)
            _write(logits1, whole1, offset, scale2, out_ptr, unit + 1, tile, at, query_blocks, key_blocks, LEAST,
                CLUSTERS, PICKED, HALF)


@gluon.jit
def hopper_score_kernel(q_ptr, table_ptr, desc, picked_ptr, count_ptr, sinks_ptr, first_key_ptr, out_ptr, stride_qb,
    stride_qh, stride_qn, stride_qd, heads, group, units, tiles, first, rows, query_blocks, key_blocks, described, position,
    segment_keys, scale, LEAST: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    ALIGNED: gl.constexpr, CLUSTERS: gl.constexpr, PICKED: gl.constexpr, STEP: gl.constexpr, HEAD: gl.constexpr, SINKS: gl.constexpr, INDIRECT: gl.constexpr, STAGES: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr):
    """16 rows of each of 8 query blocks an item: the KV blocks' scores, at least LEAST. scale > 0."""
    UPPER: gl.constexpr = 0
    LOWER: gl.constexpr = 1
    PANELS: gl.constexpr = 2 * HEAD // 64
    dtype: gl.constexpr = desc.dtype
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    bars: gl.constexpr = mbarrier.MBarrierLayout()
    q_tiles = gl.allocate_shared_memory(dtype, [4, 64, HEAD], tile)
    square_tiles = gl.allocate_shared_memory(dtype, [4, 64, HEAD], tile)
    # Per stage the means and then the spreads, as tiles of a product and as boxes that one copy fills.
    both = gl.allocate_shared_memory(dtype, [STAGES * 2, 64, HEAD], tile)
    boxes = both._reinterpret(dtype, [STAGES * PANELS, 64, 64], tile)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (q_tiles, square_tiles, both, full, empty, q_ptr, table_ptr, picked_ptr, count_ptr,
                sinks_ptr, first_key_ptr, out_ptr, stride_qb, stride_qh, stride_qn, stride_qd, heads, group, units,
                tiles, first, rows, query_blocks, key_blocks, described, position, segment_keys, scale, LEAST, BLOCK_Q, BLOCK_K,
                ALIGNED, CLUSTERS, PICKED, STEP, HEAD, SINKS, INDIRECT, STAGES, UPPER)),
            (_consume, (q_tiles, square_tiles, both, full, empty, q_ptr, table_ptr, picked_ptr, count_ptr,
                sinks_ptr, first_key_ptr, out_ptr, stride_qb, stride_qh, stride_qn, stride_qd, heads, group, units,
                tiles, first, rows, query_blocks, key_blocks, described, position, segment_keys, scale, LEAST, BLOCK_Q, BLOCK_K,
                ALIGNED, CLUSTERS, PICKED, STEP, HEAD, SINKS, INDIRECT, STAGES, LOWER)),
            (_produce, (desc, boxes, full, empty, first_key_ptr, out_ptr, heads, group, units, tiles, rows,
                query_blocks, key_blocks, described, position, segment_keys, LEAST, BLOCK_Q, BLOCK_K, ALIGNED,
                CLUSTERS, PICKED, STEP, HEAD, STAGES)),
        ],
        [4, 4],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
