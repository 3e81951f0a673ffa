"""The device code of the Triton backend: one program computes one query block of one head.

Importing this module imports Triton, so only ``triton_backend`` does, inside a function.

Online softmax in base 2 (Milakov and Gimelshein 2018; FlashAttention-2): logits are scaled by log2(e), a
sink is a first key with value zero. Blocks before the diagonal need no mask; the last few of a list, which
hold the diagonal, do. All addresses are int64.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _logits(q, keys, scale_log2, softcap_log2, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """Base-2 logits [BLOCK_Q, BLOCK_K] of q [BLOCK_Q, D] and keys [D, BLOCK_K]."""
    logits = tl.dot(q, keys, input_precision=PRECISION)
    if SOFTCAP:
        # Here the scale carries 2 / softcap and no log2(e): tanh(x / 2) = 2 sigmoid(x) - 1.
        return softcap_log2 * (2.0 * tl.sigmoid(logits * scale_log2) - 1.0)
    return logits * scale_log2


@triton.jit
def _accumulate(
    logits, values, acc, top, total, MASKED: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr
):
    """Fold one tile into the running output [BLOCK_Q, D], maximum and sum [BLOCK_Q]."""
    new_top = tl.maximum(top, tl.max(logits, 1))
    # A masked row that has met no key yet keeps -inf; -inf - -inf would be NaN.
    shift = tl.where(new_top == -float("inf"), 0.0, new_top) if MASKED else new_top
    weights = tl.exp2(logits - shift[:, None])
    decay = tl.exp2(top - shift)
    total = total * decay + tl.sum(weights, 1)
    acc = acc * decay[:, None]
    if UPCAST:
        acc += tl.dot(weights, values.to(tl.float32), input_precision=PRECISION)
    else:
        acc += tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
    return acc, new_top, total


@triton.jit
def sparse_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    order_ptr,
    blocks_ptr,
    block_count_ptr,
    columns_ptr,
    column_count_ptr,
    dense_rows_ptr,
    key_start_ptr,
    sinks_ptr,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_vd,
    blocks_stride,
    columns_stride,
    heads,
    group,
    query_blocks,
    n_q,
    n_k,
    window,
    scale_log2,
    softcap_log2,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    COLUMNS: tl.constexpr,
    KEY_START: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program p computes row order[p] of the plan, rows counted over [B, H, M]."""
    row = tl.load(order_ptr + tl.program_id(0)).to(tl.int64)
    query_block = (row % query_blocks).to(tl.int32)
    head = (row // query_blocks) % heads
    batch = row // query_blocks // heads
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

    q_tile = q_ptr + batch * stride_qb + head * stride_qh
    q = tl.load(
        q_tile + query_row[:, None] * stride_qn + d[None, :] * stride_qd,
        mask=query_real[:, None] & d_real[None, :],
        other=0.0,
    )
    if UPCAST:
        q = q.to(tl.float32)
    k_head = k_ptr + batch * stride_kb + (head // group) * stride_kh + d[:, None] * stride_kd
    v_head = v_ptr + batch * stride_vb + (head // group) * stride_vh + d[None, :] * stride_vd

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
    if WINDOW:
        range_start = tl.maximum(range_start, first - window + 1)
    range_start = range_start // BLOCK_K
    listed = tl.load(block_count_ptr + row)
    count = tl.where(dense, tl.maximum(last // BLOCK_K - range_start + 1, 0), listed)
    # An ascending list has its diagonal blocks last. The clamp below keeps any other list causal too.
    diagonal = first // BLOCK_K
    unmasked = tl.where(diagonal > 0, tl.maximum(count - ((BLOCK_Q + BLOCK_K - 2) // BLOCK_K + 1), 0), 0)
    if KEY_START or WINDOW:
        unmasked = 0
    block_list = blocks_ptr + row * blocks_stride

    for i in range(0, unmasked):
        listed_block = tl.load(block_list + i, mask=dense == 0, other=0)
        block = tl.minimum(tl.where(dense, range_start + i, listed_block), diagonal - 1)
        key = (block * BLOCK_K + slot).to(tl.int64)
        keys = tl.load(k_head + key[None, :] * stride_kn, mask=d_real[:, None], other=0.0)
        values = tl.load(v_head + key[:, None] * stride_vn, mask=d_real[None, :], other=0.0)
        if UPCAST:
            keys = keys.to(tl.float32)
        logits = _logits(q, keys, scale_log2, softcap_log2, SOFTCAP, PRECISION)
        acc, top, total = _accumulate(logits, values, acc, top, total, False, UPCAST, PRECISION)

    for i in range(unmasked, count):
        listed_block = tl.load(block_list + i, mask=dense == 0, other=0)
        block = tl.where(dense, range_start + i, listed_block)
        key = (block * BLOCK_K + slot).to(tl.int64)
        key_real = key < n_k
        keys = tl.load(k_head + key[None, :] * stride_kn, mask=d_real[:, None] & key_real[None, :], other=0.0)
        values = tl.load(
            v_head + key[:, None] * stride_vn, mask=key_real[:, None] & d_real[None, :], other=0.0
        )
        if UPCAST:
            keys = keys.to(tl.float32)
        logits = _logits(q, keys, scale_log2, softcap_log2, SOFTCAP, PRECISION)
        seen = (key[None, :] <= query[:, None]) & (key[None, :] >= lowest)
        if WINDOW:
            seen = seen & (key[None, :] > query[:, None] - window)
        logits = tl.where(seen, logits, -float("inf"))
        acc, top, total = _accumulate(logits, values, acc, top, total, True, UPCAST, PRECISION)

    if COLUMNS:
        column_list = columns_ptr + row * columns_stride
        column_count = tl.where(dense, 0, tl.load(column_count_ptr + row))
        for i in range(0, column_count, BLOCK_K):
            live = i + slot < column_count
            key = tl.load(column_list + i + slot, mask=live, other=0).to(tl.int64)
            live = live & (key < n_k)
            keys = tl.load(k_head + key[None, :] * stride_kn, mask=d_real[:, None] & live[None, :], other=0.0)
            values = tl.load(
                v_head + key[:, None] * stride_vn, mask=live[:, None] & d_real[None, :], other=0.0
            )
            if UPCAST:
                keys = keys.to(tl.float32)
            logits = _logits(q, keys, scale_log2, softcap_log2, SOFTCAP, PRECISION)
            seen = live[None, :] & (key[None, :] <= query[:, None]) & (key[None, :] >= lowest)
            if WINDOW:
                seen = seen & (key[None, :] > query[:, None] - window)
            logits = tl.where(seen, logits, -float("inf"))
            acc, top, total = _accumulate(logits, values, acc, top, total, True, UPCAST, PRECISION)

    empty = total == 0.0
    out = acc / tl.where(empty, 1.0, total)[:, None]
    lse = (top + tl.log2(tl.where(empty, 1.0, total))) * 0.6931471805599453
    # out [B, Hq, n_q, D] and lse [B, Hq, n_q] are contiguous.
    place = (batch * heads + head) * n_q + query_row
    tl.store(lse_ptr + place, tl.where(empty, -float("inf"), lse), mask=query_real)
    tl.store(
        out_ptr + place[:, None] * HEAD + d[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=query_real[:, None] & d_real[None, :],
    )
