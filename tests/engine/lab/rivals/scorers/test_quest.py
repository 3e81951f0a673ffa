"""QUEST: its bounds are bounds, and its blocks are those of a plain-loop reading in float64. CPU only."""

from __future__ import annotations

import pytest
import torch

from routesparse.engine.lab.rivals.scorers.quest import Quest, bounds


@pytest.mark.parametrize("page", [4, 16])
def test_no_key_of_a_page_has_a_larger_logit_than_its_bound(view, slow, page) -> None:
    q, k, _ = slow.tensors(view)
    rows = torch.arange(0, view.tokens, 7)
    found = bounds(view, rows, *Quest(page=page).pages(view))[0].double()
    logits = q[:, rows] @ k.mT * view.inputs.scale
    own = found.repeat_interleave(page, -1)[..., : view.tokens]
    assert (logits <= own + 1e-5).all()
    assert (logits < own - 0.1).double().mean() > 0.5, "bounds of pages are not tight"


def test_the_bound_of_a_page_of_one_key_is_its_logit(view, slow) -> None:
    q, k, _ = slow.tensors(view)
    rows = torch.arange(0, view.tokens, 7)
    found = bounds(view, rows, *Quest(page=1).pages(view))[0].double()
    torch.testing.assert_close(found, q[:, rows] @ k.mT * view.inputs.scale, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("page", "blocks"), [(4, 5), (16, 3)])
def test_reads_the_blocks_of_the_largest_bounds(view, slow, page, blocks) -> None:
    q, k, _ = slow.tensors(view)
    pages = [k[:, start : start + page] for start in range(0, view.tokens, page)]
    logits = torch.stack(
        [torch.maximum(q * p.amin(1, keepdim=True), q * p.amax(1, keepdim=True)).sum(-1) for p in pages], -1
    )
    scores = slow.row_shares(view, logits * view.inputs.scale, page)
    slow.same(view, Quest(blocks, page)(view), slow.best_blocks(view, scores, blocks))
