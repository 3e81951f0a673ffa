"""Broken and whole attention, for ``certify`` to find out. CPU.

A trial draws its own Q, K and V: random walks along the tokens, so that near keys weigh most, as in real heads. Then
an attention function runs on them and is certified. Whole functions must raise no alarm. A broken one that spoils the
share f of (head, row) pairs must be found with probability at least 1 - (1 - f)^N at N sampled rows, which is the
confidence once f is the share that the certificate names. One fault spoils exactly that share, so that the claim has
no room. 200 trials of each case: data/results/CERTIFY.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from routesparse.engine.certification.bounds import most_share
from routesparse.engine.certification.certify import Request, certify_attention
from routesparse.engine.certification.rows import score_rows
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.rows import EXECUTED_TOLERANCE
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.interface import RowPlan, sparse_attention

HEADS, KV_HEADS, TOKENS, SIZE, ROWS = 4, 2, 1_024, 32, 64
BLOCK_Q, BLOCK_K = 128, 64
CONFIDENCE = 0.95
STEP = 0.95  # correlation of neighbouring tokens
Tensor = torch.Tensor
Attention = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def problem(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """q [1, H, n, D] and k, v [1, Hkv, n, D] of one trial."""
    from scipy.signal import lfilter

    generator = torch.Generator().manual_seed(stable_seed("certify trial", seed))

    def draw(heads: int) -> Tensor:
        return torch.randn(1, heads, TOKENS, SIZE, generator=generator)

    noise = draw(KV_HEADS).numpy()
    noise[:, :, 1:] *= (1 - STEP**2) ** 0.5
    walk = torch.from_numpy(lfilter([1.0], [1.0, -STEP], noise, axis=2)).float()
    q = walk.repeat_interleave(HEADS // KV_HEADS, 1) + 0.3 * draw(HEADS)
    return q.to(dtype), walk.to(dtype), draw(KV_HEADS).to(dtype)


def dense(q: Tensor, k: Tensor, v: Tensor, seed: int) -> Tensor:
    """torch's own attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def our_dense(q: Tensor, k: Tensor, v: Tensor, seed: int) -> Tensor:
    """Our kernel with a dense plan."""
    plan = RowPlan.dense(1, HEADS, TOKENS, TOKENS, BLOCK_Q, BLOCK_K)
    return sparse_attention(q, k, v, plan)[0]


def skipped_tile(q: Tensor, k: Tensor, v: Tensor, seed: int) -> Tensor:
    """One tile of 128 queries and 64 keys of one head is never read: the one before the diagonal, where much lies."""
    blocks = torch.ones(1, HEADS, TOKENS // BLOCK_Q, TOKENS // BLOCK_K, dtype=torch.bool)
    row = 1 + seed % (TOKENS // BLOCK_Q - 1)
    blocks[0, seed % HEADS, row, row * BLOCK_Q // BLOCK_K - 1] = False
    plan = RowPlan.from_block_mask(blocks, TOKENS, TOKENS, BLOCK_Q, BLOCK_K)
    return sparse_attention(q, k, v, plan)[0]


def overflow(q: Tensor, k: Tensor, v: Tensor, seed: int) -> Tensor:
    """Softmax without the row's maximum in the inputs' format: a head whose logits pass 88 gives Inf / Inf."""
    q = q.clone()
    first = TOKENS // 2
    out = dense(q, k, v, seed)
    head = seed % HEADS
    logits = q[0, head] @ k[0, head * KV_HEADS // HEADS].T * SIZE**-0.5
    # Every second half's row of this head is sharp: its largest logit is about 200.
    logits[first:] *= 200.0 / logits[first:].float().amax(-1, keepdim=True).clamp_min(1.0).to(q.dtype)
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    weights = logits.exp().masked_fill(future, 0.0)
    out[0, head] = weights @ v[0, head * KV_HEADS // HEADS] / weights.sum(-1, keepdim=True)
    return out


def at_the_limit(q: Tensor, k: Tensor, v: Tensor, seed: int) -> Tensor:
    """The share of rows that the certificate names, and no row more, is off by a tenth of its size."""
    pairs = int(np.ceil(limit() * HEADS * TOKENS))
    generator = torch.Generator().manual_seed(stable_seed("limit", seed))
    out = dense(q, k, v, seed)
    chosen = torch.randperm(HEADS * TOKENS, generator=generator)[:pairs]
    out[0, chosen // TOKENS, chosen % TOKENS] *= 1.1
    return out


def limit() -> float:
    """The largest share of pairs that may go unseen, as the certificate says it."""
    return most_share(0, HEADS * ROWS, 1.0 - CONFIDENCE)


# name: function, number format
CASES: dict[str, tuple[Attention, torch.dtype]] = {
    "dense, float32": (dense, torch.float32),
    "dense, bfloat16": (dense, torch.bfloat16),
    "dense plan on our kernel, float32": (our_dense, torch.float32),
    "dense plan on our kernel, bfloat16": (our_dense, torch.bfloat16),
    "one tile skipped in one head, float32": (skipped_tile, torch.float32),
    "one tile skipped in one head, bfloat16": (skipped_tile, torch.bfloat16),
    "softmax without the maximum, half a head, bfloat16": (overflow, torch.bfloat16),
    "the named share of rows off by a tenth, float32": (at_the_limit, torch.float32),
}
WHOLE = (dense, our_dense)


@dataclass(frozen=True)
class Trial:
    """What one trial showed."""

    alarm: bool  # the verdict is anything but exact
    spoiled: float  # share of all (head, row) pairs whose output lies beyond rounding


def trial(name: str, seed: int) -> Trial:
    """One trial of a case."""
    function, dtype = CASES[name]
    q, k, v = problem(seed, dtype)
    out = function(q, k, v, seed)
    found = certify_attention(q, k, v, out, salt=name, name=name, request=Request(rows=ROWS, seed=seed))
    every = torch.arange(TOKENS).expand(1, HEADS, -1)
    deviation = score_rows(AttentionInputs(q, k, v, SIZE**-0.5), out, every).deviation
    spoiled = (deviation > EXECUTED_TOLERANCE[found.dtype]).double().mean()
    return Trial(found.verdict.level != "exact", float(spoiled))


def counted(name: str, trials: int) -> dict[str, Any]:
    """A case over independent trials: alarms, what chance promises of them, and the trials that the claim is about."""
    found = [trial(name, seed) for seed in range(trials)]
    rows = HEADS * ROWS
    claimed = [one for one in found if one.spoiled >= limit()]
    return {
        "case": name,
        "whole": CASES[name][0] in WHOLE,
        "spoiled_share": float(np.median([one.spoiled for one in found])),
        "alarms": sum(one.alarm for one in found),
        "promised": sum(1.0 - (1.0 - one.spoiled) ** rows for one in found),
        "claimed": len(claimed),
        "claimed_alarms": sum(one.alarm for one in claimed),
    }
