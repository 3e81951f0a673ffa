"""Low-rank adapters: trained, exported, merged, and refused where they do not fit. No GPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from routesparse.engine.errors import ModelError
from routesparse.engine.lab.training import adapter, adapter_card, train
from routesparse.engine.lab.training.adapter import (
    CONFIG,
    FACTORS,
    Adapted,
    adapt,
    export_adapter,
    load_factors,
    merge,
)
from routesparse.engine.lab.training.batches import Phase
from routesparse.engine.lab.training.model import Llama, Shape, export, load_weights

DEMO = Path(__file__).resolve().parents[4] / "data" / "models" / "demo"
TINY = Shape(hidden=64, mlp=128, heads=2, kv_heads=1, layers=2)
RANK = 4
TEXT = " ".join(f"Sentence {i} of a long quiet story about the sea." for i in range(2000))


def on_a_grid(tensor: torch.Tensor, step: float, most: int) -> torch.Tensor:
    """Random whole multiples of a step, so that sums of products of them are exact in bfloat16."""
    return torch.randint(-most, most + 1, tensor.shape).float() * step


@pytest.fixture
def base(tmp_path) -> Path:
    """A tiny model with the bundled model's tokenizer."""
    torch.manual_seed(0)
    model = Llama(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(on_a_grid(parameter, 2**-6, 16))
    export(model, tmp_path / "base")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, tmp_path / "base" / name)
    return tmp_path / "base"


def adapted_model(base: Path) -> Llama:
    """The base with factors that are not zero."""
    model = Llama(TINY)
    load_weights(model, base)
    adapt(model, RANK)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Adapted):
                module.lora_A.copy_(on_a_grid(module.lora_A, 1.0, 1))
                module.lora_B.copy_(on_a_grid(module.lora_B, 2**-6, 1))
    return model


@pytest.fixture
def exported(base, tmp_path) -> Path:
    export_adapter(adapted_model(base), base, tmp_path / "adapter")
    return tmp_path / "adapter"


def test_a_new_adapter_changes_nothing_and_only_its_factors_are_trained(base):
    model = Llama(TINY)
    load_weights(model, base)
    ids = torch.randint(0, TINY.vocabulary, (2, 20))
    before = model.logits(ids)
    adapt(model, RANK)
    assert torch.equal(model.logits(ids), before)
    loss, _, _ = model.loss(ids[:, :-1], ids[:, 1:], torch.ones(2, 19))
    loss.backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(trained) == 2 * 7 * TINY.layers and all(".lora_" in name for name in trained)
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == trained
    # A's gradient is zero as long as B is.
    assert all(p.grad.abs().sum() > 0 for name, p in model.named_parameters() if name.endswith("lora_B"))


# torch.compile looks whether a weight has a gradient, and a computed one warns of that.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_functions_pass_the_gradients_on(base):
    """What training compiles, by a backend that needs no compiler."""
    grads = []
    for compiled in (False, True):
        torch.manual_seed(1)
        model = adapted_model(base)
        ids = torch.randint(0, TINY.vocabulary, (2, 20))
        if compiled:
            model._before = torch.compile(model._before, backend="aot_eager", dynamic=False)
            model._after = torch.compile(model._after, backend="aot_eager", dynamic=False)
            model._head = torch.compile(model._head, backend="aot_eager", dynamic=False)
        loss, _, _ = model.loss(ids[:, :-1], ids[:, 1:], torch.ones(2, 19))
        loss.backward()
        grads.append([p.grad for p in model.parameters() if p.requires_grad])
    for ours, theirs in zip(*grads, strict=True):
        assert ours.abs().sum() > 0
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * float(ours.abs().max()))


def test_training_goes_on_from_an_adapter_s_factors(base, exported):
    model = Llama(TINY)
    load_weights(model, base)
    adapt(model, RANK)
    load_factors(model, base, exported)
    found = {name: p for name, p in model.named_parameters() if ".lora_" in name}
    stored = load_file(exported / FACTORS)
    assert len(found) == len(stored) == 2 * 7 * TINY.layers
    for name, factor in found.items():
        assert torch.equal(factor, stored[f"base_model.model.{name}.weight"].float())


def test_factors_of_another_rank_are_refused(base, exported):
    model = Llama(TINY)
    load_weights(model, base)
    adapt(model, RANK + 1)
    with pytest.raises(ModelError, match=f"pass --adapter {RANK}"):
        load_factors(model, base, exported)


def test_training_goes_on_from_no_other_scale_or_base(base, exported):
    model = adapted_model(base)
    change_config(lora_alpha=RANK)(base, exported)
    with pytest.raises(ModelError, match="alpha / r = 1; training goes on from 2 alone"):
        load_factors(model, base, exported)
    with pytest.raises(ModelError, match="was made for weights of sha256"):
        load_factors(model, DEMO, exported)


