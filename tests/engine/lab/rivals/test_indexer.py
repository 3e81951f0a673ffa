"""The example indexer: its score against plain loops, and its file. CPU only."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from routesparse.engine.errors import ConfigError
from routesparse.engine.lab.rivals import indexer
from routesparse.engine.lab.rivals.indexer import Indexer


@pytest.fixture
def path(tmp_path):
    """An untrained file of four layers for 4 query heads on 2 KV heads of 16 dimensions."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"query": (4, 2, 32, 8), "key": (4, 32, 8), "weight": (4, 2, 32)}
    layers = {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    out = tmp_path / "indexer.safetensors"
    save_file(layers, out)
    return out


def test_reads_the_blocks_of_the_largest_index_scores(view, slow, path) -> None:
    """I(t, s) = sum_j w(t, j) ReLU(q(t, j) . k(s)), one choice for all heads of the layer."""
    layer = indexer.load(path)[view.layer]
    side = [x[0].double().transpose(0, 1).flatten(1) for x in (view.inputs.q, view.inputs.k)]
    query, key = (x / x.square().mean(1, keepdim=True).sqrt() for x in side)
    keys = key @ layer.key.double()
    scores = torch.zeros(1, view.tokens, view.tokens, dtype=torch.float64)
    for j in range(2):
        part = query[:, 32 * j : 32 * (j + 1)]
        weight = part @ layer.weight[j].double()
        for row in range(view.tokens):
            products = keys @ (part[row] @ layer.query[j].double())
            scores[0, row] += weight[row] * torch.where(products > 0, products, 0.0)
    expected = slow.best_blocks(view, slow.row_shares(view, scores), 4)
    slow.same(view, Indexer(4, path)(view), expected)


def test_a_file_for_another_model_or_none_is_refused(make_view, path, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"trained on queries and keys of \(64, 32\)"):
        Indexer(path=path)(make_view(300, heads=2))
    with pytest.raises(ConfigError, match="has 4 layers"):
        Indexer(path=path)(make_view(300, layer=4))
    with pytest.raises(ConfigError, match="holds no indexer"):
        Indexer(path=tmp_path / "none.safetensors")(make_view(300))
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="holds no indexer"):
        Indexer(path=torn)(make_view(300))


def test_the_bundled_file_fits_the_bundled_model() -> None:
    layers = indexer.load(indexer.DEMO_WEIGHTS)
    assert len(layers) == 8 and layers[0].query.shape[0] * layers[0].query.shape[1] == 8 * 64
