"""Rules that look at positions alone: A-shape, window, TriangleMix. Random blocks. CPU only."""

from __future__ import annotations

import pytest
import torch

from routesparse.engine.lab.rivals.random_blocks import RandomBlocks
from routesparse.engine.lab.rivals.static_a_shape import StaticAShape, Window
from routesparse.engine.lab.rivals.trianglemix import TriangleMix


@pytest.mark.parametrize(("sink", "local"), [(20, 33), (0, 64), (64, 1)])
def test_a_shape_reads_the_first_and_the_last_keys(view, slow, sink, local) -> None:
    expected = slow.tiles(view, lambda _, row, key: key < sink or row - key < local)
    slow.same(view, StaticAShape(sink, local)(view), expected)


def test_window_reads_the_sink_block_and_the_last_keys(view, slow) -> None:
    expected = slow.tiles(view, lambda _, row, key: key < view.block_k or row - key < 48)
    slow.same(view, Window(48)(view), expected)


@pytest.mark.parametrize("last", [1, 40])
def test_triangle_reads_sink_window_and_the_last_rows_whole(view, slow, last) -> None:
    def reads(_: int, row: int, key: int) -> bool:
        end = (row // view.block_q + 1) * view.block_q
        return key < 8 or row - key < 50 or end > view.tokens - last

    slow.same(view, TriangleMix(2, local_tokens=50, last_rows=last)(view), slow.tiles(view, reads))


def test_the_first_layers_of_a_triangle_mix_are_dense(make_view) -> None:
    rule = TriangleMix(dense_layers=4)
    assert rule(make_view(layer=3)) is None and rule(make_view(layer=4)) is not None


def test_random_blocks_follow_salt_and_layer_and_meet_their_density(make_view) -> None:
    views = [make_view(700, 32, 16), make_view(700, 32, 16, layer=4), make_view(700, 32, 16, salt="other")]
    drawn = [RandomBlocks(0.3)(view).blocks for view in views]
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0][:, 0], drawn[0][:, 1])
    kept = drawn[0].sum() / (views[0].forced_and_causal[1].sum() * views[0].heads)
    assert 0.27 < kept < 0.33
