"""Sparse Transformer's two patterns against the paper's sets of pairs. CPU only."""

from __future__ import annotations

import pytest
import torch

from routesparse.engine.lab.rivals.patterns.sparse_transformer import FixedPattern, StridedPattern


@pytest.mark.parametrize("stride", [96, 201])
def test_strided_reads_the_tiles_of_both_sets(view, slow, stride) -> None:
    expected = slow.tiles(view, lambda _, row, key: row - key <= stride or (row - key) % stride == 0)
    slow.same(view, StridedPattern(stride)(view), expected)


@pytest.mark.parametrize(("block", "summary"), [(64, 4), (50, 1), (128, 16)])
def test_fixed_reads_its_blocks_and_summary_columns(view, slow, block, summary) -> None:
    found = FixedPattern(summary, block)(view)
    slow.same(view, found, slow.tiles(view, lambda _, row, key: row // block == key // block))
    columns = [key for key in range(view.tokens) if key % block >= block - summary]
    assert found.columns.shape[:2] == (1, view.heads)
    assert all(found.columns[0, head].tolist() == columns for head in range(view.heads))


def test_fixed_reads_every_pair_of_the_paper_and_only_tiles_and_columns_of_such(make_view) -> None:
    view, block, summary = make_view(448, 64, 32), 64, 4
    read = view.plan(FixedPattern(summary, block)(view), extras=False).to_mask()[0, 0]
    row, key = torch.arange(448).view(-1, 1), torch.arange(448)
    first = row // block == key // block
    second = (key % block >= block - summary).expand_as(first)
    causal = key <= row
    assert read[(first | second) & causal].all()
    # Blocks of the pattern are as long as query blocks here, so nothing else is read.
    assert not read[~(first | second) & causal].any()
