"""BigBird's three parts against plain loops over the same draws. CPU only."""

from __future__ import annotations

import pytest
import torch

from routesparse.engine.lab.rivals.patterns.bigbird import BigBird


@pytest.mark.parametrize(("random", "window", "first"), [(2, 3, 2), (1, 1, 0), (5, 2, 1)])
def test_reads_global_window_and_the_best_drawn_blocks(view, slow, random, window, first) -> None:
    rule = BigBird(random, window, first)
    chances = rule.chances(view)[0].tolist()
    expected = torch.zeros(
        1, view.heads, view.segment.query_blocks, view.segment.key_blocks, dtype=torch.bool
    )
    for head in range(view.heads):
        for i in range(view.segment.query_blocks):
            diagonal = min(view.tokens, (i + 1) * view.block_q) - 1
            diagonal //= view.block_k
            kept = {j for j in range(diagonal + 1) if j < first or j > diagonal - window}
            free = [j for j in range(diagonal + 1) if j not in kept]
            kept |= set(sorted(free, key=lambda j: -chances[head][i][j])[:random])
            expected[0, head, i, list(kept)] = True
    slow.same(view, rule(view), expected)


def test_random_blocks_are_as_many_as_asked_and_differ_by_head_salt_and_layer(make_view) -> None:
    view, rule = make_view(700, 32, 16), BigBird(4, 2, 1)
    drawn = rule(view).blocks & ~rule.fixed(view)
    free = (view.forced_and_causal[1] & ~rule.fixed(view)).sum(-1)
    assert drawn.sum(-1).equal(free.clamp_max(4).expand(1, 4, -1))
    assert not drawn[:, 0].equal(drawn[:, 1])
    others = [rule(make_view(700, 32, 16, **by)).blocks for by in ({"layer": 4}, {"salt": "other"})]
    assert not any(rule(view).blocks.equal(other) for other in others)
    assert rule(view).blocks.equal(rule(make_view(700, 32, 16)).blocks)


def test_free_blocks_are_drawn_alike(make_view) -> None:
    """Over many prompts each free block of the last row is drawn about as often as the others."""
    rule, count = BigBird(4, 2, 1), 0
    for prompt in range(150):
        view = make_view(700, 32, 16, salt=str(prompt))
        count = count + (rule(view).blocks & ~rule.fixed(view))[0, :, -1].sum(0)
    free = (view.forced_and_causal[1] & ~rule.fixed(view))[0, 0, -1]
    expected = 150 * view.heads * 4 / int(free.sum())
    assert (count[free] - expected).abs().max() < 5 * expected**0.5
