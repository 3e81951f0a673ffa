"""Attention on any GPU that Triton supports: one program computes one query block of one head.

Online softmax in base 2 (Milakov and Gimelshein 2018; FlashAttention-2): logits are multiplied by log2(e), and a
sink counts as a first key with value zero. Only tiles that need a mask get one: those at the front of an ascending
list, which padding or the window may cut, and the diagonal, at its end. All addresses are int64.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load_tile(
    desc, head_ptr, stride_n, batch, kv_head, key_first, n_k, slot, d_place, d_real,
    BOUNDED: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Keys or values [BLOCK_K, D] from position ``key_first``; zeros past n_k and past the head size."""
    if DESCRIPTOR:
        return desc.load([batch, kv_head, key_first, 0]).reshape([slot.shape[0], d_place.shape[0]])
    key = (key_first + slot).to(tl.int64)
    inside = (key >= 0)[:, None] & d_real[None, :]
    if BOUNDED:
        inside = inside & (key < n_k)[:, None]
    return tl.load(head_ptr + key[:, None] * stride_n + d_place[None, :], mask=inside, other=0.0)


@triton.jit
def _products(
    q, keys, scale_log2, softcap_log2, SOFTCAP: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr
):
    """q . k [BLOCK_Q, BLOCK_K] of q [BLOCK_Q, D] and keys [BLOCK_K, D]; with a soft cap, base-2 logits."""
    if UPCAST:
        keys = keys.to(tl.float32)
    products = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
    if SOFTCAP:
        # Here the scale carries 2 / softcap and no log2(e): tanh(x / 2) = 2 sigmoid(x) - 1.
        products = softcap_log2 * (2.0 * tl.sigmoid(products * scale_log2) - 1.0)
    return products


