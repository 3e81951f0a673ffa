"""A model's folder: its configuration, its tokenizer, the headers of its weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fuzzed.target import Target, json_bytes, tensors_like

from routesparse.engine import errors, paths
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


def _safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
    return len(header).to_bytes(8, "little") + header + np.zeros(64, "<f4").tobytes()


WEIGHTS = _safetensors()
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
}
