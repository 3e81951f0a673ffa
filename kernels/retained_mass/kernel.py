"""The device code of scoring: masses of every budget on the probe rows, tiles and columns that it costs.

Level maps as in ``level_maps``.
Whether a level reads a block is a float here, clamped to [0, 1]: that is one saturated addition, and its product with
a mass one more instruction of the same pipe, where a comparison and a selection would keep a slower one busy.

Single columns get their masses from a kernel of their own (65 us on an H200 at 131,072 tokens and 32 heads): beside
the gather of levels every tile waited at thirteen barriers. No kernel knows a family by its number: level maps and
counts come as tuples, with what tells them apart as constants.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import (
    LOG2E,
    base2_logits,
    blocks_of,
    of_head,
    places_of,
    pointer_from,
)


@triton.jit
def by_position_kernel(position_ptr, order_ptr, count, ROWS: tl.constexpr):
    """ROWS probe rows of a unit: their numbers go to their places in the order of positions."""
    unit = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = at < count
    positions = position_ptr + unit * count
    own = tl.load(positions + at, mask=real, other=0).to(tl.int32)
    tl.store(order_ptr + unit * count + places_of(positions, own, at, count), at, mask=real)


@triton.jit
def column_mass_kernel(
    q_ptr, k_ptr, table_ptr, row_ptr, order_ptr, lse_ptr, columns_ptr, out_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    heads, group, count, width, out_width, first_row, segment_position, scale, softcap,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr, SOFTCAP: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
    INDIRECT: tl.constexpr,
):  # fmt: skip
    """ROWS probe rows of a head, by position x CHUNK of its columns: softmax mass of each column, causal or not.

    Tiles of which no row sees a column are left out.
    """
    if INDIRECT:
        q_ptr = pointer_from(table_ptr, 0, q_ptr)
        k_ptr = pointer_from(table_ptr, 1, k_ptr)
    unit = tl.program_id(1).to(tl.int64)
    batch, head = unit // heads, unit % heads
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = place < count
    at = tl.load(order_ptr + unit * count + place, mask=real, other=0)
    row = tl.load(row_ptr + unit * count + at)
    lse = tl.load(lse_ptr + unit * count + at) * LOG2E
    reach = tl.max(tl.where(real, row, 0), 0) + segment_position
    d = tl.arange(0, HEAD_PADDED)
    q = tl.load(
        q_ptr
        + batch * stride_qb
        + head * stride_qh
        + (row + first_row)[:, None] * stride_qn
        + d[None, :] * stride_qd,
        mask=real[:, None] & (d < HEAD)[None, :],
        other=0.0,
    )
    k_head = k_ptr + batch * stride_kb + (head // group) * stride_kh + d[:, None] * stride_kd

    # Columns ascend, so those that the rows see are the first ones.
    begin = tl.program_id(2) * CHUNK
    columns = columns_ptr + unit * width
    part = begin + tl.arange(0, CHUNK)
    all_keys = tl.load(columns + part, mask=part < width, other=0) >> 3
    end = begin + tl.sum(((part < width) & (all_keys <= reach)).to(tl.int32), 0)
    slot = tl.arange(0, COLUMNS)
    out = out_ptr + (unit * count + at)[:, None] * out_width + slot[None, :]
    for start in range(begin, end, COLUMNS):
        key = tl.load(columns + start + slot, mask=start + slot < end, other=0) >> 3
        keys = tl.load(
            k_head + key.to(tl.int64)[None, :] * stride_kn,
            mask=(d < HEAD)[:, None] & (start + slot < end)[None, :],
            other=0.0,
        )
        logits = base2_logits(q, keys, scale, softcap, SOFTCAP, UPCAST, PRECISION)
        mass = tl.exp2(logits - lse[:, None])
        tl.store(out + start, mass, mask=real[:, None])


@triton.jit
def add_levels(totals, mass, levels, n, blocks, LEVELS: tl.constexpr):
    """Add the mass [N] of blocks n, of ``blocks`` that count, to the totals ([N] each) of the levels that read them."""
    level_of_block = tl.load(levels + n, mask=n < blocks, other=255).to(tl.float32)
    added = ()
    for level in tl.static_range(LEVELS):
        reads = tl.clamp(level + 1.0 - level_of_block, 0.0, 1.0)
        # A kernel can not unpack.
        added = added + (totals[level] + mass * reads,)  # type: ignore[assignment]  # noqa: RUF005
    return added


@triton.jit
def add_singles(totals, mass, column, level_of_block, LEVELS: tl.constexpr):
    """Add the mass [N] of columns to the levels that hold them and are below the one that reads their block."""
    held_from = (column & 7).to(tl.float32)
    added = ()
    for level in tl.static_range(LEVELS):
        single = tl.clamp(level + 1.0 - held_from, 0.0, 1.0) * tl.clamp(level_of_block - level, 0.0, 1.0)
        added = added + (totals[level] + mass * single,)  # type: ignore[assignment]  # noqa: RUF005
    return added


@triton.jit
def no_mass(N: tl.constexpr, LEVELS: tl.constexpr):
    """Totals [N] of each level to begin with."""
    return (tl.zeros([N], dtype=tl.float32),) * LEVELS


@triton.jit
def store_levels(out, totals, sink_mass, LEVELS: tl.constexpr):
    """Masses with the attention sink's, in [0, 1]."""
    for level in tl.static_range(LEVELS):
        tl.store(out + level, tl.clamp(tl.sum(totals[level], 0) + sink_mass, 0.0, 1.0))


