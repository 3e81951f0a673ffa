"""A low-rank adapter in PEFT's format, merged into the model that it was trained on.

    python -m routesparse.engine.models.adapter --base data/models/demo --adapter data/models/demo-stories \\
        --out .cache/models/demo-stories

LoRA (Hu et al. 2021, arXiv:2106.09685): the weight W [out, in] of a projection becomes W + alpha / r B A, with A
[r, in] and B [out, r]. An adapter's folder has adapter_config.json and adapter_model.safetensors; a field of our own,
BASE_SHA256, names the weights that it was made for. Errors: ModelError, for all that can be wrong with an adapter or
its base.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from routesparse.engine.errors import ModelError, first_line
from routesparse.engine.files.plain_files import read_bounded, read_json
from routesparse.engine.models.files import check_folder
from routesparse.engine.schema import Real, Text, Whole, checked, in_file

if TYPE_CHECKING:
    from torch import Tensor

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CONFIG, FACTORS = "adapter_config.json", "adapter_model.safetensors"
BASE_SHA256 = "routesparse_base_sha256"
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


def merge(base: Path, adapter: Path, out: Path) -> None:
    """Write the base with the adapter added to its weights as an ordinary model folder.

    The sum is made in float32 and kept in the base's type. Nothing is written before all is known to fit.
    """
    from safetensors.torch import save_file

    check_folder(base)
    if out.resolve() in (base.resolve(), adapter.resolve()):
        raise ModelError(f"--out {out} is the base's or the adapter's own folder; pass another")
    config = _read_config(adapter)
    content = _read(base / _WEIGHTS, _MOST_WEIGHT_BYTES)
    found = hashlib.sha256(content).hexdigest()
    if found != config.made_for:
        raise ModelError(
            f"adapter {adapter.name!r} was made for weights of sha256 {config.made_for[:16]}..., {base / _WEIGHTS} has "
            f"{found[:16]}...; pass the --base that it was trained on"
        )
    state = _tensors(content, base / _WEIGHTS)
    factors = _tensors(_read(adapter / FACTORS, _MOST_FACTOR_BYTES), adapter / FACTORS)
    for name in filter(_WEIGHT_NAME.fullmatch, list(state)):
        module = f"base_model.model.{name.removesuffix('.weight')}"
        first, second = (_factor(factors, f"{module}.lora_{one}.weight", adapter) for one in "AB")
        outputs, inputs = state[name].shape
        if first.shape != (config.r, inputs) or second.shape != (outputs, config.r):
            raise ModelError(
                f"{adapter / FACTORS} has factors of {list(second.shape)} and {list(first.shape)} for {name} "
                f"{[outputs, inputs]} at rank {config.r}; train the adapter again"
            )
        scale = config.lora_alpha / config.r
        state[name] = (state[name].float() + scale * (second @ first)).to(state[name].dtype)
        if not state[name].isfinite().all():
            raise ModelError(f"{name} merged with {adapter.name!r} is not finite; train the adapter again")
    if factors:
        raise ModelError(f"{adapter / FACTORS} has {min(factors)}, which the base has no weight for")
    out.mkdir(parents=True, exist_ok=True)
    for file in _COPIED:
        if (base / file).is_file():
            shutil.copyfile(base / file, out / file)
    partial = out / f"{_WEIGHTS}.partial"
    save_file(state, partial, metadata={"format": "pt"})
    partial.replace(out / _WEIGHTS)


def _factor(factors: dict[str, Tensor], key: str, adapter: Path) -> Tensor:
    """Take a factor out, in float32."""
    if key not in factors:
        raise ModelError(f"{adapter / FACTORS} lacks {key}; train the adapter again")
    factor = factors.pop(key).float()
    if not factor.isfinite().all():
        raise ModelError(f"{adapter / FACTORS} holds NaN or infinity in {key}; train the adapter again")
    return factor


def _read_config(adapter: Path) -> _Config:
    """What changes PEFT's arithmetic is refused."""
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
    return found


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