def test_the_shipped_adapter_fits_the_bundled_model_and_its_card_is_of_its_files(tmp_path):
    shipped = DEMO.parent / "demo-stories"
    merge(DEMO, shipped, tmp_path / "merged")
    before, after = (load_file(folder / "model.safetensors") for folder in (DEMO, tmp_path / "merged"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys() and len(changed) == 7 * 8
    assert adapter_card.render(shipped) == (shipped / "README.md").read_text()


def test_the_merged_folder_gives_the_adapted_model_s_logits(base, tmp_path):
    """The weights are on a grid that bfloat16 holds exactly, so that only the arithmetic of both forms may differ."""
    adapted, exported = adapted_model(base), tmp_path / "adapter"
    export_adapter(adapted, base, exported)
    adapter.main(
        ["--base", str(base), "--adapter", str(exported), "--out", str(tmp_path / "merged")],
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    ids = torch.randint(0, TINY.vocabulary, (2, 40))
    with torch.no_grad():
        ours, theirs = adapted.logits(ids), model(ids).logits
    scale = float(ours.abs().max())
    assert torch.allclose(ours, theirs, atol=2e-5 * scale)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        assert not torch.allclose(plain(ids).logits, theirs, atol=0.1 * scale)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged")("a").input_ids


def test_the_folder_is_what_peft_reads(base, exported):
    config = json.loads((exported / CONFIG).read_text())
    assert (config["peft_type"], config["task_type"], config["bias"]) == ("LORA", "CAUSAL_LM", "none")
    assert (config["r"], config["lora_alpha"]) == (RANK, adapter.SCALE * RANK)
    assert config["base_model_name_or_path"] == base.as_posix()
    factors = load_file(exported / FACTORS)
    assert len(factors) == 2 * 7 * TINY.layers and {f.dtype for f in factors.values()} == {torch.bfloat16}
    assert factors["base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"].shape == (RANK, TINY.mlp)
    assert factors["base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight"].shape == (64, RANK)


def change_config(**changes) -> Callable[[Path, Path], None]:
    def change(base: Path, folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | changes))

    return change


def change_factors(change: Callable[[dict[str, torch.Tensor], str], object]) -> Callable[[Path, Path], None]:
    def changed(base: Path, folder: Path) -> None:
        factors = load_file(folder / FACTORS)
        change(factors, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")
        save_file(factors, folder / FACTORS)

    return changed


def other_base(base: Path, folder: Path) -> None:
    weights = load_file(base / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, base / "model.safetensors")


def cut_factors(base: Path, folder: Path) -> None:
    (folder / FACTORS).write_bytes((folder / FACTORS).read_bytes()[:-10])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda base, folder: (folder / CONFIG).unlink(), "pass an --adapter"),
        (lambda base, folder: (folder / FACTORS).unlink(), "can't be read"),
        (lambda base, folder: (folder / CONFIG).write_text("{"), "restore the file"),
        (change_config(peft_type="IA3"), "peft_type is .*LORA"),
        (change_config(r=0), "r is 0"),
        (change_config(r=RANK + 1), f"at rank {RANK + 1}"),
        (change_config(lora_alpha=float("nan")), "lora_alpha is NaN"),
        (change_config(lora_alpha=1e300), "is not finite"),
        (change_config(use_rslora=True), "sets use_rslora: this merges plain LoRA alone"),
        (change_config(alpha_pattern={"q_proj": 1}, bias="all"), "sets bias, alpha_pattern"),
        (cut_factors, "is corrupt"),
        (change_factors(lambda factors, name: factors.pop(name)), "lacks .*q_proj.lora_A"),
        (change_factors(lambda factors, name: factors.update({f"{name}.x": factors[name] + 0})), "no weight for"),
        (change_factors(lambda factors, name: factors.update({name: factors[name][:, 1:] + 0})), r"\[4, 63\]"),
        (change_factors(lambda factors, name: factors[name].fill_(torch.nan)), "NaN"),
        (other_base, "was made for weights of sha256"),
        (lambda base, folder: (base / "tokenizer.json").unlink(), "has no tokenizer.json"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_written(base, exported, tmp_path, change, said):
    change(base, exported)
    with pytest.raises(ModelError, match=said):
        merge(base, exported, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_command_says_a_refusal_in_one_line(base, exported, capsys):
    with pytest.raises(SystemExit, match="2"):
        adapter.main(["--base", str(base), "--adapter", str(exported), "--out", str(base)])
    assert "is the base's or the adapter's own folder; pass another" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--adapter", "4"], ["--adapter", "4", "--adapter-optimiser", "muon"], []]
)
def test_training_on_stories_writes_a_model_that_differs_from_its_base(tmp_path, base, options, monkeypatch):
    (tmp_path / "data" / "prose" / "train").mkdir(parents=True)
    (tmp_path / "data" / "prose" / "train" / "story.txt").write_text(TEXT)
    (tmp_path / "report.json").write_text('{"dropped": {}}')
    monkeypatch.setattr(train, "LOG_EVERY", 1)
    argv = [
        *("--data", str(tmp_path / "data"), "--report", str(tmp_path / "report.json")),
        *("--tokenizer", str(DEMO), "--out", str(tmp_path / "out"), "--weights", str(base)),
        *("--tasks", "stories", "--tokens", "1024", "--workers", "1", "--minutes", "5", "--no-compile"),
    ]
    phases = (Phase(1.0, {1024: 1.0}, 0.0),)
    train.main([*argv, *options, "--steps", "2"], TINY, phases)
    train.main([*argv, *options, "--steps", "3", "--resume"], TINY, phases)
    rows = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3] and rows[0]["loss_answer"] > 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["documents"] == {"prose/story": len(TEXT) + 1}
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "out" / "model"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed if options else "model.embed_tokens.weight" in changed
    assert all("proj" in name for name in changed) == bool(options)
    if options:
        merge(base, tmp_path / "out" / "adapter", tmp_path / "again")
        again = load_file(tmp_path / "again" / "model.safetensors")
        assert all(torch.equal(again[name], after[name]) for name in after)


def test_an_adapter_without_a_model_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        train.parse(["--data", "d", "--report", "r", "--tokenizer", "t", "--out", "o", "--adapter", "8"])
    assert "pass its folder by --weights" in capsys.readouterr().err
