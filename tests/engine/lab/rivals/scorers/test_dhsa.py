"""DHSA with equal chunks against a plain-loop reading in float64. CPU only."""

from __future__ import annotations

import math

import pytest
import torch

from routesparse.engine.lab.rivals.scorers.dhsa import Dhsa


@pytest.mark.parametrize(("chunk", "blocks"), [(4, 5), (16, 3)])
def test_tokens_inherit_the_scores_of_their_chunks(view, slow, chunk, blocks) -> None:
    q, k, _ = slow.tensors(view)
    chunks = range(0, view.tokens, chunk)
    logits = torch.zeros(view.heads, view.tokens, len(chunks), dtype=torch.float64)
    for head in range(view.heads):
        sides = [
            [
                x[head, start : start + chunk].mean(0) * math.sqrt(min(chunk, view.tokens - start))
                for start in chunks
            ]
            for x in (q, k)
        ]
        similar = [[float(a @ b) * view.inputs.scale for b in sides[1]] for a in sides[0]]
        for row in range(view.tokens):
            logits[head, row] = torch.tensor(similar[row // chunk], dtype=torch.float64)
    scores = slow.row_shares(view, logits, chunk)
    slow.same(view, Dhsa(blocks, chunk)(view), slow.best_blocks(view, scores, blocks))


def test_a_chunk_of_one_token_scores_as_attention_does(view, slow) -> None:
    exact = slow.row_shares(view, slow.attention(view).clamp_min(1e-300).log(), 1)
    torch.testing.assert_close(Dhsa(chunk=1).scores(view)[0].double(), exact, rtol=1e-3, atol=1e-5)
