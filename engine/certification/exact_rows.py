"""Random rows against exact attention alone, all KV heads at once: what ``rows.py`` measures on a CPU without a plan.

A layer's keys are cut into segments of SEGMENT. Each segment gives a row its own softmax, output o_s and logarithm of
its sum of exponentials l_s; the exact row is sum_s exp(l_s - l) o_s with l = log sum_s exp(l_s). So no matrix of all
keys has to stand, the products are many small ones, and segments beyond a row are left out. Float32
throughout. A GPU has kernels for it (kernels/exact_rows).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from routesparse.engine.device.inputs import AttentionInputs

SEGMENT = 1_024  # keys
CHUNK_SCORES = 1 << 22  # rows x keys scored at once
_FLOOR = -1e30  # of hidden keys: finite, so that a segment which a row does not see holds no NaN
_TINY = 1e-30


@dataclass(frozen=True)
class Compared:
    """Of each row: the output's distance from the exact one, the exact one's norm, sum_j a_j ||v_j||, and whether
    the output is finite; float32 and bool, [Hkv, R], R rows of the query heads of a KV head, one head after another."""

    apart: torch.Tensor
    norm: torch.Tensor
    reach: torch.Tensor
    finite: torch.Tensor


@torch.no_grad()
def compare(
    inputs: AttentionInputs, out: torch.Tensor, rows: torch.Tensor, b: int, first_key: int, window: int | None
) -> Compared:
    """Prompt b's rows int64 [H, C] (on the CPU) of the function's output [B, H, n_q, D]."""
    kv_heads, count = inputs.k.shape[1], rows.shape[1]
    shift = inputs.k.shape[2] - inputs.q.shape[2]
    device = inputs.q.device
    flat = rows.reshape(kv_heads, -1)
    ordered, order = flat.sort(dim=1)  # rows beside each other see about as many keys
    ends = (ordered.amax(0) + shift + 1).tolist()
    starts = (ordered.amin(0) + shift).tolist()
    heads = order // count + torch.arange(kv_heads).unsqueeze(1) * inputs.groups
    place = torch.stack((ordered, heads, order)).to(device)
    keys = _Keys.of(inputs, b)
    queries = inputs.q[b, place[1], place[0]]
    exact = torch.empty(*flat.shape, out.shape[-1], device=device)
    reach = torch.empty(flat.shape, device=device)
    for start, stop in _chunks(ends, kv_heads):
        here = slice(start, stop)
        first, last = starts[start], ends[stop - 1]
        positions = place[0, :, here] + shift
        sinks = None if inputs.sinks is None else inputs.sinks[place[1, :, here]].float()
        scored = keys.attend(inputs, queries[:, here], positions, (first, last), first_key, window, sinks)
        exact[:, here], reach[:, here] = scored
    ran = out[b, place[1], place[0]].float()
    finite = ran.isfinite().all(-1)
    apart = (ran - exact).norm(dim=-1).where(finite, torch.inf)
    back = place[2].argsort(1)
    return Compared(*(value.gather(1, back) for value in (apart, exact.norm(dim=-1), reach, finite)))


def _chunks(ends: list[int], kv_heads: int) -> list[tuple[int, int]]:
    """Ranges of the ordered rows, of about CHUNK_SCORES scores over all KV heads."""
    chunks, start = [], 0
    for stop in range(1, len(ends) + 1):
        if stop == len(ends) or (stop + 1 - start) * ends[stop] * kv_heads > CHUNK_SCORES:
            chunks.append((start, stop))
            start = stop
    return chunks


@dataclass(frozen=True)
class _Keys:
    """A layer's keys and values by segment, float32 [S * Hkv, SEGMENT, D], with zeros behind the last key."""

    keys: torch.Tensor
    values: torch.Tensor
    norms: torch.Tensor  # [S * Hkv, SEGMENT, 1]
    kv_heads: int

    @classmethod
    def of(cls, inputs: AttentionInputs, b: int) -> _Keys:
        k, v = inputs.k[b], inputs.v[b]
        kv_heads, tokens, _ = k.shape
        padding = -tokens % SEGMENT

        def segments(tensor: torch.Tensor) -> torch.Tensor:
            padded = F.pad(tensor, (0, 0, 0, padding)) if padding else tensor
            cut = padded.unflatten(1, (-1, SEGMENT)).transpose(0, 1)
            # One pass over the numbers, which change their order and their format at once.
            copied = torch.empty(cut.shape, dtype=torch.float32, device=tensor.device).copy_(cut)
            return copied.view(-1, SEGMENT, tensor.shape[-1])

        values = segments(v)
        return cls(segments(k), values, values.norm(dim=-1, keepdim=True), kv_heads)

    def attend(
        self,
        inputs: AttentionInputs,
        queries: torch.Tensor,
        positions: torch.Tensor,
        seen: tuple[int, int],
        first_key: int,
        window: int | None,
        sinks: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Exact outputs [Hkv, P, D] and sums a_j ||v_j|| [Hkv, P] of queries [Hkv, P, D] at positions [Hkv, P].

        seen: the first position, and one past the last.
        """
        count = -(-seen[1] // SEGMENT)
        upto = count * self.kv_heads
        repeated = queries.expand(count, *queries.shape).reshape(upto, *queries.shape[1:])
        logits = torch.bmm(repeated.float(), self.keys[:upto].transpose(1, 2)).mul_(inputs.scale)
        if inputs.softcap is not None:
            logits = torch.tanh(logits / inputs.softcap) * inputs.softcap
        by_segment = logits.view(count, *queries.shape[:2], SEGMENT)
        # Every row sees all of the segments before the first row's own, unless keys at the front are hidden.
        clear = 0 if first_key or window is not None else seen[0] // SEGMENT
        key = torch.arange(clear * SEGMENT, count * SEGMENT, device=queries.device).view(-1, 1, 1, SEGMENT)
        position = positions.unsqueeze(-1)
        hidden = key > position
        if first_key:
            hidden = hidden | (key < first_key)
        if window is not None:
            hidden = hidden | (key <= position - window)
        by_segment[clear:].masked_fill_(hidden, _FLOOR)
        weights = logits.softmax(-1)
        largest, where = weights.max(-1, keepdim=True)
        sums = (logits.gather(-1, where) - largest.log()).view(count, *queries.shape[:2])
        outputs = torch.bmm(weights, self.values[:upto]).view(count, *queries.shape[:2], -1)
        reached = torch.bmm(weights, self.norms[:upto]).view(sums.shape)
        among = sums if sinks is None else torch.cat((sums, sinks.unsqueeze(0)))
        share = (sums - among.logsumexp(0)).exp()
        return (outputs * share.unsqueeze(-1)).sum(0), (reached * share).sum(0)
