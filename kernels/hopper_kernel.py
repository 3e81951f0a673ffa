"""The device code for Hopper: two consumer warpgroups of 64 query rows each, fed by a producer warpgroup.

Importing this module imports Gluon, Triton's explicit dialect, so only ``hopper_backend`` does, inside a function.

The grid is one program per multiprocessor; each draws its rows from a counter. The producer copies a row's Q, then
pairs of KV blocks (TMA), then 128 single columns at a time (16-byte asynchronous copies) into rings of shared memory
that mbarriers guard, and runs ahead over the end of a row. A consumer issues Q K^T of tile t + 1 and P V of tile t
together and computes the softmax of t + 1 while P V runs (FlashAttention-3's order), also across the end of a row.

The diagonal blocks are read by position, not from the list, and every listed key is clamped below them: the kernel is
causal whatever the plan says. Base-2 online softmax as in ``triton_kernel``.

Bundles that functions pass on (Gluon's tuples):
    ring     tiles, boxes (the same bytes as one copy fills them), full and empty barriers
    lists    order, blocks, block_count, columns, column_count, dense_rows, blocks_stride, columns_stride
    sizes    heads, group, query_blocks, n_q, n_k
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def _counts(row, lists, COLUMNS: gl.constexpr):
    """Listed blocks, or -1 for a dense row, and columns of a row; any row below 0 has none."""
    _, _, block_count, _, column_count, dense_rows, _, _ = lists
    dense = gl.load(dense_rows + row, mask=row >= 0, other=0) != 0
    blocks = gl.where(dense, -1, gl.load(block_count + row, mask=row >= 0, other=0))
    columns = 0
    if COLUMNS:
        columns = gl.where(dense, 0, gl.load(column_count + row, mask=row >= 0, other=0))
    return blocks, columns


@gluon.jit
def _draw(counter, order, rows):
    """The next row of the order that no program has taken, -1 when there is none."""
    place = gl.num_programs(0) + gl.atomic_add(counter, 1)
    return gl.load(order + place, mask=place < rows, other=-1)


@gluon.jit
def _shape(row, blocks, sizes):
    """Query block, head, batch, first position, first diagonal block, listed blocks before it, tiles of the tail.

    The tail is the last listed block before the diagonal, if their number is odd, and the diagonal blocks.
    """
    heads, _, query_blocks, n_q, n_k = sizes
    query_block = row % query_blocks
    head = (row // query_blocks) % heads
    batch = row // query_blocks // heads
    first = n_k - n_q + query_block * 128
    last = gl.minimum(first + 128, n_k) - 1
    diagonal = first // 64
    own = last // 64 - diagonal + 1
    before = gl.where(blocks < 0, diagonal, gl.maximum(blocks - own, 0))
    before = gl.where(diagonal > 0, before, 0)
    return query_block, head, batch, first, diagonal, before, (before % 2 + own + 1) // 2


@gluon.jit
def _publish(tickets, slot, row, blocks, columns):
    """Write down for the consumers what the Q slot holds."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    tickets.index(slot * 3).store(gl.full([1], 0, gl.int32, layout) + row)
    tickets.index(slot * 3 + 1).store(gl.full([1], 0, gl.int32, layout) + blocks)
    tickets.index(slot * 3 + 2).store(gl.full([1], 0, gl.int32, layout) + columns)


