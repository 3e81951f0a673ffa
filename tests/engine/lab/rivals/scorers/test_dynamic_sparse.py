"""Dynamic sparse attention: its projection, its rounding, and its blocks against plain loops. CPU only."""

from __future__ import annotations

import pytest
import torch

from routesparse.engine.lab.rivals.scorers.dynamic_sparse import DynamicSparse, rounded


@pytest.mark.parametrize(("rank", "blocks"), [(4, 5), (12, 3)])
def test_reads_the_blocks_that_the_probe_finds(view, slow, rank, blocks) -> None:
    rule = DynamicSparse(blocks, rank)
    projection = rule.projection(view)

    def probe(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(*x.shape[:2], rank, dtype=torch.float64)
        for head in range(len(x)):
            for row, vector in enumerate((x[head] @ projection).tolist()):
                step = max(map(abs, vector)) / 7
                out[head, row] = torch.tensor([round(value / step) * step for value in vector])
        return out

    k = view.inputs.k[0].repeat_interleave(view.inputs.groups, 0)
    logits = probe(view.inputs.q[0]) @ probe(k).mT * view.inputs.scale
    scores = slow.row_shares(view, logits, 1)
    slow.same(view, rule(view), slow.best_blocks(view, scores, blocks))


def test_the_projection_keeps_products_in_the_mean(make_view) -> None:
    """E[P P'] is the identity: over many prompts' draws the mean is near it."""
    draws = [DynamicSparse(rank=32).projection(make_view(64, salt=str(i))) for i in range(200)]
    mean = torch.stack([p @ p.T for p in draws]).mean(0)
    assert (mean - torch.eye(len(mean))).abs().max() < 0.1
    values = torch.stack(draws).unique()
    assert len(values) == 3 and float((torch.stack(draws) == 0).float().mean()) == pytest.approx(
        2 / 3, abs=0.01
    )


def test_rounding_has_fifteen_steps_a_token() -> None:
    x = torch.randn(50, 200, generator=torch.Generator().manual_seed(0))
    assert max(len(row.unique()) for row in rounded(x)) == 15
    assert ((rounded(x) - x).abs() <= x.abs().amax(-1, keepdim=True) / 14 + 1e-6).all()
    assert rounded(torch.zeros(3, 4)).equal(torch.zeros(3, 4))
