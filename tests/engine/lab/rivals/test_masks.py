"""A rule's block mask of a whole prefill. CPU only."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors import safe_open

from routesparse.engine.errors import ConfigError, UnsupportedModelError
from routesparse.engine.lab.rivals.masks import MaskRecorder, block_masks, save_mask
from routesparse.engine.lab.rivals.patterns.sparse_transformer import FixedPattern
from routesparse.engine.lab.rivals.rule import RuleRouter
from routesparse.engine.lab.rivals.scorers.quest import Quest
from routesparse.engine.lab.rivals.static_a_shape import Window
from routesparse.engine.lab.rivals.trianglemix import TriangleMix
from routesparse.engine.lab.studies import mask as study
from routesparse.engine.models.load import load_model
from routesparse.engine.runtime.transformers import routed_by


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model):
    return tiny_model.save(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize("rule", [Quest(3), Window(40), TriangleMix(9)], ids=["quest", "window", "dense"])
def test_the_mask_is_what_the_plan_reads(view, rule) -> None:
    recorder = MaskRecorder(rule)
    found = recorder(view)
    mask = recorder.masks[view.layer]
    n = view.tokens
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    pairs = mask.repeat_interleave(view.block_q, 1).repeat_interleave(view.block_k, 2)[:, :n, :n] & causal
    read = causal.expand_as(pairs) if found is None else view.plan(found, extras=False).to_mask()[0]
    assert pairs.equal(read)


def test_a_prefill_by_a_rule_yields_the_mask_of_every_layer_and_head(folder) -> None:
    loaded = load_model(str(folder), device="cpu")
    ids = torch.randint(0, 250, (700,), generator=torch.Generator().manual_seed(0)).tolist()
    mask = block_masks(loaded.model, ids, Quest(4))
    assert mask.dtype == torch.bool and mask.shape == (2, 2, 6, 11)
    assert mask.sum() < 2 * 2 * sum(min(11, 2 * i + 2) for i in range(6))
    with pytest.raises(ConfigError, match="FixedPattern reads single columns"):
        block_masks(loaded.model, ids, FixedPattern())


def test_the_command_writes_a_file_that_safetensors_reads(folder, tmp_path, capsys) -> None:
    prompt, out = tmp_path / "prompt.txt", tmp_path / "mask.safetensors"
    prompt.write_text("The harbour was quiet in the morning. " * 20)
    study.main(
        [str(prompt), "--model", str(folder), "--method", "quest=4", "--tokens", "600", "--out", str(out)]
    )
    with safe_open(out, "pt") as file:
        assert file.metadata()["block_q"] == "128" and file.metadata()["block_k"] == "64"
        assert file.get_tensor("mask").shape == (2, 2, 5, 10)
    assert "600 tokens" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no selection rule"):
        study.main([str(prompt), "--model", str(folder), "--method", "routesparse", "--out", str(out)])


def test_a_mask_is_saved_with_its_sizes(tmp_path) -> None:
    mask = torch.rand(2, 3, 4, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    save_mask(tmp_path / "m.safetensors", mask, block_q=32, block_k=16, about="here")
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.get_tensor("mask").equal(mask)
        assert file.metadata() == {"block_q": "32", "block_k": "16", "about": "here"}


@pytest.fixture(scope="module")
def capped():
    """A model with a soft cap and a sliding window in every other layer."""
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=4_096,
        attn_logit_softcapping=0.5,
        attn_implementation="eager",
    )
    model = transformers.Gemma2ForCausalLM(config).eval()
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data *= 40  # logits that a cap changes
    return model


def test_a_rule_that_reads_every_block_keeps_the_soft_cap(capped) -> None:
    ids = torch.randint(0, 64, (1, 300), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = capped(ids).logits
        with routed_by(capped, RuleRouter(Window(10_000), extras=False)):
            torch.testing.assert_close(capped(ids).logits, wanted, atol=1e-5, rtol=0)
        capped.config.attn_logit_softcapping = None
        for layer in capped.model.layers:
            layer.self_attn.attn_logit_softcapping = None
        assert (capped(ids).logits - wanted).abs().max() > 1e-4, "the cap has to matter"


def test_a_mask_of_a_model_with_sliding_windows_is_refused(capped) -> None:
    capped.config.sliding_window = 64
    for layer in capped.model.layers:
        if layer.self_attn.sliding_window is not None:
            layer.self_attn.sliding_window = 64
    with pytest.raises(UnsupportedModelError, match="layer 0 was not served by the rule"):
        block_masks(capped, [1] * 300, Window(128))