@gluon.jit
def _take(tickets, full, step, Q_SLOTS: gl.constexpr):
    """Row, blocks and columns of the next Q slot, once it is full; row -1 ends the work."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    slot = step % Q_SLOTS
    mbarrier.wait(full.index(slot), (step // Q_SLOTS) & 1)
    row = gl.max(tickets.index(slot * 3).load(layout), 0)
    blocks = gl.max(tickets.index(slot * 3 + 1).load(layout), 0)
    columns = gl.max(tickets.index(slot * 3 + 2).load(layout), 0)
    return row, blocks, columns


@gluon.jit
def _copy_blocks(desc, ring, it, batch, kv_head, block0, block1, HEAD: gl.constexpr, STAGES: gl.constexpr):
    """Two KV blocks of 64 keys into one stage, in panels of 64 elements of the head."""
    _, boxes, full, empty = ring
    slot = it % STAGES
    bar = full.index(slot)
    mbarrier.wait(empty.index(slot), ((it // STAGES) & 1) ^ 1)
    mbarrier.expect(bar, 128 * HEAD * 2)
    for panel in gl.static_range(HEAD // 64):
        box = (slot * (HEAD // 64) + panel) * 2
        d = panel * 64
        tma.async_copy_global_to_shared(desc, [batch, kv_head, block0 * 64, d], bar, boxes.index(box))
        tma.async_copy_global_to_shared(desc, [batch, kv_head, block1 * 64, d], bar, boxes.index(box + 1))


@gluon.jit
def _copy_columns(
    head_ptr, stride_n, ring, it, keys0, keys1, layout: gl.constexpr, HEAD: gl.constexpr, STAGES: gl.constexpr
):
    """Two times 64 single keys into one stage, by asynchronous copies that the caller waits for."""
    _, boxes, _, empty = ring
    slot = it % STAGES
    mbarrier.wait(empty.index(slot), ((it // STAGES) & 1) ^ 1)
    rows0 = head_ptr + gl.expand_dims(keys0.to(gl.int64) * stride_n, 1)
    rows1 = head_ptr + gl.expand_dims(keys1.to(gl.int64) * stride_n, 1)
    for panel in gl.static_range(HEAD // 64):
        d = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, layout)) + panel * 64, 0)
        box = (slot * (HEAD // 64) + panel) * 2
        async_copy.async_copy_global_to_shared(boxes.index(box).reshape([64, 64]), rows0 + d)
        async_copy.async_copy_global_to_shared(boxes.index(box + 1).reshape([64, 64]), rows1 + d)
    async_copy.commit_group()


@gluon.jit
def _produce(
    descs,
    k_place,
    v_place,
    q_ring,
    k_ring,
    v_ring,
    tickets,
    counter,
    lists,
    sizes,
    rows,
    HEAD: gl.constexpr,
    STAGES: gl.constexpr,
    Q_SLOTS: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    """Copy the rows' tiles in the order in which the consumers read them."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    q_desc, k_desc, v_desc = descs
    order, blocks_ptr, _, columns_ptr, _, _, blocks_stride, columns_stride = lists
    _, q_boxes, q_full, q_empty = q_ring
    lane = gl.arange(0, 64, gl.SliceLayout(1, layout))
    it = 0
    step = 0
    row = gl.load(order + gl.program_id(0))
    blocks, columns = _counts(row, lists, COLUMNS)
    next_row = _draw(counter, order, rows)
    while row >= 0:
        # What the next row needs is under way while this row's tiles are copied.
        next_blocks, next_columns = _counts(next_row, lists, COLUMNS)
        query_block, head, batch, first, diagonal, before, tail = _shape(row, blocks, sizes)
        kv_head = head // sizes[1]
        block_list = blocks_ptr + row.to(gl.int64) * blocks_stride
        listed = blocks >= 0
        odd = before % 2
        pairs = before // 2
        odd_block = gl.load(block_list + before - 1, mask=listed & (odd == 1), other=0)
        block0 = gl.load(block_list, mask=listed & (pairs > 0), other=0)
        block1 = gl.load(block_list + 1, mask=listed & (pairs > 0), other=0)

        slot = step % Q_SLOTS
        bar = q_full.index(slot)
        mbarrier.wait(q_empty.index(slot), ((step // Q_SLOTS) & 1) ^ 1)
        _publish(tickets, slot, row, blocks, columns)
        mbarrier.expect(bar, 128 * HEAD * 2)
        for panel in gl.static_range(HEAD // 64):
            for half in gl.static_range(2):
                place = [batch, head, query_block * 128 + half * 64, panel * 64]
                box = q_boxes.index((slot * 2 + half) * (HEAD // 64) + panel)
                tma.async_copy_global_to_shared(q_desc, place, bar, box)

        for t in range(tail):
            now0 = diagonal - odd + 2 * t
            if (t == 0) & (odd == 1) & listed:
                now0 = gl.minimum(odd_block, diagonal - 1)
            now1 = diagonal - odd + 2 * t + 1
            _copy_blocks(k_desc, k_ring, it, batch, kv_head, now0, now1, HEAD, STAGES)
            _copy_blocks(v_desc, v_ring, it, batch, kv_head, now0, now1, HEAD, STAGES)
            it += 1
        for t in range(pairs):
            now0 = gl.where(listed, gl.minimum(block0, diagonal - 1), 2 * t)
            now1 = gl.where(listed, gl.minimum(block1, diagonal - 1), 2 * t + 1)
            more = listed & (t + 1 < pairs)
            block0 = gl.load(block_list + 2 * t + 2, mask=more, other=0)
            block1 = gl.load(block_list + 2 * t + 3, mask=more, other=0)
            _copy_blocks(k_desc, k_ring, it, batch, kv_head, now0, now1, HEAD, STAGES)
            _copy_blocks(v_desc, v_ring, it, batch, kv_head, now0, now1, HEAD, STAGES)
            it += 1
        if COLUMNS:
            column_list = columns_ptr + row.to(gl.int64) * columns_stride
            k_ptr, k_stride_b, k_stride_h, k_stride_n = k_place
            v_ptr, v_stride_b, v_stride_h, v_stride_n = v_place
            k_head = k_ptr + batch.to(gl.int64) * k_stride_b + kv_head.to(gl.int64) * k_stride_h
            v_head = v_ptr + batch.to(gl.int64) * v_stride_b + kv_head.to(gl.int64) * v_stride_h
            keys0 = gl.load(column_list + lane, mask=lane < columns, other=0)
            keys1 = gl.load(column_list + 64 + lane, mask=64 + lane < columns, other=0)
            for t in range(0, columns, 128):
                now0 = gl.minimum(keys0, first)
                now1 = gl.minimum(keys1, first)
                keys0 = gl.load(column_list + t + 128 + lane, mask=t + 128 + lane < columns, other=0)
                keys1 = gl.load(column_list + t + 192 + lane, mask=t + 192 + lane < columns, other=0)
                _copy_columns(k_head, k_stride_n, k_ring, it, now0, now1, layout, HEAD, STAGES)
                _copy_columns(v_head, v_stride_n, v_ring, it, now0, now1, layout, HEAD, STAGES)
                # The matrix unit sees what these copies wrote only behind a fence of the writer.
                async_copy.wait_group(1)
                fence_async_shared()
                mbarrier.arrive(k_ring[2].index(it % STAGES), count=1)
                async_copy.wait_group(0)
                fence_async_shared()
                mbarrier.arrive(v_ring[2].index(it % STAGES), count=1)
                it += 1
        row = next_row
        blocks = next_blocks
        columns = next_columns
        next_row = _draw(counter, order, rows)
        step += 1
    slot = step % Q_SLOTS
    mbarrier.wait(q_empty.index(slot), ((step // Q_SLOTS) & 1) ^ 1)
    _publish(tickets, slot, row, blocks, columns)
    mbarrier.arrive(q_full.index(slot), count=1)


@gluon.jit
def _softmax(s, top, total, limit, scale_log2, MASKED: gl.constexpr, S: gl.constexpr):
    """Weights of one tile, the decay of what was summed before, the new maximum and sum.

    Columns above the row's limit are masked by a large negative number. Were a row's first tile masked entirely,
    its weights would be wrong until the next key decays them to zero.
    """
    if MASKED:
        column = gl.arange(0, 128, gl.SliceLayout(0, S)).to(gl.float32)
        bound = gl.expand_dims((limit.to(gl.float32) + 0.5) * 1e30, 1) - gl.expand_dims(column * 1e30, 0)
        s = gl.minimum(s, bound)
    new_top = gl.maximum(top, gl.max(s, 1) * scale_log2)
    weights = gl.exp2(s * scale_log2 - gl.expand_dims(new_top, 1))
    decay = gl.exp2(top - new_top)
    return weights, decay, new_top, total * decay + gl.sum(weights, 1)


@gluon.jit
def _start(sinks_ptr, head, SINKS: gl.constexpr, layout: gl.constexpr):
    """Maximum and sum of a row before its first key: a sink is a key with value zero."""
    total = gl.zeros([64], gl.float32, layout)
    if SINKS:
        top = total + gl.load(sinks_ptr + head) * 1.4426950408889634
        total = total + 1.0
    else:
        top = total - float("inf")
    return top, total


@gluon.jit
def _fold(
    q,
    k_ring,
    v_ring,
    acc,
    p,
    top,
    total,
    limit,
    scale_log2,
    it,
    MASKED: gl.constexpr,
    HEAD: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Q K^T and softmax of tile ``it`` while P V of the tile before it runs.

    Returns the output of the tiles before ``it``, undecayed, its decay, and weights, maximum and sum with ``it``.
    """
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    k_tiles, _, k_full, k_empty = k_ring
    v_tiles, _, v_full, v_empty = v_ring
    slot = it % STAGES
    before = (it - 1) % STAGES
    mbarrier.wait(k_full.index(slot), (it // STAGES) & 1)
    zero = gl.zeros([64, 128], gl.float32, S)
    s_token = warpgroup_mma(q, k_tiles.index(slot).permute((1, 0)), zero, use_acc=False, is_async=True)
    acc_token = warpgroup_mma(p, v_tiles.index(before), acc, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s_token])
    mbarrier.arrive(k_empty.index(slot), count=1)
    weights, decay, top, total = _softmax(s, top, total, limit, scale_log2, MASKED, S)
    next_p = gl.convert_layout(weights, gl.DotOperandLayout(0, A, 2)).to(k_tiles.dtype)
    # This wait ends a basic block: without one, ptxas moves the softmax behind the wait for P V.
    mbarrier.wait(v_full.index(slot), (it // STAGES) & 1)
    acc, p, next_p = warpgroup_mma_wait(0, deps=[acc_token, p, next_p])
    mbarrier.arrive(v_empty.index(before), count=1)
    return acc, gl.expand_dims(gl.convert_layout(decay, gl.SliceLayout(1, A)), 1), next_p, top, total


@gluon.jit
def _limit(first, diagonal, before, blocks, HALF: gl.constexpr, layout: gl.constexpr):
    """The last visible column of each row in the tail, whose keys stand as if in sequence up to the diagonal."""
    limit = first - (diagonal - before % 2) * 64 + HALF * 64 + gl.arange(0, 64, layout)
    return gl.where(blocks == 0, -1, limit)


@gluon.jit
def _consume(
    q_ring,
    k_ring,
    v_ring,
    tickets,
    out_ptr,
    lse_ptr,
    sinks_ptr,
    sizes,
    scale_log2,
    HEAD: gl.constexpr,
    STAGES: gl.constexpr,
    Q_SLOTS: gl.constexpr,
    COLUMNS: gl.constexpr,
    SINKS: gl.constexpr,
    HALF: gl.constexpr,
):
    """Rows 64 HALF to 64 HALF + 63 of every query block. A row's first tile overlaps the last one before it."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    s_rows: gl.constexpr = gl.SliceLayout(1, S)
    a_rows: gl.constexpr = gl.SliceLayout(1, A)
    q_tiles, _, q_full, q_empty = q_ring
    k_tiles, _, k_full, k_empty = k_ring
    v_tiles, _, v_full, _ = v_ring
    dtype: gl.constexpr = k_tiles.dtype
    heads, _, _, n_q, _ = sizes

    row, blocks, columns = _take(tickets, q_full, 0, Q_SLOTS)
    query_block, head, batch, first, diagonal, before, tail = _shape(row, blocks, sizes)
    limit = _limit(first, diagonal, before, blocks, HALF, s_rows)
    top, total = _start(sinks_ptr, head, SINKS, s_rows)
    mbarrier.wait(k_full.index(0), 0)
    zero = gl.zeros([64, 128], gl.float32, S)
    s = warpgroup_mma(q_tiles.index(HALF), k_tiles.index(0).permute((1, 0)), zero, use_acc=False)
    mbarrier.arrive(k_empty.index(0), count=1)
    weights, _first_decay, top, total = _softmax(s, top, total, limit, scale_log2, True, S)
    p = gl.convert_layout(weights, gl.DotOperandLayout(0, A, 2)).to(dtype)
    mbarrier.wait(v_full.index(0), 0)
    it = 1
    step = 0
    while row >= 0:
        q = q_tiles.index((step % Q_SLOTS) * 2 + HALF)
        acc = gl.zeros([64, HEAD], gl.float32, A)
        for t in range(1, tail):
            acc, decay, p, top, total = _fold(
                q, k_ring, v_ring, acc, p, top, total, limit - t * 128, scale_log2, it, True, HEAD, STAGES
            )
            acc = acc * decay
            it += 1
        for _tile in range(before // 2 + columns // 128):
            acc, decay, p, top, total = _fold(
                q, k_ring, v_ring, acc, p, top, total, limit, scale_log2, it, False, HEAD, STAGES
            )
            acc = acc * decay
            it += 1
        if COLUMNS:
            rest = columns % 128
            for _tile in range(gl.where(rest > 0, 1, 0)):
                last = gl.full([64], 0, gl.int32, s_rows) + rest - 1
                acc, decay, p, top, total = _fold(
                    q, k_ring, v_ring, acc, p, top, total, last, scale_log2, it, True, HEAD, STAGES
                )
                acc = acc * decay
                it += 1
        mbarrier.arrive(q_empty.index(step % Q_SLOTS), count=1)

        row_top = top
        row_total = total
        empty = (blocks == 0) & (columns == 0)
        first_row = query_block * 128 + HALF * 64
        # out [B, Hq, n_q, D] and lse [B, Hq, n_q] are contiguous.
        place = (batch * heads + head).to(gl.int64) * n_q
        step += 1
        row, blocks, columns = _take(tickets, q_full, step, Q_SLOTS)
        query_block, head, batch, first, diagonal, before, tail = _shape(row, blocks, sizes)
        limit = _limit(first, diagonal, before, blocks, HALF, s_rows)
        if row >= 0:
            top, total = _start(sinks_ptr, head, SINKS, s_rows)
            q = q_tiles.index((step % Q_SLOTS) * 2 + HALF)
            acc, _last_decay, p, top, total = _fold(
                q, k_ring, v_ring, acc, p, top, total, limit, scale_log2, it, True, HEAD, STAGES
            )
            it += 1
        else:
            acc = warpgroup_mma(p, v_tiles.index((it - 1) % STAGES), acc)

        lse = (row_top + gl.log2(row_total)) * 0.6931471805599453
        share = 1.0 / row_total
        if not SINKS:
            lse = gl.where(empty, -float("inf"), lse)
            share = gl.where(empty, 0.0, share)
        lse_row = first_row + gl.arange(0, 64, s_rows)
        gl.store(lse_ptr + place + lse_row, lse, mask=lse_row < n_q)
        acc = acc * gl.expand_dims(gl.convert_layout(share, a_rows), 1)
        out_row = gl.expand_dims(first_row + gl.arange(0, 64, a_rows), 1)
        d = gl.expand_dims(gl.arange(0, HEAD, gl.SliceLayout(0, A)), 0)
        gl.store(out_ptr + (place + out_row) * HEAD + d, acc.to(dtype), mask=out_row < n_q)


@gluon.jit
def _ring(tiles, boxes, STAGES: gl.constexpr):
    """Tiles and boxes with their barriers: full after one producer's arrival, empty after both consumers'."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    return tiles, boxes, full, empty


@gluon.jit
def hopper_attention_kernel(
    q_desc,
    k_desc,
    v_desc,
    k_ptr,
    v_ptr,
    k_stride_b,
    k_stride_h,
    k_stride_n,
    v_stride_b,
    v_stride_h,
    v_stride_n,
    out_ptr,
    lse_ptr,
    counter_ptr,
    order_ptr,
    blocks_ptr,
    block_count_ptr,
    columns_ptr,
    column_count_ptr,
    dense_rows_ptr,
    sinks_ptr,
    blocks_stride,
    columns_stride,
    heads,
    group,
    query_blocks,
    n_q,
    n_k,
    rows,
    scale_log2,
    HEAD: gl.constexpr,
    STAGES: gl.constexpr,
    Q_SLOTS: gl.constexpr,
    COLUMNS: gl.constexpr,
    SINKS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):
    """Attention of every row of the order; arguments as ``hopper_backend.launch`` gives them."""
    PANELS: gl.constexpr = HEAD // 64
    UPPER: gl.constexpr = 0
    LOWER: gl.constexpr = 1
    dtype: gl.constexpr = q_desc.dtype
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    box: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=4)
    q_tiles = gl.allocate_shared_memory(dtype, [2 * Q_SLOTS, 64, HEAD], tile)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, 128, HEAD], tile)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 128, HEAD], tile)
    q_ring = _ring(q_tiles, q_tiles._reinterpret(dtype, [2 * Q_SLOTS * PANELS, 1, 1, 64, 64], box), Q_SLOTS)
    k_ring = _ring(k_tiles, k_tiles._reinterpret(dtype, [STAGES * PANELS * 2, 1, 1, 64, 64], box), STAGES)
    v_ring = _ring(v_tiles, v_tiles._reinterpret(dtype, [STAGES * PANELS * 2, 1, 1, 64, 64], box), STAGES)
    tickets = gl.allocate_shared_memory(gl.int32, [Q_SLOTS * 3, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    fence_async_shared()
    lists = (
        order_ptr,
        blocks_ptr,
        block_count_ptr,
        columns_ptr,
        column_count_ptr,
        dense_rows_ptr,
        blocks_stride,
        columns_stride,
    )
    sizes = (heads, group, query_blocks, n_q, n_k)
    descs = (q_desc, k_desc, v_desc)
    k_place = (k_ptr, k_stride_b, k_stride_h, k_stride_n)
    v_place = (v_ptr, v_stride_b, v_stride_h, v_stride_n)
    # fmt: off
    gl.warp_specialize(
        [
            (_consume, (q_ring, k_ring, v_ring, tickets, out_ptr, lse_ptr, sinks_ptr, sizes, scale_log2,
                        HEAD, STAGES, Q_SLOTS, COLUMNS, SINKS, UPPER)),
            (_consume, (q_ring, k_ring, v_ring, tickets, out_ptr, lse_ptr, sinks_ptr, sizes, scale_log2,
                        HEAD, STAGES, Q_SLOTS, COLUMNS, SINKS, LOWER)),
            (_produce, (descs, k_place, v_place, q_ring, k_ring, v_ring, tickets, counter_ptr, lists, sizes, rows,
                        HEAD, STAGES, Q_SLOTS, COLUMNS)),
        ],
        [4, 4],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
    # fmt: on
