"""Segments: every row in exactly one, the tail dense, and block geometry against counting row by row. No GPU."""

import numpy as np
import pytest

from routesparse.engine.config import RouterConfig
from routesparse.engine.method.segments import split

CONFIG = RouterConfig(block_q=32, block_k=16, segment_tokens=128, tail_tokens=40)
SHAPES = [(64, 64), (128, 128), (191, 191), (193, 193), (700, 700), (333, 1000), (5, 300), (65, 129)]
shapes = pytest.mark.parametrize(("n_q", "n_k"), SHAPES, ids=str)


@shapes
def test_segments_tile_the_chunk_and_rows_keep_their_key_positions(n_q, n_k):
    segments = split(n_q, n_k, CONFIG)
    rows = [s.first + r for s in segments for r in range(s.rows)]
    positions = [s.position + r for s in segments for r in range(s.rows)]
    assert rows == list(range(n_q))
    assert positions == list(range(n_k - n_q, n_k))
    assert segments[-1].keys == n_k


@shapes
def test_only_the_last_segment_has_a_tail_and_it_starts_at_a_query_block(n_q, n_k):
    *rest, last = split(n_q, n_k, CONFIG)
    assert all(s.body == s.rows for s in rest)
    assert last.body % CONFIG.block_q == 0
    assert last.rows - last.body >= min(CONFIG.tail_tokens, last.rows)
    assert last.rows - last.body < CONFIG.tail_tokens + CONFIG.block_q or last.body == 0


@pytest.mark.parametrize(
    ("tokens", "lengths"),
    [(191, [191]), (192, [128, 64]), (256, [128, 128]), (319, [128, 191]), (320, [128, 128, 64])],
)
def test_a_remainder_under_half_a_segment_joins_the_one_before(tokens, lengths):
    assert [s.rows for s in split(tokens, tokens, CONFIG)] == lengths


@shapes
def test_block_geometry_equals_counting_row_by_row(n_q, n_k):
    for s in split(n_q, n_k, CONFIG):
        base, last = s.base_blocks(), s.last_blocks()
        assert len(base) == len(last) == s.query_blocks
        for i in range(s.query_blocks):
            rows = [r for r in range(s.rows) if r // s.block_q == i]
            met = {(s.position + r) // s.block_k for r in rows}
            assert base[i] == min(met)
            assert last[i] == max(met)
            assert (s.position + rows[0]) % s.block_k == s.phase


@pytest.mark.parametrize("body_only", [True, False], ids=["body", "all"])
@shapes
def test_causal_tiles_are_the_blocks_that_dense_attention_meets(n_q, n_k, body_only):
    for s in split(n_q, n_k, CONFIG):
        mask = np.tri(s.rows, s.keys, s.keys - s.rows, dtype=bool)
        tiles = 0
        for i in range(0, s.body if body_only else s.rows, s.block_q):
            block = mask[i : i + s.block_q]
            tiles += sum(block[:, j : j + s.block_k].any() for j in range(0, s.keys, s.block_k))
        assert s.causal_tiles(body_only) == tiles
