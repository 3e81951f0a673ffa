"""Slashes as tiles, sums over the last rows, ranks and chunks against plain loops. CPU only."""

from __future__ import annotations

import pytest
import torch

from routesparse.engine.lab.rivals import pieces


def test_tiles_of_offsets_are_those_that_hold_a_pair(view, slow) -> None:
    generator = torch.Generator().manual_seed(1)
    offsets = torch.rand(1, view.heads, view.tokens, generator=generator) < 4 / view.tokens
    marked = offsets[0].tolist()
    expected = slow.tiles(view, lambda head, row, key: marked[head][row - key])
    assert torch.equal(pieces.tiles_of_offsets(view, offsets), expected)


@pytest.mark.parametrize("count", [1, 64, 400])
def test_last_row_sums_go_by_key_and_by_offset(view, slow, count) -> None:
    n = view.tokens
    key_sum, offset_sum = (torch.zeros(view.heads, n, dtype=torch.float64) for _ in range(2))
    for head, attention in enumerate(slow.attention(view).tolist()):
        by_place = [[0.0] * n, [0.0] * n]
        for row in range(max(0, n - count), n):
            for key in range(row + 1):
                by_place[0][key] += attention[row][key]
                by_place[1][row - key] += attention[row][key]
        key_sum[head], offset_sum[head] = torch.tensor(by_place, dtype=torch.float64)
    by_key, by_offset = pieces.last_row_sums(view, count)
    torch.testing.assert_close(by_key[0].double(), key_sum, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(by_offset[0].double(), offset_sum, rtol=1e-5, atol=1e-6)


def test_of_equal_entries_the_first_ranks_higher() -> None:
    x = torch.tensor([1.0, torch.inf, 2.0, torch.inf, -torch.inf, 2.0])
    assert pieces.ranks(x).tolist() == [4, 0, 2, 1, 5, 3]


def test_chunks_cover_every_query_block_once(make_view, monkeypatch) -> None:
    view = make_view(517, 32, 16)
    monkeypatch.setattr(pieces, "MOST_LOGITS", 1_000)
    chunks = list(pieces.query_block_chunks(view, 100))
    assert [block for chunk in chunks for block in chunk] == list(range(17))
    assert {len(chunk) for chunk in chunks[:-1]} == {2}
