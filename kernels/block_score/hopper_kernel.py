"""Block scores on Hopper: two consumer warpgroups of 64 scored rows each, fed by a producer warpgroup.

The same two passes as in ``kernel``, for 16 rows a query block and one description a KV block. Rows lie along the first
axis of a product, so that a row's normaliser is one register, a warp holds the 16 rows of one query block, and a sum
over them stays in the warp. Each consumer takes the whole tensor core for one product of 64 rows x 128 KV blocks and
then computes shares, while the other one's product runs. A stage holds two tiles of TILE KV blocks, which need not be
neighbours: the tiles that the normaliser samples lie apart.

The grid is one program per multiprocessor; program p takes every P-th tile of rows, those that see most first. The
producer copies descriptions by TMA ahead of the consumers, across tiles of rows, and fills in the scores of what no
row sees. A consumer loads its next queries while it computes its second pass.

880 us at 131,072 tokens, 32 heads of 128 and 16 rows, where ``kernel`` takes 1,237 (H200). The products alone would
take some 370; at 8 heads of 64 both kernels take 192. What binds it is not
known: two heads a tile, with half the copies from the L2 cache but narrower products, took 920.
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
def _reach(tile, first_key, rows, position, segment_keys, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr):
    """Tiles of 64 KV blocks of 8 query blocks: first, end, those without a mask; and how the normaliser samples."""
    first_row = tile * (8 * BLOCK_Q)
    first_own = (first_row + position) // BLOCK_K
    last_own = (gl.minimum(first_row + 8 * BLOCK_Q, rows) - 1 + position) // BLOCK_K
    begin = first_key // BLOCK_K // 64
    end = last_own // 64 + 1
    free_from = gl.minimum(begin + 1, end)
    free_to = gl.minimum((first_own + 1) // 64, segment_keys // BLOCK_K // 64)
    free_to = gl.maximum(gl.minimum(free_to, end - 1), free_from)
    between = first_own // 64 - (begin + 1)
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
def _free_tile(i, free_from, begin, plain, samples, sampled_to, count, each, STEP: gl.constexpr):
    """The i-th tile of the first pass without a mask, and what it counts; past the last one it counts nothing."""
    sample = i - plain
    is_sample = (sample >= 0) & (sample < samples)
    at = gl.where(sample < 0, free_from + i, sampled_to + sample - samples)
    at = gl.where(is_sample, begin + 1 + STEP // 2 + sample * STEP, at)
    weight = gl.where(is_sample, each, 1.0)
    return gl.where(i < count, at, begin), gl.where(i < count, weight, 0.0)


@gluon.jit
def _edge_tile(i, begin, free_from, free_to, edges):
    """The i-th tile of the first pass with a mask; past the last one a tile that no row sees."""
    at = gl.where(begin + i < free_from, begin + i, begin + i - free_from + free_to)
    return gl.where(i < edges, at, 1 << 20)


@gluon.jit
def _copy(desc, boxes, full, empty, it, base, tile0, tile1, HEAD: gl.constexpr, STAGES: gl.constexpr):
    """Two tiles of 64 descriptions into one stage: means and spreads in panels of 64 elements."""
    PANELS: gl.constexpr = 2 * HEAD // 64
    slot = it % STAGES
    mbarrier.wait(empty.index(slot), ((it // STAGES) & 1) ^ 1)
    mbarrier.expect(full.index(slot), 128 * 2 * HEAD * 2)
    for panel in gl.static_range(PANELS):
        box = (slot * PANELS + panel) * 2
        tma.async_copy_global_to_shared(desc, [base + tile0 * 64, panel * 64], full.index(slot), boxes.index(box))
        tma.async_copy_global_to_shared(desc, [base + tile1 * 64, panel * 64], full.index(slot),
            boxes.index(box + 1))


@gluon.jit
def _produce(desc, boxes, full, empty, first_key_ptr, out_ptr, heads, group, units, tiles, rows, query_blocks,
    key_blocks, position, segment_keys, LEAST: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    STEP: gl.constexpr, HEAD: gl.constexpr, STAGES: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    it = 0
    for item in range(gl.program_id(0), units * tiles, gl.num_programs(0)):
        unit = item % units
        tile = tiles - 1 - item // units
        batch = unit // heads
        first_key = gl.load(first_key_ptr + batch).to(gl.int32)
        begin, end, free_from, free_to, between = _reach(tile, first_key, rows, position, segment_keys, BLOCK_Q,
            BLOCK_K)
        plain, samples, sampled_to, count, each = _samples(free_from, free_to, begin, between, STEP)
        base = (batch * (heads // group) + unit % heads // group) * key_blocks
        edges = free_from - begin + end - free_to
        for pair in range(0, (edges + 1) // 2):
            tile0 = _edge_tile(2 * pair, begin, free_from, free_to, edges)
            tile1 = _edge_tile(2 * pair + 1, begin, free_from, free_to, edges)
            tile1 = gl.where(2 * pair + 1 < edges, tile1, tile0)
            _copy(desc, boxes, full, empty, it, base, tile0, tile1, HEAD, STAGES)
            it += 1
        for pair in range(0, (count + 1) // 2):
            tile0, _w0 = _free_tile(2 * pair, free_from, begin, plain, samples, sampled_to, count, each, STEP)
            tile1, _w1 = _free_tile(2 * pair + 1, free_from, begin, plain, samples, sampled_to, count, each, STEP)
            _copy(desc, boxes, full, empty, it, base, tile0, tile1, HEAD, STAGES)
            it += 1
        for window in range(begin // 2, (end + 1) // 2):
            _copy(desc, boxes, full, empty, it, base, 2 * window, 2 * window + 1, HEAD, STAGES)
            it += 1

        # KV blocks before the first real key and after the diagonal.
        nothing = gl.full([8, 128], LEAST, gl.float32, layout).to(gl.float16)
        m = tile * 8 + gl.arange(0, 8, gl.SliceLayout(1, layout))
        n = gl.arange(0, 128, gl.SliceLayout(0, layout))
        out = out_ptr + (unit.to(gl.int64) * query_blocks + gl.expand_dims(m.to(gl.int64), 1)) * key_blocks
        for window in range(0, begin // 2):
            at = gl.expand_dims(window * 128 + n, 0)
            gl.store(out + at, nothing, mask=gl.expand_dims(m < query_blocks, 1) & (at < key_blocks))
        for window in range((end + 1) // 2, (key_blocks + 127) // 128):
            at = gl.expand_dims(window * 128 + n, 0)
            gl.store(out + at, nothing, mask=gl.expand_dims(m < query_blocks, 1) & (at < key_blocks))


@gluon.jit
def _queries(q_ptr, picked_ptr, item, items, heads, units, tiles, first, rows, query_blocks, stride_qb, stride_qh,
    stride_qn, stride_qd, L: gl.constexpr, HEAD: gl.constexpr, HALF: gl.constexpr):
    """The 64 scored queries of an item's half; nothing is read past the last item."""
    item = gl.minimum(item, items - 1)
    unit = (item % units).to(gl.int64)
    tile = tiles - 1 - item // units
    slot = gl.arange(0, 64, gl.SliceLayout(1, L)) + HALF * 64
    query_block = tile * 8 + slot // 16
    picked = picked_ptr + (unit * query_blocks + query_block) * 16 + slot % 16
    row = gl.load(picked, mask=query_block < query_blocks, other=rows - 1)
    d = gl.arange(0, HEAD, gl.SliceLayout(0, L))
    at = q_ptr + unit // heads * stride_qb + unit % heads * stride_qh
    return gl.load(at + gl.expand_dims((row + first).to(gl.int64) * stride_qn, 1) + gl.expand_dims(d * stride_qd, 0))


