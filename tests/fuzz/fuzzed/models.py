"""A model's folder: its configuration, its tokenizer, the headers of its weights; and an adapter's."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

from fuzzed.target import Target, json_bytes, tensors_like

from routesparse.engine import errors, paths
from routesparse.engine.demo_model import adapter
from routesparse.engine.models import files as model_files
from routesparse.engine.models import token_count


def _model(name: str) -> Callable[[bytes, Path], object]:
    def run(content: bytes, folder: Path) -> None:
        (folder / name).write_bytes(content)
        token_count._read.cache_clear()
        refused = []
        for parse in (model_files.check_folder, model_files.revision_of, token_count._files):
            try:
                parse(folder)
            except errors.ModelError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    return run


def _copy_model(folder: Path) -> None:
    """A folder with the bundled model's small files and weights of a few bytes."""
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(paths.DATA / "models" / "demo" / name, folder / name)
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    (folder / "model.safetensors").write_bytes(WEIGHTS)


def _adapter(name: str) -> Callable[[bytes, Path], object]:
    def run(content: bytes, folder: Path) -> None:
        (folder / "adapter" / name).write_bytes(content)
        adapter.merge(folder, folder / "adapter", folder / "merged")

    return run


def _copy_adapter(folder: Path) -> None:
    """A model of one projection, and an adapter for it."""
    _copy_model(folder)
    (folder / "model.safetensors").write_bytes(PROJECTION)
    (folder / "adapter").mkdir()
    (folder / "adapter" / adapter.CONFIG).write_text(json.dumps(ADAPTER))
    (folder / "adapter" / adapter.FACTORS).write_bytes(FACTORS)


def _safetensors(**shapes: list[int]) -> bytes:
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(at)


WEIGHTS = _safetensors(w=[64])
_PROJECTION = "model.layers.0.self_attn.q_proj"
PROJECTION = _safetensors(**{f"{_PROJECTION}.weight": [32, 16]})
FACTORS = _safetensors(
    **{
        f"base_model.model.{_PROJECTION}.lora_A.weight": [8, 16],
        f"base_model.model.{_PROJECTION}.lora_B.weight": [32, 8],
    }
)
ADAPTER = {
    "peft_type": "LORA",
    "r": 8,
    "lora_alpha": 16,
    "target_modules": list(adapter.PROJECTIONS),
    adapter.BASE_SHA256: hashlib.sha256(PROJECTION).hexdigest(),
}
TOKENIZER = json.dumps(
    {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}}
).encode()
CONFIG = json.loads((paths.DATA / "models" / "demo" / "config.json").read_text())
TARGETS: dict[str, Target] = {
    "model config": Target(json_bytes(CONFIG), _model("config.json"), (errors.ModelError,), _copy_model),
    "model tokenizer": Target(
        json_bytes(json.loads(TOKENIZER)), _model("tokenizer.json"), (errors.ModelError,), _copy_model
    ),
    "model weights": Target(
        tensors_like(WEIGHTS), _model("model.safetensors"), (errors.ModelError,), _copy_model
    ),
    "adapter config": Target(
        json_bytes(ADAPTER), _adapter(adapter.CONFIG), (errors.ModelError,), _copy_adapter
    ),
    "adapter factors": Target(
        tensors_like(FACTORS), _adapter(adapter.FACTORS), (errors.ModelError,), _copy_adapter
    ),
}
