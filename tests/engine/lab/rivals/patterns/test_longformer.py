"""Longformer against the paper's pairs, and as the A-shape that RouteSparse routes to. CPU only."""

from __future__ import annotations

import pytest

from routesparse.engine.lab.rivals.patterns.longformer import Longformer
from routesparse.engine.lab.rivals.static_a_shape import StaticAShape


@pytest.mark.parametrize(
    ("window", "dilation", "first", "last"),
    [(40, 1, 20, 0), (64, 1, 0, 0), (3, 70, 0, 0), (33, 1, 1, 40)],
    ids=["first-global", "window-alone", "dilated", "both-ends-global"],
)
def test_reads_the_tiles_of_window_and_global_tokens(view, slow, window, dilation, first, last) -> None:
    n = view.tokens

    def reads(_: int, row: int, key: int) -> bool:
        local = row - key < window * dilation and (row - key) % dilation == 0
        return local or key < first or row >= n - last

    # A row that is global reads all before it; what is read of a global key is read by all.
    found = Longformer(window, dilation, first, last)(view)
    slow.same(view, found, slow.tiles(view, reads))


@pytest.mark.parametrize(("first", "window"), [(1, 48), (64, 100)])
def test_undilated_with_first_tokens_global_it_is_the_a_shape(view, first, window) -> None:
    causal = view.forced_and_causal[1]
    shape = StaticAShape(first, window)(view).blocks & causal
    assert (Longformer(window, global_first=first)(view).blocks & causal).equal(shape)