@gluon.jit
def _products(queries, squares, both, full, empty, it, S: gl.constexpr, STAGES: gl.constexpr):
    """Unscaled logits [64, 128] of one stage: its first tile holds means, its second one spreads."""
    slot = it % STAGES
    mbarrier.wait(full.index(slot), (it // STAGES) & 1)
    zero = gl.zeros([64, 128], gl.float32, S)
    token = warpgroup_mma(queries, both.index(2 * slot).permute((1, 0)), zero, use_acc=False, is_async=True)
    token = warpgroup_mma(squares, both.index(2 * slot + 1).permute((1, 0)), token, is_async=True)
    logits = warpgroup_mma_wait(0, deps=[token])
    mbarrier.arrive(empty.index(slot), count=1)
    return logits


@gluon.jit
def _visible(logits, counts, tile0, tile1, own, described, per_count, S: gl.constexpr):
    """Unscaled logits with ln(keys), -inf where a description lies after a row's own block or stands for no key."""
    column = gl.arange(0, 128, gl.SliceLayout(0, S))
    n = gl.where(column < 64, tile0 * 64 + column, tile1 * 64 + column - 64)
    count = gl.load(counts + n, mask=n < described, other=-float("inf"))
    seen = gl.expand_dims(n, 0) <= gl.expand_dims(own, 1)
    return gl.where(seen, logits + gl.expand_dims(count * per_count, 0), -float("inf"))


@gluon.jit
def _consume(q_tiles, square_tiles, both, full, empty, q_ptr, table_ptr, picked_ptr, count_ptr,
    sinks_ptr, first_key_ptr, out_ptr, stride_qb, stride_qh, stride_qn, stride_qd, heads, group, units, tiles, first,
    rows, query_blocks, key_blocks, position, segment_keys, scale, LEAST: gl.constexpr, BLOCK_Q: gl.constexpr,
    BLOCK_K: gl.constexpr, STEP: gl.constexpr, HEAD: gl.constexpr, SINKS: gl.constexpr, INDIRECT: gl.constexpr,
    STAGES: gl.constexpr, HALF: gl.constexpr):
    """A consumer: scored rows of the query blocks 4 HALF to 4 HALF + 3 of every item."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    L: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD, HEAD // 8], [4, 1], [1, 0])
    OUT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    s_rows: gl.constexpr = gl.SliceLayout(1, S)
    dtype: gl.constexpr = q_tiles.dtype
    MOST_ABOVE: gl.constexpr = 110.0
    items = units * tiles
    scale2 = scale * 1.4426950408889634
    per_count = 1.0 / scale2
    if INDIRECT:
        address = gl.multiple_of(gl.load(table_ptr), 16)
        q_ptr = gl.multiple_of(address.to(gl.pointer_type(dtype), bitcast=True), 16)
    it = 0
    queries = q_tiles.index(HALF)
    squares = square_tiles.index(HALF)
    q = _queries(q_ptr, picked_ptr, gl.program_id(0), items, heads, units, tiles, first, rows, query_blocks,
        stride_qb, stride_qh, stride_qn, stride_qd, L, HEAD, HALF)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        unit = item % units
        tile = tiles - 1 - item // units
        batch = unit // heads
        head = unit % heads
        _barrier()
        queries.store(q)
        wide = q.to(gl.float32)
        squares.store((wide * wide * scale).to(dtype))
        fence_async_shared()
        _barrier()
        first_key = gl.load(first_key_ptr + batch).to(gl.int32)
        begin, end, free_from, free_to, between = _reach(tile, first_key, rows, position, segment_keys, BLOCK_Q,
            BLOCK_K)
        plain, samples, sampled_to, count, each = _samples(free_from, free_to, begin, between, STEP)
        edges = free_from - begin + end - free_to
        counts = count_ptr + (batch * (heads // group) + head // group) * key_blocks
        slot = gl.arange(0, 64, s_rows) + HALF * 64
        query_block = tile * 8 + slot // 16
        picked = picked_ptr + (unit.to(gl.int64) * query_blocks + query_block) * 16 + slot % 16
        row = gl.load(picked, mask=query_block < query_blocks, other=rows - 1)
        own = (row + position) // BLOCK_K

        total = gl.zeros([64], gl.float32, s_rows)
        top = total - float("inf")
        if SINKS:
            # ln(keys) is relative to BLOCK_K.
            counted = gl.log2(gl.full([64], BLOCK_K, gl.float32, s_rows))
            top = gl.load(sinks_ptr + head).to(gl.float32) * 1.4426950408889634 - counted
            total = total + 1.0
        for pair in range(0, (edges + 1) // 2):
            logits = _products(queries, squares, both, full, empty, it, S, STAGES)
            it += 1
            tile0 = _edge_tile(2 * pair, begin, free_from, free_to, edges)
            tile1 = _edge_tile(2 * pair + 1, begin, free_from, free_to, edges)
            logits = _visible(logits, counts, tile0, tile1, own, key_blocks, per_count, S)
            new = gl.maximum(top, gl.max(logits, 1) * scale2)
            # Rows of the padding see nothing.
            shift = gl.where(new == -float("inf"), 0.0, new)
            powers = gl.exp2(logits * scale2 - gl.expand_dims(shift, 1))
            total = total * gl.exp2(top - shift) + gl.sum(powers, 1)
            top = new
        shift = gl.where(top == -float("inf"), 0.0, top)
        for pair in range(0, (count + 1) // 2):
            logits = _products(queries, squares, both, full, empty, it, S, STAGES)
            it += 1
            _t0, weight0 = _free_tile(2 * pair, free_from, begin, plain, samples, sampled_to, count, each, STEP)
            _t1, weight1 = _free_tile(2 * pair + 1, free_from, begin, plain, samples, sampled_to, count, each, STEP)
            column = gl.arange(0, 128, gl.SliceLayout(0, S))
            weight = gl.where(column < 64, weight0, weight1)
            powers = gl.exp2(gl.minimum(logits * scale2 - gl.expand_dims(shift, 1), MOST_ABOVE))
            total += gl.sum(powers * gl.expand_dims(weight, 0), 1)
        whole = gl.where(total > 0.0, shift + gl.log2(gl.maximum(total, 1e-30)), float("inf"))

        # The next queries are on their way during the second pass.
        q = _queries(q_ptr, picked_ptr, item + gl.num_programs(0), items, heads, units, tiles, first, rows,
            query_blocks, stride_qb, stride_qh, stride_qn, stride_qd, L, HEAD, HALF)
        twice = gl.expand_dims(2.0 * whole, 1)
        m = tile * 8 + HALF * 4 + gl.arange(0, 4, gl.SliceLayout(1, OUT))
        out = out_ptr + (unit.to(gl.int64) * query_blocks + gl.expand_dims(m.to(gl.int64), 1)) * key_blocks
        for window in range(begin // 2, (end + 1) // 2):
            logits = _products(queries, squares, both, full, empty, it, S, STAGES)
            it += 1
            if (2 * window < free_from) | (2 * window + 2 > free_to):
                logits = _visible(logits, counts, 2 * window, 2 * window + 1, own, key_blocks, per_count, S)
            # Squares of the shares, which a sampled normaliser may put above 1.
            squared = gl.exp2(gl.minimum(logits * (2.0 * scale2) - twice, 0.0))
            mean = gl.sum(gl.reshape(squared, [4, 16, 128]), 1)
            mean = gl.convert_layout(mean, OUT) * (1.0 / 16)
            score = gl.log2(gl.maximum(mean, 1e-30)) * (0.5 * 0.6931471805599453)
            score = gl.maximum(score, LEAST).to(gl.float16)
            n = gl.expand_dims(window * 128 + gl.arange(0, 128, gl.SliceLayout(0, OUT)), 0)
            gl.store(out + n, score, mask=gl.expand_dims(m < query_blocks, 1) & (n < key_blocks))


@gluon.jit
def hopper_score_kernel(q_ptr, table_ptr, desc, picked_ptr, count_ptr, sinks_ptr, first_key_ptr, out_ptr, stride_qb,
    stride_qh, stride_qn, stride_qd, heads, group, units, tiles, first, rows, query_blocks, key_blocks, position,
    segment_keys, scale, LEAST: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr, STEP: gl.constexpr,
    HEAD: gl.constexpr, SINKS: gl.constexpr, INDIRECT: gl.constexpr, STAGES: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr):
    """16 rows of each of 8 query blocks an item: the KV blocks' scores, at least LEAST. scale > 0."""
    UPPER: gl.constexpr = 0
    LOWER: gl.constexpr = 1
    PANELS: gl.constexpr = 2 * HEAD // 64
    dtype: gl.constexpr = desc.dtype
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    bars: gl.constexpr = mbarrier.MBarrierLayout()
    q_tiles = gl.allocate_shared_memory(dtype, [2, 64, HEAD], tile)
    square_tiles = gl.allocate_shared_memory(dtype, [2, 64, HEAD], tile)
    # Per stage the means and then the spreads, as tiles of a product and as boxes that one copy fills.
    both = gl.allocate_shared_memory(dtype, [STAGES * 2, 128, HEAD], tile)
    boxes = both._reinterpret(dtype, [STAGES * PANELS * 2, 64, 64], tile)
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
                tiles, first, rows, query_blocks, key_blocks, position, segment_keys, scale, LEAST, BLOCK_Q, BLOCK_K,
                STEP, HEAD, SINKS, INDIRECT, STAGES, UPPER)),
            (_consume, (q_tiles, square_tiles, both, full, empty, q_ptr, table_ptr, picked_ptr, count_ptr,
                sinks_ptr, first_key_ptr, out_ptr, stride_qb, stride_qh, stride_qn, stride_qd, heads, group, units,
                tiles, first, rows, query_blocks, key_blocks, position, segment_keys, scale, LEAST, BLOCK_Q, BLOCK_K,
                STEP, HEAD, SINKS, INDIRECT, STAGES, LOWER)),
            (_produce, (desc, boxes, full, empty, first_key_ptr, out_ptr, heads, group, units, tiles, rows,
                query_blocks, key_blocks, position, segment_keys, LEAST, BLOCK_Q, BLOCK_K, STEP, HEAD, STAGES)),
        ],
        [4, 4],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
