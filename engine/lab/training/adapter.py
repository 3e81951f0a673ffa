"""A low-rank adapter of a model: trained beside frozen weights, kept in PEFT's format, merged into a model folder.

    python -m routesparse.engine.lab.training.adapter --base data/models/demo --adapter data/models/demo-stories \\
        --out .cache/models/demo-stories

LoRA (Hu et al. 2021, arXiv:2106.09685): the weight W [out, in] of a projection becomes W + alpha / r B A, with A
[r, in] drawn from a normal distribution and B [out, r] zero at first; A and B alone are trained. All seven projections
of every layer have one.

An adapter's folder is one of PEFT's, adapter_config.json and adapter_model.safetensors. A field of our own,
BASE_SHA256, names the weights that it was made for; PEFT 0.21 loads the folder and warns of that field alone. Errors:
ModelError, for all that can be wrong with an adapter or its base.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn

from routesparse.engine.errors import ModelError
from routesparse.engine.lab.training.model import Llama
from routesparse.engine.models.files import check_folder, first_line
from routesparse.engine.plain_files import read_bounded, read_json
from routesparse.engine.schema import Real, Text, Whole, checked, in_file

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CONFIG, FACTORS = "adapter_config.json", "adapter_model.safetensors"
BASE_SHA256 = "routesparse_base_sha256"
SCALE = 2  # alpha / r
_WEIGHTS = "model.safetensors"
_COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_MOST_CONFIG_BYTES = 1 << 20
_MOST_FACTOR_BYTES = 1 << 26
_MOST_WEIGHT_BYTES = 1 << 30
_MOST_RANK = 1024
_OTHER_ARITHMETIC = (
    *("use_rslora", "use_dora", "fan_in_fan_out", "lora_bias", "bias"),
    *("rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform"),
)
_WEIGHT_NAME = re.compile(rf"model\.layers\.\d+\.\w+\.(?:{'|'.join(PROJECTIONS)})\.weight")


@in_file(more=True, made_for=BASE_SHA256)
@dataclass(frozen=True)
class _Config:
    """What is read of CONFIG."""

    peft_type: Literal["LORA"]
    r: Annotated[int, Whole(1, _MOST_RANK)]
    lora_alpha: Real
    made_for: Text


class Adapted(nn.Module):
    """A projection whose `weight` [out, in] is its frozen one and the product of two trained factors."""

    def __init__(self, base: Tensor, rank: int):
        super().__init__()
        outputs, inputs = base.shape
        self.base: Tensor
        self.register_buffer("base", base.detach())
        self.lora_A = nn.Parameter(torch.randn(rank, inputs, device=base.device) * inputs**-0.5)
        self.lora_B = nn.Parameter(torch.zeros(outputs, rank, device=base.device))

    @property
    def weight(self) -> Tensor:
        """W + alpha / r B A, [out, in]."""
        return self.base + SCALE * (self.lora_B @ self.lora_A)


def adapt(model: Llama, rank: int) -> None:
    """Freeze a model and give every projection factors of this rank; they are all that is trained afterwards."""
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        block, _, projection = name.rpartition(".")
        if projection in PROJECTIONS:
            adapted = Adapted(cast(nn.Linear, module).weight, rank)
            setattr(model.get_submodule(block), projection, adapted)


def load_factors(model: Llama, base: Path, adapter: Path) -> None:
    """Let training go on from an adapter's factors. Errors: ModelError where they are not of this base and rank."""
    scale, rank, made_for = _read_config(adapter)
    _check_base(adapter, made_for, base, _read(base / _WEIGHTS, _MOST_WEIGHT_BYTES))
    if scale != SCALE:
        raise ModelError(f"{adapter / CONFIG} has alpha / r = {scale:g}; training goes on from {SCALE} alone")
    factors = _tensors(_read(adapter / FACTORS, _MOST_FACTOR_BYTES), adapter / FACTORS)
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            for factor, key in zip(
                (module.lora_A, module.lora_B), _factor_names(f"{name}.weight"), strict=True
            ):
                found = _factor(factors, key, adapter)
                if found.shape != factor.shape:
                    raise ModelError(
                        f"{adapter / FACTORS} has {key} of {list(found.shape)} and rank {rank}, the model takes "
                        f"{list(factor.shape)}; pass --adapter {rank}"
                    )
                factor.data.copy_(found)
    _check_all_used(factors, adapter)


