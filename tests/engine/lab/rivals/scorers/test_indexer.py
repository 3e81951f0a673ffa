"""The example indexer: its score against plain loops, its training, and its file. CPU only."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

from routesparse.engine.errors import ConfigError
from routesparse.engine.lab.rivals.scorers import indexer as scorer
from routesparse.engine.lab.rivals.scorers.indexer import Indexer, LayerIndexer
from routesparse.engine.lab.studies import indexer as study


@pytest.fixture
def path(tmp_path):
    """An untrained file of four layers for 4 query heads on 2 KV heads of 16 dimensions."""
    generator = torch.Generator().manual_seed(1)
    layers = [
        LayerIndexer(*(torch.randn(*shape, generator=generator) for shape in ((2, 32, 8), (32, 8), (2, 32))))
        for _ in range(4)
    ]
    out = tmp_path / "indexer.safetensors"
    study.save(SimpleNamespace(out=out), layers, {"seed": 1})
    return out


def test_reads_the_blocks_of_the_largest_index_scores(view, slow, path) -> None:
    """I(t, s) = sum_j w(t, j) ReLU(q(t, j) . k(s)), one choice for all heads of the layer."""
    layer = scorer.load(path)[view.layer]
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
    expected = slow.best_blocks(view, slow.row_shares(view, scores, 1), 4)
    slow.same(view, Indexer(4, path)(view), expected)


def test_a_file_for_another_model_or_none_is_refused(make_view, path, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"trained on queries and keys of \(64, 32\)"):
        Indexer(path=path)(make_view(300, heads=2))
    with pytest.raises(ConfigError, match="has 4 layers"):
        Indexer(path=path)(make_view(300, layer=4))
    with pytest.raises(ConfigError, match="make one: python -m"):
        Indexer(path=tmp_path / "none.safetensors")(make_view(300))
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="holds no indexer"):
        Indexer(path=torn)(make_view(300))


def test_training_lowers_the_divergence_and_beats_the_window(make_view) -> None:
    """The heads' mean attention of one layer, of whose windows the last is not trained on."""
    recorder = study.Recorder(rows=64, seed=0)
    for seed in range(5):
        assert recorder(make_view(400, seed=seed, layer=0, sharpness=3.0)) is None
    examples = recorder.examples[0]
    for example in examples:
        torch.testing.assert_close(example.target.float().sum(-1), torch.ones(64), rtol=0, atol=5e-3)
    arguments = SimpleNamespace(heads=2, dimensions=8, epochs=60, rate=1e-2, seed=0)
    first = study.initial(examples[0], 2, 8, 0)
    trained = study.fitted(examples[:4], arguments, 0)
    before, after = (study.held_masses(x, examples[4:], 32) for x in (first, trained))
    assert after["kl"] < before["kl"] - 0.1
    assert after["exact"] >= after["indexer"] > before["indexer"]
    assert after["indexer"] > after["window"]


def test_the_file_says_how_it_was_made(path) -> None:
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["about"]) == {"seed": 1}
        assert {file.get_tensor(name).dtype for name in scorer.NAMES} == {torch.float16}


def test_the_bundled_file_fits_the_bundled_model_and_beats_the_window() -> None:
    layers = scorer.load(scorer.DEMO_WEIGHTS)
    assert len(layers) == 8 and layers[0].query.shape[0] * layers[0].query.shape[1] == 8 * 64
    assert scorer.DEMO_WEIGHTS.stat().st_size < 300_000
    with safe_open(scorer.DEMO_WEIGHTS, "pt") as file:
        about = json.loads(file.metadata()["about"])
    assert about["split"] == "train" and about["command"].startswith("python -m routesparse")
    for held in about["held_out_mass"]:
        assert held["window"] < held["indexer"] <= held["exact"]
