"""SparQ against a plain-loop reading of its first step in float64. CPU only."""

from __future__ import annotations

import math

import pytest
import torch

from routesparse.engine.lab.rivals.scorers.sparq import SparQ


@pytest.mark.parametrize(("dimensions", "blocks"), [(3, 5), (8, 3)])
def test_reads_the_blocks_that_few_dimensions_foretell(view, slow, dimensions, blocks) -> None:
    q, k, _ = slow.tensors(view)
    logits = torch.zeros(view.heads, view.tokens, view.tokens, dtype=torch.float64)
    for head in range(view.heads):
        for row in range(view.tokens):
            size = [abs(x) for x in q[head, row].tolist()]
            best = sorted(range(len(size)), key=lambda d: -size[d])[:dimensions]
            temperature = math.sqrt(len(size) * sum(size[d] for d in best) / sum(size))
            logits[head, row] = k[head][:, best] @ q[head, row, best] / temperature
    scores = slow.row_shares(view, logits, 1)
    slow.same(view, SparQ(blocks, dimensions)(view), slow.best_blocks(view, scores, blocks))


def test_with_all_dimensions_the_score_is_attention_itself(view, slow) -> None:
    found = SparQ(dimensions=99).scores(view)[0].double()
    exact = slow.attention(view).clamp_min(1e-300).log()
    torch.testing.assert_close(found, slow.row_shares(view, exact, 1), rtol=1e-3, atol=1e-5)