def export_adapter(model: Llama, base: Path, folder: Path) -> None:
    """Write the factors of an adapted model in bf16, and what they belong to, as PEFT does.

    base: the folder of the weights that training began with. Errors: ModelError where it can't be read.
    """
    from safetensors.torch import save_file

    adapted = {name: module for name, module in model.named_modules() if isinstance(module, Adapted)}
    factors = {
        key: getattr(module, key.split(".")[-2]).detach().to("cpu", torch.bfloat16).contiguous()
        for name, module in adapted.items()
        for key in _factor_names(f"{name}.weight")
    }
    rank = next(iter(adapted.values())).lora_A.shape[0]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.as_posix(),
        "r": rank,
        "lora_alpha": SCALE * rank,
        "lora_dropout": 0.0,
        "target_modules": list(PROJECTIONS),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        BASE_SHA256: hashlib.sha256(_read(base / _WEIGHTS, _MOST_WEIGHT_BYTES)).hexdigest(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(factors, folder / FACTORS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n")


def merge(base: Path, adapter: Path, out: Path) -> None:
    """Write the base with the adapter added to its weights as an ordinary model folder.

    The sum is made in float32 and kept in the base's type. Errors: ModelError for an adapter or a base that is missing,
    corrupt, or not of the other.
    """
    from safetensors.torch import save_file

    check_folder(base)
    if out.resolve() in (base.resolve(), adapter.resolve()):
        raise ModelError(f"--out {out} is the base's or the adapter's own folder; pass another")
    scale, rank, made_for = _read_config(adapter)
    content = _read(base / _WEIGHTS, _MOST_WEIGHT_BYTES)
    _check_base(adapter, made_for, base, content)
    state = _tensors(content, base / _WEIGHTS)
    factors = _tensors(_read(adapter / FACTORS, _MOST_FACTOR_BYTES), adapter / FACTORS)
    for name in filter(_WEIGHT_NAME.fullmatch, list(state)):
        first, second = (_factor(factors, key, adapter) for key in _factor_names(name))
        outputs, inputs = state[name].shape
        if first.shape != (rank, inputs) or second.shape != (outputs, rank):
            raise ModelError(
                f"{adapter / FACTORS} has factors of {list(second.shape)} and {list(first.shape)} for {name} "
                f"{[outputs, inputs]} at rank {rank}; train the adapter again"
            )
        state[name] = (state[name].float() + scale * (second @ first)).to(state[name].dtype)
        if not state[name].isfinite().all():
            raise ModelError(f"{name} merged with {adapter.name!r} is not finite; train the adapter again")
    _check_all_used(factors, adapter)
    out.mkdir(parents=True, exist_ok=True)
    for file in _COPIED:
        if (base / file).is_file():
            shutil.copyfile(base / file, out / file)
    partial = out / f"{_WEIGHTS}.partial"
    save_file(state, partial, metadata={"format": "pt"})
    partial.replace(out / _WEIGHTS)


def _check_base(adapter: Path, made_for: str, base: Path, content: bytes) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != made_for:
        raise ModelError(
            f"adapter {adapter.name!r} was made for weights of sha256 {made_for[:16]}..., {base / _WEIGHTS} has "
            f"{found[:16]}...; pass the --base that it was trained on"
        )


def _check_all_used(factors: dict[str, Tensor], adapter: Path) -> None:
    if factors:
        raise ModelError(f"{adapter / FACTORS} has {min(factors)}, which the base has no weight for")


def _factor_names(weight: str) -> tuple[str, str]:
    """PEFT's names of A and B for a weight of the model."""
    module = f"base_model.model.{weight.removesuffix('.weight')}"
    return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def _factor(factors: dict[str, Tensor], key: str, adapter: Path) -> Tensor:
    """Take a factor out, in float32. Errors: ModelError where it is not there or not finite."""
    if key not in factors:
        raise ModelError(f"{adapter / FACTORS} lacks {key}; train the adapter again")
    factor = factors.pop(key).float()
    if not factor.isfinite().all():
        raise ModelError(f"{adapter / FACTORS} holds NaN or infinity in {key}; train the adapter again")
    return factor


def _read_config(adapter: Path) -> tuple[float, int, str]:
    """alpha / r, r, and the sha256 of the base's weights. What changes PEFT's arithmetic is refused."""
    try:
        config = read_json(adapter / CONFIG, _MOST_CONFIG_BYTES)
        found = checked(_Config, config)
    except OSError as error:
        raise ModelError(f"{adapter / CONFIG} can't be read ({error.strerror}); pass an --adapter") from error
    except ValueError as error:
        raise ModelError(f"{adapter / CONFIG}: {first_line(error)}; restore the file") from error
    if others := [
        name for name in _OTHER_ARITHMETIC if config.get(name) not in (None, False, "none", {}, [])
    ]:
        raise ModelError(f"{adapter / CONFIG} sets {', '.join(others)}: this merges plain LoRA alone")
    return found.lora_alpha / found.r, found.r, found.made_for


def _read(file: Path, most_bytes: int) -> bytes:
    try:
        return read_bounded(file, most_bytes)
    except OSError as error:
        raise ModelError(f"{file} can't be read ({error.strerror}); restore the file") from error


def _tensors(content: bytes, file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelError(f"{file} is corrupt ({first_line(error)}); restore the file") from error


def main(argv: list[str] | None = None) -> None:
    """Merge an adapter with the model that it was trained on, into a folder that any --model takes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder of the model that was adapted")
    parser.add_argument("--adapter", type=Path, required=True, help=f"folder with {CONFIG} and {FACTORS}")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the merged model to")
    args = parser.parse_args(argv)
    try:
        merge(args.base, args.adapter, args.out)
    except ModelError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
