"""Reformer's hashed blocks against plain loops over the same rotations. CPU only."""

from __future__ import annotations

import pytest
import torch

from routesparse.engine.lab.rivals.patterns.reformer import Reformer


@pytest.mark.parametrize(("rounds", "buckets"), [(1, 4), (3, 8), (2, 16)])
def test_reads_the_blocks_that_meet_in_a_bucket(view, slow, rounds, buckets) -> None:
    rule = Reformer(rounds, buckets)
    rotations = rule.rotations(view).double()
    q, k, _ = slow.tensors(view)

    def hashed(x: torch.Tensor, block: int) -> list[list[int]]:
        means = [x[start : start + block].mean(0) for start in range(0, len(x), block)]
        centre = sum(means) / len(means)
        out = []
        for mean in means:
            turned = [((mean - centre) @ r).tolist() for r in rotations]
            out.append([max(range(buckets), key=(t + [-x for x in t]).__getitem__) for t in turned])
        return out

    expected = torch.zeros(
        1, view.heads, view.segment.query_blocks, view.segment.key_blocks, dtype=torch.bool
    )
    for head in range(view.heads):
        queries, keys = hashed(q[head], view.block_q), hashed(k[head], view.block_k)
        for i, query in enumerate(queries):
            for j, key in enumerate(keys):
                expected[0, head, i, j] = any(a == b for a, b in zip(query, key, strict=True))
    slow.same(view, rule(view), expected)


def test_more_rounds_read_all_that_fewer_read(make_view) -> None:
    view = make_view(700, 32, 16)
    few, many = (Reformer(rounds)(view).blocks for rounds in (2, 6))
    assert not (few & ~many).any() and many.sum() > few.sum()


def test_equal_block_means_share_every_bucket(make_view) -> None:
    """What the paper's shared queries and keys would give: a block always meets itself."""
    view = make_view(640, 32, 32, kv_heads=4)
    view.inputs.k.copy_(view.inputs.q)
    blocks = Reformer(rounds=1, buckets=32)(view).blocks
    assert blocks.diagonal(dim1=2, dim2=3).all() and blocks.double().mean() < 0.5
