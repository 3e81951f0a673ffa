"""Attention on Hopper: two consumer warpgroups of 64 query rows each, fed by a producer warpgroup.

The grid is one program per multiprocessor; each draws the next row of the plan from a counter in memory. The producer
copies a row's Q, then pairs of KV blocks (TMA), then 128 single columns at a time (16-byte asynchronous copies) into
rings of shared memory that mbarriers guard; it starts on the next row before the consumers finish this one. A consumer
issues Q K^T of tile t + 1 and P V of tile t together and computes the softmax of t + 1 while P V runs
(FlashAttention-3's order).

The kernel reads the diagonal blocks by position, not from the list, and clamps every listed key below them: it is
causal whatever the plan says. Base-2 online softmax as in ``triton_kernel``.

``tiles`` and ``boxes`` are two views of the same shared memory: a tile is what the matrix unit reads, a box is what one
copy fills.

A barrier wait stands between the softmax and the wait for P V, because the assembler otherwise moves the softmax
behind it. The output leaves by TMA from the shared memory where the queries lay: a thread of the product holds 16 of
a sector's 32 bytes, so direct stores moved each sector twice; this gained 2 to 3 % at a density of 5 %.

How shared memory changes hands: the producer writes, waits for its own warps and arrives at the slot's barrier
(release); the consumers wait for that phase (acquire) before they read, and arrive at the slot's other barrier only
after a matrix product that all four of their warps have issued. racecheck of compute-sanitizer reports these hand-overs
even where they are correct (code at commit b6dfeee2), so neither its report nor its silence proves anything; memcheck
finds nothing.

A row of 128 queries costs the time of six KV blocks beside its own: half tiles that are masked, queries and output, and
a first and a last product that nothing runs beside (data/results/GPU.md; what was tried against it stands in
data/results/notes/hopper_kernel.md).
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

# Long argument lists read better in full lines than with one argument to a line.
# fmt: off

# The barrier's name changed after Triton 3.6.
_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


@gluon.jit
def _counts(row, block_count_ptr, column_count_ptr, dense_rows_ptr, COLUMNS: gl.constexpr):
    """How many blocks (-1 for a dense row) and how many columns a row lists."""
    dense = gl.load(dense_rows_ptr + row, mask=row >= 0, other=0) != 0
    blocks = gl.where(dense, -1, gl.load(block_count_ptr + row, mask=row >= 0, other=0))
    columns = 0
    if COLUMNS:
        columns = gl.where(dense, 0, gl.load(column_count_ptr + row, mask=row >= 0, other=0))
    return blocks, columns


@gluon.jit
def _publish(tickets, slot, row, blocks, columns, layout: gl.constexpr):
    """Write down, for the consumers, which row the Q slot holds."""
    tickets.index(slot * 3).store(gl.full([1], 0, gl.int32, layout) + row)
    tickets.index(slot * 3 + 1).store(gl.full([1], 0, gl.int32, layout) + blocks)
    tickets.index(slot * 3 + 2).store(gl.full([1], 0, gl.int32, layout) + columns)
    _barrier()


@gluon.jit
def _take(tickets, slot, layout: gl.constexpr):
    """Read what ``_publish`` wrote of a Q slot: row, blocks and columns. Row -1 ends the work."""
    row = gl.max(tickets.index(slot * 3).load(layout), 0)
    blocks = gl.max(tickets.index(slot * 3 + 1).load(layout), 0)
    columns = gl.max(tickets.index(slot * 3 + 2).load(layout), 0)
    return row, blocks, columns


@gluon.jit
def _shape(row, blocks, heads, query_blocks, n_q, n_k):
    """Query block, head, batch, first position, first diagonal block, listed blocks before it, tiles of the tail.

    Blocks are read in pairs, one tile a pair. The tail, computed first, is the diagonal blocks and, where the number of
    blocks before the diagonal is odd, the last of those.
    """
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
def _copy_blocks(desc, boxes, full, empty, it, batch, kv_head, block0, block1, HEAD: gl.constexpr,
    STAGES: gl.constexpr):
    """Two KV blocks of 64 keys into one stage of 128, in panels of 64 elements of the head."""
    PANELS: gl.constexpr = HEAD // 64
    slot = it % STAGES
    mbarrier.wait(empty.index(slot), ((it // STAGES) & 1) ^ 1)
    mbarrier.expect(full.index(slot), 128 * HEAD * 2)
    for panel in gl.static_range(PANELS):
        box = (slot * PANELS + panel) * 2
        tma.async_copy_global_to_shared(desc, [batch, kv_head, block0 * 64, panel * 64], full.index(slot),
            boxes.index(box))
        tma.async_copy_global_to_shared(desc, [batch, kv_head, block1 * 64, panel * 64], full.index(slot),
            boxes.index(box + 1))


@gluon.jit
def _copy_columns(head_ptr, stride_n, boxes, empty, it, keys0, keys1, layout: gl.constexpr,
    HEAD: gl.constexpr, STAGES: gl.constexpr):
    """128 single keys into one stage, by asynchronous copies that the caller waits for."""
    PANELS: gl.constexpr = HEAD // 64
    slot = it % STAGES
    mbarrier.wait(empty.index(slot), ((it // STAGES) & 1) ^ 1)
    rows0 = head_ptr + gl.expand_dims(keys0.to(gl.int64) * stride_n, 1)
    rows1 = head_ptr + gl.expand_dims(keys1.to(gl.int64) * stride_n, 1)
    for panel in gl.static_range(PANELS):
        d = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, layout)) + panel * 64, 0)
        box = (slot * PANELS + panel) * 2
        async_copy.async_copy_global_to_shared(boxes.index(box).reshape([64, 64]), rows0 + d)
        async_copy.async_copy_global_to_shared(boxes.index(box + 1).reshape([64, 64]), rows1 + d)
    async_copy.commit_group()


@gluon.jit
def _produce(q_desc, k_desc, v_desc, k_ptr, v_ptr, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh,
    stride_vn, q_boxes, k_boxes, v_boxes, tickets, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    counter_ptr, order_ptr, blocks_ptr, block_count_ptr, columns_ptr, column_count_ptr, dense_rows_ptr,
    blocks_stride, columns_stride, heads, group, query_blocks, n_q, n_k, rows, HEAD: gl.constexpr,
    STAGES: gl.constexpr, Q_SLOTS: gl.constexpr, COLUMNS: gl.constexpr):
    PANELS: gl.constexpr = HEAD // 64
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    ticket_layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    it = 0
    step = 0
    row = gl.load(order_ptr + gl.program_id(0))
    blocks, columns = _counts(row, block_count_ptr, column_count_ptr, dense_rows_ptr, COLUMNS)
    place = gl.num_programs(0) + gl.atomic_add(counter_ptr, 1)
    next_row = gl.load(order_ptr + place, mask=place < rows, other=-1)
    while row >= 0:
        # Load what the next row needs while this row's tiles are copied.
        next_blocks, next_columns = _counts(next_row, block_count_ptr, column_count_ptr, dense_rows_ptr,
            COLUMNS)
        query_block, head, batch, first, diagonal, before, tail = _shape(row, blocks, heads, query_blocks,
            n_q, n_k)
        kv_head = head // group
        block_list = blocks_ptr + row.to(gl.int64) * blocks_stride
        listed = blocks >= 0
        odd = before % 2
        pairs = before // 2
        odd_block = gl.load(block_list + before - 1, mask=listed & (odd == 1), other=0)
        block0 = gl.load(block_list, mask=listed & (pairs > 0), other=0)
        block1 = gl.load(block_list + 1, mask=listed & (pairs > 0), other=0)

        slot = step % Q_SLOTS
        mbarrier.wait(q_empty.index(slot), ((step // Q_SLOTS) & 1) ^ 1)
        _publish(tickets, slot, row, blocks, columns, ticket_layout)
        mbarrier.expect(q_full.index(slot), 128 * HEAD * 2)
        for panel in gl.static_range(PANELS):
            for half in gl.static_range(2):
                tma.async_copy_global_to_shared(q_desc, [batch, head, query_block * 128 + half * 64,
                    panel * 64], q_full.index(slot), q_boxes.index((slot * 2 + half) * PANELS + panel))

        for t in range(tail):
            tail0 = gl.where((t == 0) & (odd == 1), gl.where(listed, gl.minimum(odd_block, diagonal - 1),
                before - 1), diagonal - odd + 2 * t)
            tail1 = diagonal - odd + 2 * t + 1
            _copy_blocks(k_desc, k_boxes, k_full, k_empty, it, batch, kv_head, tail0, tail1, HEAD, STAGES)
            _copy_blocks(v_desc, v_boxes, v_full, v_empty, it, batch, kv_head, tail0, tail1, HEAD, STAGES)
            it += 1
        for t in range(pairs):
            now0 = gl.where(listed, gl.minimum(block0, diagonal - 1), 2 * t)
            now1 = gl.where(listed, gl.minimum(block1, diagonal - 1), 2 * t + 1)
            more = listed & (t + 1 < pairs)
            block0 = gl.load(block_list + 2 * t + 2, mask=more, other=0)
            block1 = gl.load(block_list + 2 * t + 3, mask=more, other=0)
            _copy_blocks(k_desc, k_boxes, k_full, k_empty, it, batch, kv_head, now0, now1, HEAD, STAGES)
            _copy_blocks(v_desc, v_boxes, v_full, v_empty, it, batch, kv_head, now0, now1, HEAD, STAGES)
            it += 1
        if COLUMNS:
            column_list = columns_ptr + row.to(gl.int64) * columns_stride
            k_head = k_ptr + batch.to(gl.int64) * stride_kb + kv_head.to(gl.int64) * stride_kh
            v_head = v_ptr + batch.to(gl.int64) * stride_vb + kv_head.to(gl.int64) * stride_vh
            lane = gl.arange(0, 64, gl.SliceLayout(1, layout))
            keys0 = gl.load(column_list + lane, mask=lane < columns, other=0)
            keys1 = gl.load(column_list + 64 + lane, mask=64 + lane < columns, other=0)
            for t in range(0, columns, 128):
                now_keys0 = gl.minimum(keys0, first)
                now_keys1 = gl.minimum(keys1, first)
                keys0 = gl.load(column_list + t + 128 + lane, mask=t + 128 + lane < columns, other=0)
                keys1 = gl.load(column_list + t + 192 + lane, mask=t + 192 + lane < columns, other=0)
                _copy_columns(k_head, stride_kn, k_boxes, k_empty, it, now_keys0, now_keys1, layout, HEAD,
                    STAGES)
                _copy_columns(v_head, stride_vn, v_boxes, v_empty, it, now_keys0, now_keys1, layout, HEAD,
                    STAGES)
                # The writer's fence makes ordinary stores visible to the matrix unit.
                async_copy.wait_group(1)
                fence_async_shared()
                mbarrier.arrive(k_full.index(it % STAGES), count=1)
                async_copy.wait_group(0)
                fence_async_shared()
                mbarrier.arrive(v_full.index(it % STAGES), count=1)
                it += 1
        place = gl.num_programs(0) + gl.atomic_add(counter_ptr, 1)
        row = next_row
        blocks = next_blocks
        columns = next_columns
        next_row = gl.load(order_ptr + place, mask=place < rows, other=-1)
        step += 1
    slot = step % Q_SLOTS
    mbarrier.wait(q_empty.index(slot), ((step // Q_SLOTS) & 1) ^ 1)
    _publish(tickets, slot, row, blocks, columns, ticket_layout)
    mbarrier.arrive(q_full.index(slot), count=1)


@gluon.jit
def _softmax(s, top, total, limit, scale_log2, MASKED: gl.constexpr, S: gl.constexpr):
    """Weights of one tile, the factor for what was summed before, the new maximum and the new sum; base 2."""
    if MASKED:
        column = gl.arange(0, 128, gl.SliceLayout(0, S))
        s = gl.where(gl.expand_dims(column, 0) <= gl.expand_dims(limit, 1), s, -float("inf"))
    new_top = gl.maximum(top, gl.max(s, 1) * scale_log2)
    # A masked row that has met no key yet keeps -inf; -inf - -inf would be NaN.
    shift = gl.where(new_top == -float("inf"), 0.0, new_top) if MASKED else new_top
    weights = gl.exp2(s * scale_log2 - gl.expand_dims(shift, 1))
    decay = gl.exp2(top - shift)
    return weights, decay, new_top, total * decay + gl.sum(weights, 1)


@gluon.jit
def _fold(q, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, acc, p, top, total, limit, scale_log2, it,
    MASKED: gl.constexpr, HEAD: gl.constexpr, STAGES: gl.constexpr):
    """Compute Q K^T and softmax of tile ``it`` while P V of the tile before it runs."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    slot = it % STAGES
    previous = (it - 1) % STAGES
    mbarrier.wait(k_full.index(slot), (it // STAGES) & 1)
    zero = gl.zeros([64, 128], gl.float32, S)
    s_token = warpgroup_mma(q, k_tiles.index(slot).permute((1, 0)), zero, use_acc=False, is_async=True)
    acc_token = warpgroup_mma(p, v_tiles.index(previous), acc, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s_token])
    mbarrier.arrive(k_empty.index(slot), count=1)
    weights, decay, top, total = _softmax(s, top, total, limit, scale_log2, MASKED, S)
    next_p = gl.convert_layout(weights, gl.DotOperandLayout(0, A, 2)).to(k_tiles.dtype)
    # This wait ends a basic block: without one, ptxas moves the softmax behind the wait for P V.
    mbarrier.wait(v_full.index(slot), (it // STAGES) & 1)
    acc, p, next_p = warpgroup_mma_wait(0, deps=[acc_token, p, next_p])
    mbarrier.arrive(v_empty.index(previous), count=1)
    acc = acc * gl.expand_dims(gl.convert_layout(decay, gl.SliceLayout(1, A)), 1)
    return acc, next_p, top, total


@gluon.jit
def _consume(q_tiles, k_tiles, v_tiles, tickets, q_full, q_empty, k_full, k_empty, v_full, v_empty, q_boxes,
    out_desc, lse_ptr, sinks_ptr, heads, query_blocks, n_q, n_k, scale_log2, HEAD: gl.constexpr,
    STAGES: gl.constexpr, Q_SLOTS: gl.constexpr, COLUMNS: gl.constexpr, SINKS: gl.constexpr,
    HALF: gl.constexpr):
    """A consumer: queries 64 HALF to 64 HALF + 63 of every query block."""
    PANELS: gl.constexpr = HEAD // 64
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    s_rows: gl.constexpr = gl.SliceLayout(1, S)
    a_rows: gl.constexpr = gl.SliceLayout(1, A)
    dtype: gl.constexpr = k_tiles.dtype
    ticket_layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    it = 0
    step = 0
    mbarrier.wait(q_full.index(0), 0)
    row, blocks, columns = _take(tickets, 0, ticket_layout)
    while row >= 0:
        query_block, head, batch, first, diagonal, before, tail = _shape(row, blocks, heads, query_blocks,
            n_q, n_k)
        total = gl.zeros([64], gl.float32, s_rows)
        if SINKS:
            top = total + gl.load(sinks_ptr + head) * 1.4426950408889634
            total = total + 1.0
        else:
            top = total - float("inf")
        acc = gl.zeros([64, HEAD], gl.float32, A)
        # The mask takes the tail's keys for consecutive: its odd block may lie further back, wholly before the
        # diagonal. An empty row sees no key.
        limit = first - (diagonal - before % 2) * 64 + HALF * 64 + gl.arange(0, 64, s_rows)
        limit = gl.where(blocks == 0, -1, limit)

        q_slot = step % Q_SLOTS
        q = q_tiles.index(q_slot * 2 + HALF)
        slot = it % STAGES
        mbarrier.wait(k_full.index(slot), (it // STAGES) & 1)
        zero = gl.zeros([64, 128], gl.float32, S)
        s_token = warpgroup_mma(q, k_tiles.index(slot).permute((1, 0)), zero, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=[s_token])
        mbarrier.arrive(k_empty.index(slot), count=1)
        weights, _decay, top, total = _softmax(s, top, total, limit, scale_log2, True, S)
        p = gl.convert_layout(weights, gl.DotOperandLayout(0, A, 2)).to(dtype)
        if step > 0:
            # The previous row's output leaves from its Q slot; only the thread that sent it can wait for that.
            tma.store_wait(0)
            _barrier()
            mbarrier.arrive(q_empty.index((step - 1) % Q_SLOTS), count=1)
        mbarrier.wait(v_full.index(slot), (it // STAGES) & 1)
        it += 1
        for t in range(1, tail):
            acc, p, top, total = _fold(q, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, acc, p, top,
                total, limit - t * 128, scale_log2, it, True, HEAD, STAGES)
            it += 1
        for _tile in range(before // 2 + columns // 128):
            acc, p, top, total = _fold(q, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, acc, p, top,
                total, limit, scale_log2, it, False, HEAD, STAGES)
            it += 1
        # Two nested conditions: the compiler knows the first, the second depends on the row.
        if COLUMNS:  # noqa: SIM102
            if columns % 128 > 0:
                limit = gl.full([64], 0, gl.int32, s_rows) + columns % 128 - 1
                acc, p, top, total = _fold(q, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, acc, p, top,
                    total, limit, scale_log2, it, True, HEAD, STAGES)
                it += 1
        acc = warpgroup_mma(p, v_tiles.index((it - 1) % STAGES), acc)
        mbarrier.arrive(v_empty.index((it - 1) % STAGES), count=1)

        empty = total == 0.0
        safe = gl.where(empty, 1.0, total)
        lse = gl.where(empty, -float("inf"), (top + gl.log2(safe)) * 0.6931471805599453)
        query = query_block * 128 + HALF * 64
        lse_row = query + gl.arange(0, 64, s_rows)
        # lse [B, Hq, n_q] is contiguous.
        gl.store(lse_ptr + (batch * heads + head).to(gl.int64) * n_q + lse_row, lse, mask=lse_row < n_q)
        acc = acc * gl.expand_dims(gl.convert_layout(1.0 / safe, a_rows), 1)
        q.store(acc.to(dtype))
        fence_async_shared()
        _barrier()
        for panel in gl.static_range(PANELS):
            tma.async_copy_shared_to_global(out_desc, [batch, head, query, panel * 64],
                q_boxes.index((q_slot * 2 + HALF) * PANELS + panel))
        step += 1
        mbarrier.wait(q_full.index(step % Q_SLOTS), (step // Q_SLOTS) & 1)
        row, blocks, columns = _take(tickets, step % Q_SLOTS, ticket_layout)
    tma.store_wait(0)


@gluon.jit
def hopper_attention_kernel(q_desc, k_desc, v_desc, k_ptr, v_ptr, stride_kb, stride_kh, stride_kn, stride_vb,
    stride_vh, stride_vn, out_desc, lse_ptr, counter_ptr, order_ptr, blocks_ptr, block_count_ptr, columns_ptr,
    column_count_ptr, dense_rows_ptr, sinks_ptr, blocks_stride, columns_stride, heads, group, query_blocks,
    n_q, n_k, rows, scale_log2, HEAD: gl.constexpr, STAGES: gl.constexpr, Q_SLOTS: gl.constexpr,
    COLUMNS: gl.constexpr, SINKS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr):
    """Attention of the rows in ``order``; shapes as in ``Operands`` and ``RowPlan``."""
    PANELS: gl.constexpr = HEAD // 64
    UPPER: gl.constexpr = 0
    LOWER: gl.constexpr = 1
    dtype: gl.constexpr = q_desc.dtype
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    box: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=4)
    bars: gl.constexpr = mbarrier.MBarrierLayout()
    q_tiles = gl.allocate_shared_memory(dtype, [2 * Q_SLOTS, 64, HEAD], tile)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, 128, HEAD], tile)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 128, HEAD], tile)
    # The same bytes as boxes of 64 keys and 64 elements: what one copy fills.
    q_boxes = q_tiles._reinterpret(dtype, [2 * Q_SLOTS * PANELS, 1, 1, 64, 64], box)
    k_boxes = k_tiles._reinterpret(dtype, [STAGES * PANELS * 2, 1, 1, 64, 64], box)
    v_boxes = v_tiles._reinterpret(dtype, [STAGES * PANELS * 2, 1, 1, 64, 64], box)
    tickets = gl.allocate_shared_memory(gl.int32, [Q_SLOTS * 3, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [Q_SLOTS, 1], bars)
    q_empty = gl.allocate_shared_memory(gl.int64, [Q_SLOTS, 1], bars)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
    for i in gl.static_range(Q_SLOTS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (q_tiles, k_tiles, v_tiles, tickets, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                q_boxes, out_desc, lse_ptr, sinks_ptr, heads, query_blocks, n_q, n_k, scale_log2, HEAD, STAGES,
                Q_SLOTS, COLUMNS, SINKS, UPPER)),
            (_consume, (q_tiles, k_tiles, v_tiles, tickets, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                q_boxes, out_desc, lse_ptr, sinks_ptr, heads, query_blocks, n_q, n_k, scale_log2, HEAD, STAGES,
                Q_SLOTS, COLUMNS, SINKS, LOWER)),
            (_produce, (q_desc, k_desc, v_desc, k_ptr, v_ptr, stride_kb, stride_kh, stride_kn, stride_vb,
                stride_vh, stride_vn, q_boxes, k_boxes, v_boxes, tickets, q_full, q_empty, k_full, k_empty,
                v_full, v_empty, counter_ptr, order_ptr, blocks_ptr, block_count_ptr, columns_ptr,
                column_count_ptr, dense_rows_ptr, blocks_stride, columns_stride, heads, group, query_blocks,
                n_q, n_k, rows, HEAD, STAGES, Q_SLOTS, COLUMNS)),
        ],
        [4, 4],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
