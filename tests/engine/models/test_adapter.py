"""A low-rank adapter is merged as PEFT would apply it, and refused where it does not fit. No GPU."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from routesparse.engine import paths
from routesparse.engine.errors import ModelError
from routesparse.engine.models import adapter
from routesparse.engine.models.adapter import CONFIG, FACTORS, merge

RANK, ALPHA = 4, 8
DEMO = paths.DATA / "models" / "demo"
Change = Callable[[Path, Path], object]


@pytest.fixture
def base(tmp_path, tiny_model) -> Path:
    return tiny_model.save(tmp_path / "base")


@pytest.fixture
def made(base, tmp_path) -> Path:
    """An adapter of the base, of every projection."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    torch.manual_seed(1)
    factors = {}
    for name, weight in load_file(base / "model.safetensors").items():
        if name.split(".")[-2] in adapter.PROJECTIONS:
            outputs, inputs = weight.shape
            module = f"base_model.model.{name.removesuffix('.weight')}"
            factors[f"{module}.lora_A.weight"] = torch.randn(RANK, inputs) * 0.3
            factors[f"{module}.lora_B.weight"] = torch.randn(outputs, RANK) * 0.3
    save_file(factors, folder / FACTORS)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    config[adapter.BASE_SHA256] = hashlib.sha256((base / "model.safetensors").read_bytes()).hexdigest()
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


@torch.no_grad()
def test_the_merged_folder_is_a_model_that_answers_as_base_and_factors_together(base, made, tmp_path):
    out, ids = tmp_path / "merged", torch.randint(0, 256, (2, 40))
    adapter.main(["--base", str(base), "--adapter", str(made), "--out", str(out)])
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    plain, factors = model(ids).logits, load_file(made / FACTORS)
    for name, module in model.named_modules():
        if name.split(".")[-1] in adapter.PROJECTIONS:
            a, b = (factors[f"base_model.model.{name}.lora_{one}.weight"] for one in "AB")
            module.register_forward_hook(
                lambda _, given, found, a=a, b=b: found + ALPHA / RANK * (given[0] @ a.T) @ b.T
            )
    expected = model(ids).logits
    merged = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)(ids).logits
    torch.testing.assert_close(merged, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert not torch.allclose(plain, merged, atol=0.1 * float(merged.abs().max()))
    assert AutoTokenizer.from_pretrained(out)("a").input_ids


def test_the_shipped_adapter_fits_the_bundled_model(tmp_path):
    merge(DEMO, DEMO.parent / "demo-stories", tmp_path / "merged")
    before, after = (load_file(folder / "model.safetensors") for folder in (DEMO, tmp_path / "merged"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys() and len(changed) == 7 * 8


def config(**changes: object) -> Change:
    def change(base: Path, folder: Path) -> None:
        (folder / CONFIG).write_text(json.dumps(json.loads((folder / CONFIG).read_text()) | changes))

    return change


def factors(change: Callable[[dict[str, torch.Tensor], str], object]) -> Change:
    def changed(base: Path, folder: Path) -> None:
        found = load_file(folder / FACTORS)
        change(found, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")
        save_file(found, folder / FACTORS)

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
        (config(peft_type="IA3"), "peft_type is .*LORA"),
        (config(r=0), "r is 0"),
        (config(r=RANK + 1), f"at rank {RANK + 1}"),
        (config(lora_alpha=float("nan")), "lora_alpha is NaN"),
        (config(lora_alpha=1e300), "is not finite"),
        (config(use_rslora=True), "sets use_rslora: this merges plain LoRA alone"),
        (config(alpha_pattern={"q_proj": 1}, bias="all"), "sets bias, alpha_pattern"),
        (cut_factors, "is corrupt"),
        (factors(lambda found, name: found.pop(name)), "lacks .*q_proj.lora_A"),
        (factors(lambda found, name: found.update({f"{name}.x": found[name] + 0})), "no weight for"),
        (factors(lambda found, name: found.update({name: found[name][:, 1:] + 0})), r"\[4, 31\]"),
        (factors(lambda found, name: found[name].fill_(torch.nan)), "NaN"),
        (other_base, "was made for weights of sha256"),
        (lambda base, folder: (base / "tokenizer.json").unlink(), "has no tokenizer.json"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(base, made, tmp_path, change, said):
    change(base, made)
    with pytest.raises(ModelError, match=said):
        merge(base, made, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_command_says_a_refusal_in_one_line(base, made, capsys):
    with pytest.raises(SystemExit, match="2"):
        adapter.main(["--base", str(base), "--adapter", str(made), "--out", str(base)])
    assert "is the base's or the adapter's own folder; pass another" in capsys.readouterr().err
