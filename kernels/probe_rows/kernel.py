"""The device code that places the rows of a probe."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["body", "rows", "position"])
def place_kernel(
    draws_ptr, first_key_ptr, out_ptr,
    heads, count, recent, routing, certificate, half, body, rows, position, P: tl.constexpr,
):  # fmt: skip
    """One unit's probe rows int64 [count]: the last rows, strata of the body, independent rows of it, its edges."""
    unit = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, P)
    body = body.to(tl.int64)
    first = tl.load(first_key_ptr + unit // heads)
    low = tl.minimum(tl.maximum(first - position, 0), tl.maximum(body - 1, 0))
    span = body - low
    draw_at = at - recent
    drawn = routing + certificate
    is_drawn = (draw_at >= 0) & (draw_at < drawn)
    share = tl.load(draws_ptr + unit * drawn + draw_at, mask=is_drawn, other=0.0)
    share = tl.where(draw_at < routing, (draw_at.to(tl.float64) + share) / routing, share)
    inside = tl.minimum((share * span.to(tl.float64)).to(tl.int64), span - 1)
    edge = (draw_at - drawn).to(tl.int64)
    edge = tl.maximum(tl.where(edge < half, edge, body - 2 * half + edge), low)
    row = tl.where(draw_at < 0, rows.to(tl.int64) - recent + at, tl.where(is_drawn, low + inside, edge))
    tl.store(out_ptr + unit * count + at, row, mask=at < count)
