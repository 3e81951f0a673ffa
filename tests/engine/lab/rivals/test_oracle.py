"""The oracles against the materialised float64 softmax. CPU only."""

from __future__ import annotations

import pytest
import torch

from routesparse.engine.lab.rivals import pieces
from routesparse.engine.lab.rivals.oracle import OracleFloor, OracleLargest, OracleTopP, block_shares


def shares(view, slow) -> list[list[torch.Tensor]]:
    """By head and query block: the attention of its rows summed over KV blocks, float64 [rows, N]."""
    attention = slow.attention(view)
    out = []
    for head in range(view.heads):
        out.append([])
        for start in range(0, view.tokens, view.block_q):
            rows = attention[head, start : start + view.block_q]
            out[-1].append(torch.stack([part.sum(-1) for part in rows.split(view.block_k, -1)], -1))
    return out


def test_shares_are_those_of_the_softmax(view, slow, monkeypatch) -> None:
    exact = shares(view, slow)
    monkeypatch.setattr(pieces, "MOST_LOGITS", 3 * view.heads * view.block_q * view.segment.key_blocks)
    for over, of_rows in (("mean", lambda x: x.mean(0)), ("largest", lambda x: x.amax(0))):
        expected = torch.stack([torch.stack([of_rows(rows) for rows in head]) for head in exact])
        torch.testing.assert_close(block_shares(view, over)[0].double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_top_p_reads_the_fewest_blocks(view, slow, share) -> None:
    forced = view.forced_and_causal[0][0, 0]
    expected = torch.zeros(1, view.heads, *forced.shape, dtype=torch.bool)
    for head, blocks in enumerate(shares(view, slow)):
        for i, rows in enumerate(blocks):
            first = set(forced[i].nonzero().flatten().tolist())
            expected[0, head, i, list(slow.fewest(rows.sum(0).tolist(), share, first))] = True
    slow.same(view, OracleTopP(share)(view), expected)


@pytest.mark.parametrize(("rule", "over"), [(OracleFloor, "mean"), (OracleLargest, "amax")])
@pytest.mark.parametrize("theta", [0.01, 0.1])
def test_floors_keep_a_block_by_its_share(view, slow, rule, over, theta) -> None:
    expected = torch.zeros_like(view.forced_and_causal[1].expand(1, view.heads, -1, -1)).contiguous()
    for head, blocks in enumerate(shares(view, slow)):
        for i, rows in enumerate(blocks):
            expected[0, head, i] = getattr(rows, over)(0) >= theta
    found = rule(theta)(view).blocks
    assert not ((found ^ expected) & view.forced_and_causal[1]).any()
    assert found.any()