@triton.jit
def cover_rows_kernel(
    mass_ptr, sink_mass_ptr, row_ptr, maps, columns_ptr, column_mass_ptr, first_key_ptr, out_ptr,
    heads, count, width, mass_width, query_blocks, key_blocks, position, exact_end, pooled_end, boundary,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STRIDES: tl.constexpr, DEPTHS: tl.constexpr,
    COLUMNS_OF: tl.constexpr, CANDIDATES: tl.constexpr, POOLED: tl.constexpr, PIECES: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """One probe row: its mass under every level of one family. The programs of a row follow each other."""
    family = tl.program_id(0) % len(maps)
    probe_row = (tl.program_id(0) // len(maps)).to(tl.int64)
    unit = probe_row // count
    row = tl.load(row_ptr + probe_row)
    blocks = ((row + position) // BLOCK_K + 1).to(tl.int32)
    mass_row = mass_ptr + probe_row * key_blocks
    out = out_ptr + probe_row * CANDIDATES
    step = tl.arange(0, N)
    for known in tl.static_range(len(maps)):
        if family == known:
            levels = of_head(maps, STRIDES, known, unit // heads, unit % heads, query_blocks * key_blocks)
            levels += row // BLOCK_Q * key_blocks
            totals = no_mass(N, DEPTHS[known])
            for start in range(0, blocks, N):
                n = start + step
                mass = tl.load(mass_row + n, mask=n < blocks, other=0.0)
                totals = add_levels(totals, mass, levels, n, blocks, DEPTHS[known])
            if known == COLUMNS_OF:
                # Columns ascend: those that the row sees lie in the first pieces.
                columns = columns_ptr + unit * width
                piece = tl.arange(0, PIECES) * N
                begins = tl.load(columns + piece, mask=piece < width, other=0x7FFFFFFF)
                # Keys are compared as they are kept, times 8.
                end = (row + position + 1).to(tl.int32) * 8
                lowest = tl.load(first_key_ptr + unit // heads).to(tl.int32) * 8
                pieces = tl.sum((begins < end).to(tl.int32), 0)
                at = (probe_row % count).to(tl.int32)
                # Routing and boundary rows of a pooled probe know blocks only: a column has its block's mean.
                by_block = POOLED & (((at >= exact_end) & (at < pooled_end)) | (at >= boundary))
                single = column_mass_ptr + probe_row * mass_width
                for start in range(0, tl.minimum(pieces * N, width), N):
                    column = tl.load(columns + start + step, mask=start + step < width, other=0x7FFFFFFF)
                    seen = (column < end) & (column >= lowest)
                    home = column.to(tl.uint32) // (8 * BLOCK_K)
                    if by_block:
                        mass = tl.load(mass_row + home, mask=seen, other=0.0) / BLOCK_K
                    else:
                        mass = tl.load(single + start + step, mask=seen, other=0.0)
                    level_of_block = tl.load(levels + home, mask=seen, other=0).to(tl.float32)
                    totals = add_singles(totals, mass, column, level_of_block, DEPTHS[known])
            store_levels(out, totals, tl.load(sink_mass_ptr + probe_row), DEPTHS[known])
        out += DEPTHS[known]
    if family == 0:
        tl.store(out, 1.0)  # dense


@triton.jit
def sum_of(base, count, STRIDE: tl.constexpr, N: tl.constexpr):
    """Sum of count integers that lie STRIDE apart."""
    found = tl.zeros([N], dtype=tl.int32)
    for start in range(0, count, N):
        at = start + tl.arange(0, N)
        found += tl.load(base + at * STRIDE, mask=at < count, other=0)
    return tl.sum(found, 0)


@triton.jit(do_not_specialize=["body_blocks"])
def totals_kernel(
    table_ptr, counts, columns_ptr, first_key_ptr, out_ptr,
    heads, width, query_blocks, body_blocks, key_blocks, position, segment_keys,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STRIDES: tl.constexpr, DEPTHS: tl.constexpr,
    BY_ROW: tl.constexpr, COLUMNS_OF: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One candidate of a unit: tiles, single columns and density over the body's query blocks.

    table int32 [C, 2]: family, -1 dense, and level.
    """
    unit = tl.program_id(1).to(tl.int64)
    candidate = tl.program_id(0)
    family = tl.load(table_ptr + candidate * 2)
    level = tl.load(table_ptr + candidate * 2 + 1)
    batch = unit // heads
    step = tl.arange(0, N)
    total = tl.zeros([N], dtype=tl.int32)
    for start in range(0, body_blocks, N):
        m = start + step
        _, last, sink = blocks_of(m, first_key_ptr, batch, position, segment_keys, BLOCK_Q, BLOCK_K)
        total += tl.where((m < body_blocks) & (last >= sink), last - sink + 1, 0)
    total = tl.sum(total, 0)
    tiles = total
    singles = tl.zeros([N], dtype=tl.int32)
    for known in tl.static_range(len(counts)):
        if family == known:
            if BY_ROW[known]:
                size = query_blocks * DEPTHS[known]
                own = of_head(counts, STRIDES, known, batch, unit % heads, size) + level
                tiles = sum_of(own, body_blocks, DEPTHS[known], N)
            else:
                size = key_blocks * DEPTHS[known]
                own = of_head(counts, STRIDES, known, batch, unit % heads, size) + level * key_blocks
                tiles = sum_of(own, key_blocks, 1, N)
            if known == COLUMNS_OF:
                # A column is read by the query blocks that see its KV block and do not read it.
                lowest = (tl.load(first_key_ptr + batch) // BLOCK_K).to(tl.int32)
                for start in range(0, width, N):
                    held = start + step < width
                    column = tl.load(columns_ptr + unit * width + start + step, mask=held, other=0)
                    block = (column >> 3) // BLOCK_K
                    held &= ((column & 7) <= level) & (block >= lowest)
                    first = tl.maximum((block * BLOCK_K - position) // BLOCK_Q, 0)
                    unread = tl.maximum(body_blocks - first, 0) - tl.load(own + block, mask=held, other=0)
                    singles += tl.where(held, unread, 0)
    columns = tl.sum(singles, 0)
    candidates = tl.num_programs(0)
    units = tl.num_programs(1)
    out = out_ptr + unit * candidates + candidate
    area = tl.maximum(total, 1).to(tl.float32)
    density = (tiles.to(tl.float32) + columns.to(tl.float32) / BLOCK_K) / area
    tl.store(out, tiles.to(tl.float32))
    tl.store(out + units * candidates, columns.to(tl.float32))
    tl.store(out + 2 * units * candidates, tl.minimum(density, 1.0))
