"""Random errors in the heads' outputs cost the KL that the Fisher information says. CPU, a tiny model."""

import pytest
import torch

from routesparse.engine.calibrate import fisher
from routesparse.engine.calibrate.fisher import head_fisher
from routesparse.engine.errors import UnsupportedModelError
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.models.load import load_model
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.transformers import routed_by
from tests.engine import tiny_shape

STRENGTH = 0.02


class Noise(AttentionRouter):
    """Dense attention, and independent errors in chosen layers and heads."""

    def __init__(self, strength):
        self.strength, self.generator = strength, torch.Generator().manual_seed(3)  # [L, H]

    def attend(self, inputs, *, layer, window=None):
        out = dense_attention(inputs, window)
        noise = torch.randn(out.shape, generator=self.generator)
        return out + noise * self.strength[layer].view(1, -1, 1, 1)


@pytest.fixture
def model(tiny_model, tmp_path):
    return load_model(str(tiny_model.save(tmp_path / "tiny"))).model


def test_independent_errors_cost_what_the_trace_says(model):
    # A tiny model is sure of nothing: sharper predictions, so that errors matter.
    with torch.no_grad():
        model.lm_head.weight.mul_(8)
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 256, (6, 160), generator=g)
    needed, before = [p.requires_grad for p in model.parameters()], model.config._attn_implementation
    found_fisher = head_fisher(model, ids.tolist(), seed=1)
    assert [p.requires_grad for p in model.parameters()] == needed
    assert model.config._attn_implementation == before
    layers, heads = found_fisher.shape
    assert (layers, heads) == (model.config.num_hidden_layers, model.config.num_attention_heads)
    assert (head_fisher(model, ids.tolist(), seed=1) == found_fisher).all() and (found_fisher > 0).all()
    width = model.config.hidden_size // heads
    for chosen in (torch.ones(layers, heads), torch.eye(layers, heads)):
        with torch.no_grad():
            exact = model(ids).logits.log_softmax(-1)
            with routed_by(model, Noise(STRENGTH * chosen)):
                found = model(ids).logits.log_softmax(-1)
        kl = float((exact.exp() * (exact - found)).sum(-1).mean())
        foretold = 0.5 * STRENGTH**2 * width * float((torch.as_tensor(found_fisher) * chosen).sum())
        assert foretold == pytest.approx(kl, rel=0.25)


def test_logits_in_chunks_give_the_same_information(model, monkeypatch):
    ids = [list(range(100))]
    whole = fisher.head_fisher(model, ids, seed=0)
    monkeypatch.setattr(fisher, "CHUNK", 100)
    assert fisher.head_fisher(model, ids, seed=0) == pytest.approx(whole)


def test_windows_stay_windows_and_soft_caps_are_refused():
    windowed = tiny_shape.decoder("Mistral", sliding_window=8)
    ids = torch.arange(40)[None] % 64
    with torch.no_grad():
        own = windowed(ids).logits
        with fisher._listening(windowed):
            torch.testing.assert_close(windowed(ids).logits, own)
    capped = tiny_shape.decoder("Gemma2", attn_logit_softcapping=5.0)
    before = capped.config._attn_implementation
    with pytest.raises(UnsupportedModelError, match="soft caps or sinks"):
        head_fisher(capped, ids.tolist(), seed=0)
    assert capped.config._attn_implementation == before
