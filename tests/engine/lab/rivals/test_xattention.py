"""XAttention against a plain-loop reading of its antidiagonals in float64. CPU only."""

from __future__ import annotations

import math

import pytest

from routesparse.engine.lab.rivals import pieces
from routesparse.engine.lab.rivals.xattention import XAttention


def reading(view, slow, threshold: float, stride: int):
    n, block = view.tokens, view.block_q
    blocks, groups = math.ceil(n / block), math.ceil(n / stride)
    q, k, _ = slow.tensors(view)
    chosen = []
    for head in range(view.heads):
        pairs = (q[head] @ k[head].T).tolist()
        sums = [[0.0] * blocks for _ in range(blocks)]
        for g in range(groups):
            logits = []
            for h in range(g + 1):
                logit = 0.0
                for i in range(stride):
                    row, key = stride * g + stride - 1 - i, stride * h + i
                    logit += pairs[row][key] if row < n and key < n else 0.0
                logits.append(logit * view.inputs.scale / stride)
            weights = [math.exp(logit - max(logits)) for logit in logits]
            for h, weight in enumerate(weights):
                sums[g * stride // block][h * stride // block] += weight / sum(weights)
        chosen.append([slow.fewest(sums[i][: i + 1], threshold, {0, i}) for i in range(blocks)])
    return slow.halves(view, chosen)


@pytest.mark.parametrize("stride", [8, 16])
@pytest.mark.parametrize("threshold", [0.6, 0.9])
def test_reads_what_the_published_rule_reads(view, slow, threshold, stride) -> None:
    found = XAttention(threshold, stride)(view)
    slow.same(view, found, reading(view, slow, threshold, stride))


def test_chunks_of_query_blocks_change_nothing(make_view, monkeypatch) -> None:
    view, rule = make_view(517, 32, 16), XAttention()
    whole = rule.scores(view)
    monkeypatch.setattr(pieces, "MOST_LOGITS", 1)
    assert (rule.scores(view) - whole).abs().max() < 1e-5