@triton.jit
def _accumulate(
    logits, values, acc, top, total, scale_log2,
    MASKED: tl.constexpr, SOFTCAP: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Fold one tile into the running output [BLOCK_Q, D], maximum and sum [BLOCK_Q].

    Without a soft cap the exponent's multiply-add applies the scale, which must be positive for the maximum.
    """
    if SOFTCAP:
        scale_log2 = 1.0
    new_top = tl.maximum(top, tl.max(logits, 1) * scale_log2)
    # A masked row that has met no key yet keeps -inf; -inf - -inf would be NaN.
    shift = tl.where(new_top == -float("inf"), 0.0, new_top) if MASKED else new_top
    weights = tl.exp2(logits * scale_log2 - shift[:, None])
    decay = tl.exp2(top - shift)
    total = total * decay + tl.sum(weights, 1)
    acc = acc * decay[:, None]
    if UPCAST:
        acc += tl.dot(weights, values.to(tl.float32), input_precision=PRECISION)
    else:
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=PRECISION)
    return acc, new_top, total


@triton.jit
def _fold_blocks(
    begin, end, acc, top, total, q, query, k_desc, v_desc, k_head, v_head, stride_kn, stride_vn,
    k_place, v_place, d_real, slot, batch, kv_head, block_list, dense, range_start, diagonal, lowest, n_k,
    window, scale_log2, softcap_log2,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Fold list entries ``begin`` to ``end``; where no mask is applied, blocks are clamped below the diagonal."""
    following = tl.load(block_list + begin, mask=(dense == 0) & (begin < end), other=0)
    for i in range(begin, end):
        block = tl.where(dense, range_start + i, following)
        # One tile ahead: a tile's address must not wait for its list entry.
        following = tl.load(block_list + i + 1, mask=(dense == 0) & (i + 1 < end), other=0)
        if not MASKED:
            block = tl.minimum(block, diagonal - 1)
        key_first = block * slot.shape[0]
        keys = _load_tile(
            k_desc, k_head, stride_kn, batch, kv_head, key_first, n_k, slot, k_place, d_real, MASKED, DESCRIPTOR,
        )  # fmt: skip
        values = _load_tile(
            v_desc, v_head, stride_vn, batch, kv_head, key_first, n_k, slot, v_place, d_real, MASKED, DESCRIPTOR,
        )  # fmt: skip
        logits = _products(q, keys, scale_log2, softcap_log2, SOFTCAP, UPCAST, PRECISION)
        if MASKED:
            key = key_first + slot
            seen = (key[None, :] <= query[:, None]) & (key[None, :] >= lowest)
            if WINDOW:
                seen = seen & (key[None, :] > query[:, None] - window)
            logits = tl.where(seen, logits, -float("inf"))
        acc, top, total = _accumulate(
            logits, values, acc, top, total, scale_log2, MASKED, SOFTCAP, UPCAST, PRECISION
        )
    return acc, top, total


@triton.jit
def sparse_attention_kernel(
    q_ptr, k_ptr, v_ptr, k_desc, v_desc, out_ptr, lse_ptr, order_ptr, blocks_ptr, block_count_ptr,
    columns_ptr, column_count_ptr, dense_rows_ptr, key_start_ptr, sinks_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd, stride_vb,
    stride_vh, stride_vn, stride_vd,
    blocks_stride, columns_stride, heads, group, query_blocks, n_q, n_k, window, scale_log2, softcap_log2,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr,
    COLUMNS: tl.constexpr, KEY_START: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Program p computes row order[p] of the plan, an index into [B, H, M].

    With DESCRIPTOR whole blocks are loaded by TMA; columns always come through pointers.
    """
    row = tl.load(order_ptr + tl.program_id(0)).to(tl.int64)
    query_block = (row % query_blocks).to(tl.int32)
    head = ((row // query_blocks) % heads).to(tl.int32)
    batch = (row // query_blocks // heads).to(tl.int32)
    kv_head = head // group
    first = n_k - n_q + query_block * BLOCK_Q
    last = tl.minimum(first + BLOCK_Q, n_k) - 1

    lowest = 0
    if KEY_START:
        lowest = tl.load(key_start_ptr + batch)
    at = tl.arange(0, BLOCK_Q)
    slot = tl.arange(0, BLOCK_K)
    d = tl.arange(0, HEAD_PADDED)
    d_real = d < HEAD
    query = first + at
    query_row = (query_block * BLOCK_Q + at).to(tl.int64)
    query_real = query_row < n_q

    q_tile = q_ptr + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    q = tl.load(
        q_tile + query_row[:, None] * stride_qn + d[None, :] * stride_qd,
        mask=query_real[:, None] & d_real[None, :],
        other=0.0,
    )
    if UPCAST:
        q = q.to(tl.float32)
    k_head = k_ptr + batch.to(tl.int64) * stride_kb + kv_head.to(tl.int64) * stride_kh
    v_head = v_ptr + batch.to(tl.int64) * stride_vb + kv_head.to(tl.int64) * stride_vh
    k_place, v_place = d * stride_kd, d * stride_vd

    acc = tl.zeros([BLOCK_Q, HEAD_PADDED], dtype=tl.float32)
    if SINKS:
        top = tl.zeros([BLOCK_Q], dtype=tl.float32) + tl.load(sinks_ptr + head) * 1.4426950408889634
        total = tl.zeros([BLOCK_Q], dtype=tl.float32) + 1.0
    else:
        top = tl.zeros([BLOCK_Q], dtype=tl.float32) - float("inf")
        total = tl.zeros([BLOCK_Q], dtype=tl.float32)

    # A dense row is a list of every block from the first readable one to the diagonal.
    dense = tl.load(dense_rows_ptr + row) != 0
    range_start = lowest
    # From this key on every query of the row may read everything up to the diagonal.
    visible = lowest
    if WINDOW:
        range_start = tl.maximum(range_start, first - window + 1)
        visible = tl.maximum(visible, last - window + 1)
    range_start = range_start // BLOCK_K
    listed = tl.load(block_count_ptr + row)
    count = tl.where(dense, tl.maximum(last // BLOCK_K - range_start + 1, 0), listed)
    block_list = blocks_ptr + row * blocks_stride
    # An ascending list has its diagonal blocks last. The clamp below keeps any other list causal too.
    diagonal = first // BLOCK_K
    own_blocks = (first + BLOCK_Q - 1) // BLOCK_K - diagonal + 1
    unmasked_end = tl.where(diagonal > 0, tl.maximum(count - own_blocks, 0), 0)

    unmasked_start = 0
    if KEY_START or WINDOW:
        hidden = (visible + BLOCK_K - 1) // BLOCK_K
        unmasked_start = tl.where(dense, tl.minimum(tl.maximum(hidden - range_start, 0), count), 0)
        more = (dense == 0) & (count > 0)
        while more:
            place = unmasked_start + at
            entry = tl.load(block_list + place, mask=place < count, other=1 << 24)
            step = tl.sum((entry < hidden).to(tl.int32))
            unmasked_start += step
            more = step == BLOCK_Q
        unmasked_end = tl.maximum(unmasked_end, unmasked_start)

    if KEY_START or WINDOW:
        acc, top, total = _fold_blocks(
            0, unmasked_start, acc, top, total, q, query, k_desc, v_desc, k_head, v_head, stride_kn, stride_vn,
            k_place, v_place, d_real, slot, batch, kv_head, block_list, dense, range_start, diagonal, lowest, n_k,
            window, scale_log2, softcap_log2, True, WINDOW, SOFTCAP, UPCAST, PRECISION, DESCRIPTOR,
        )  # fmt: skip
    acc, top, total = _fold_blocks(
        unmasked_start, unmasked_end, acc, top, total, q, query, k_desc, v_desc, k_head, v_head, stride_kn, stride_vn,
        k_place, v_place, d_real, slot, batch, kv_head, block_list, dense, range_start, diagonal, lowest, n_k,
        window, scale_log2, softcap_log2, False, WINDOW, SOFTCAP, UPCAST, PRECISION, DESCRIPTOR,
    )  # fmt: skip
    acc, top, total = _fold_blocks(
        unmasked_end, count, acc, top, total, q, query, k_desc, v_desc, k_head, v_head, stride_kn, stride_vn,
        k_place, v_place, d_real, slot, batch, kv_head, block_list, dense, range_start, diagonal, lowest, n_k,
        window, scale_log2, softcap_log2, True, WINDOW, SOFTCAP, UPCAST, PRECISION, DESCRIPTOR,
    )  # fmt: skip

    if COLUMNS:
        column_list = columns_ptr + row * columns_stride
        column_count = tl.where(dense, 0, tl.load(column_count_ptr + row))
        following_keys = tl.load(column_list + slot, mask=slot < column_count, other=0)
        for i in range(0, column_count, BLOCK_K):
            # Columns lie before the row's diagonal blocks; the clamp keeps any other list causal.
            key = tl.minimum(following_keys, first)
            ahead = i + BLOCK_K + slot
            following_keys = tl.load(column_list + ahead, mask=ahead < column_count, other=0)
            live = (i + slot < column_count) & (key >= lowest)
            place = key.to(tl.int64)[:, None]
            inside = live[:, None] & d_real[None, :]
            keys = tl.load(k_head + place * stride_kn + k_place[None, :], mask=inside, other=0.0)
            values = tl.load(v_head + place * stride_vn + v_place[None, :], mask=inside, other=0.0)
            logits = _products(q, keys, scale_log2, softcap_log2, SOFTCAP, UPCAST, PRECISION)
            seen = live[None, :] & (key[None, :] <= query[:, None])
            if WINDOW:
                seen = seen & (key[None, :] > query[:, None] - window)
            logits = tl.where(seen, logits, -float("inf"))
            acc, top, total = _accumulate(
                logits, values, acc, top, total, scale_log2, True, SOFTCAP, UPCAST, PRECISION
            )

    empty = total == 0.0
    out = acc / tl.where(empty, 1.0, total)[:, None]
    lse = (top + tl.log2(tl.where(empty, 1.0, total))) * 0.6931471805599453
    # out [B, Hq, n_q, D] and lse [B, Hq, n_q] are contiguous.
    place = (batch.to(tl.int64) * heads + head) * n_q + query_row
    tl.store(lse_ptr + place, tl.where(empty, -float("inf"), lse), mask=query_real)
    tl.store(
        out_ptr + place[:, None] * HEAD + d[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=query_real[:, None] & d_real[None, :],
    )
