"""A rule's block mask of a whole prefill. CPU only."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open

from routesparse.engine.baselines.masks import MaskRecorder, block_masks, save_mask
from routesparse.engine.baselines.patterns.sparse_transformer import FixedPattern
from routesparse.engine.baselines.scorers.quest import Quest
from routesparse.engine.baselines.static_a_shape import Window
from routesparse.engine.baselines.trianglemix import TriangleMix
from routesparse.engine.errors import ConfigError
from routesparse.engine.evaluation.studies import mask as study
from routesparse.engine.models.load import load_model


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
