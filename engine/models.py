"""Loading a model: the bundled one, a local folder, or a hub id; safetensors only, no remote code.

Everything that can be wrong with a folder is checked before the weights are read, and ends in one line that
says what to do (ModelError, or UnsupportedModelError for a family off the list).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.errors import ModelError

DEMO = "demo"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = [
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
]
_SAMPLES = 16
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for prefill, with what a run record says about it."""

    model: Any  # PreTrainedModel in eval mode, no gradients
    tokenizer: Any  # a fast tokenizer
    name: str  # "demo", the folder's name, or the hub id
    revision: str  # 16 hex digits: config, safetensors headers, sizes and sampled weights
    tokenizer_hash: str  # 16 hex digits
    max_tokens: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    device: str  # "cpu" or "cuda:0"
    dtype: str  # "float32" or "bfloat16"


def load_model(name_or_path: str = DEMO, *, device: str = "auto") -> LoadedModel:
    """Load "demo", a folder with config.json and *.safetensors, or a hub id (org/name).

    device: "auto" is the first GPU, else the CPU. The dtype is float32 on a CPU and bfloat16 on a GPU.
    Errors: ModelError, UnsupportedModelError.
    """
    folder, name = resolve(name_or_path)
    config = check_folder(folder)
    return _load(folder, name, config, device)


def resolve(name_or_path: str) -> tuple[Path, str]:
    """The folder of a model and the name that records use; a hub id is downloaded or taken from the cache.

    Errors: ModelError for an unknown name, a missing folder, or a hub that cannot be reached.
    """
    if name_or_path == DEMO:
        folder = paths.DATA / "models" / DEMO
        if not (folder / "config.json").is_file():
            raise ModelError(
                "the bundled model is missing from data/models/demo; restore that folder from git"
            )
        return folder, DEMO
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return folder, folder.resolve().name
    if folder.is_file():
        raise ModelError(f"model {name_or_path!r} is a file; pass the folder that holds it and config.json")
    if not _HUB_ID.fullmatch(name_or_path):
        raise ModelError(
            f"model {name_or_path!r} is unknown; pass {DEMO}, a folder with config.json, or a hub id org/name"
        )
    return _from_hub(name_or_path), name_or_path


def check_folder(folder: Path) -> dict[str, Any]:
    """The model's configuration, after checking everything that can be checked without reading weights.

    Errors: ModelError for missing or corrupt files, UnsupportedModelError for a family off the list.
    """
    from routesparse.engine.hf_refusals import check_family_name

    config = _read_json(folder, "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(
            f"{folder.name}/config.json names no model_type; save the model with save_pretrained"
        )
    check_family_name(config["model_type"])
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(
            f"model {folder.name!r} has no tokenizer.json; save its fast tokenizer in the folder"
        )
    _read_json(folder, "tokenizer.json")
    for file in weight_files(folder):
        _check_weights(file)
    return config


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, sorted. Errors: ModelError when there is none or one is missing."""
    if (folder / "model.safetensors.index.json").is_file():
        index = _read_json(folder, "model.safetensors.index.json")
        try:
            files = [folder / name for name in sorted(set(index["weight_map"].values()))]
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{folder.name}/model.safetensors.index.json has no weight_map; download the model again"
            ) from error
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = any(folder.glob("*.bin")) or any(folder.glob("*.gguf")) or any(folder.glob("*.pt"))
        what = "only weights in other formats" if others else "no weights"
        raise ModelError(f"model {folder.name!r} has {what}; RouteSparse reads *.safetensors only")
    missing = [file.name for file in files if file.parent != folder or not file.is_file()]
    if missing:
        raise ModelError(f"model {folder.name!r} lacks {missing[0]}; download the model again")
    return files


def revision_of(folder: Path) -> str:
    """Sixteen hex digits over config.json and, per weight file, name, size, header and sampled bytes.

    Samples tell two fine-tunes of one architecture apart without reading gigabytes.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in weight_files(folder):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as handle:
            header_bytes = int.from_bytes(handle.read(8), "little")
            digest.update(handle.read(header_bytes))
            data = size - 8 - header_bytes
            for sample in range(_SAMPLES):
                handle.seek(8 + header_bytes + data * sample // _SAMPLES)
                digest.update(handle.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def revision_of_model(model: Any) -> str:
    """The revision of a model in memory, from the files that it was loaded from.

    Errors: ModelError where these are unknown (weights made or changed in memory can't be told apart).
    """
    from huggingface_hub import try_to_load_from_cache

    source = str(model.name_or_path)
    folder = Path(source)
    if not folder.is_dir() and _HUB_ID.fullmatch(source):
        commit = getattr(model.config, "_commit_hash", None)
        config = try_to_load_from_cache(source, "config.json", revision=commit)
        folder = Path(config).parent if isinstance(config, str) else folder
    if not (folder / "config.json").is_file():
        raise ModelError(f"the files of this model are not known ({source!r}); load it with from_pretrained")
    return revision_of(folder)


@dataclass(frozen=True)
class ModelShape:
    """What a latency profile depends on, known without reading weights."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int


def shape_of(name_or_path: str = DEMO) -> ModelShape:
    """The attention shape of a model that load_model would accept. Errors: ModelError, UnsupportedModelError."""
    from transformers import AutoConfig

    folder, name = resolve(name_or_path)
    check_folder(folder)
    return _shape(name, AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True))


def _shape(name: str, config: Any) -> ModelShape:
    heads = config.num_attention_heads
    return ModelShape(
        name=name,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def _load(folder: Path, name: str, config: dict[str, Any], device: str) -> LoadedModel:
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from routesparse.engine.hf import check_supported

    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    local: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        with _no_progress_bars():
            tokenizer = AutoTokenizer.from_pretrained(folder, **local)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **local
            )
    # A folder that does not fit together ends in many types; each of them is the folder's fault.
    except StrictDataclassError as error:
        raise ModelError(f"{name}/config.json is wrong: {_first_line(error.__cause__ or error)}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ModelError(f"model {name!r} cannot be loaded: {_first_line(error)}; check its files") from error
    model, report = loaded
    absent = sorted(report["missing_keys"])
    if absent:
        raise ModelError(
            f"model {name!r} lacks {len(absent)} weights, such as {absent[0]}; use weights that fit"
        )
    check_supported(model)
    if not tokenizer.is_fast:
        raise ModelError(
            f"model {name!r} has a slow tokenizer, without character offsets; save a tokenizer.json"
        )
    if len(tokenizer) > model.config.vocab_size:
        raise ModelError(
            f"model {name!r} embeds {model.config.vocab_size} tokens but its tokenizer has {len(tokenizer)}; "
            "use the tokenizer that belongs to it"
        )
    model = model.to(device).eval().requires_grad_(False)
    shape = _shape(name, model.config)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        revision=revision_of(folder),
        tokenizer_hash=hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()[:16],
        max_tokens=model.config.max_position_embeddings,
        layers=model.config.num_hidden_layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        device=device,
        dtype=str(dtype).removeprefix("torch."),
    )


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ModelError(
            f"model {name!r} is neither a folder nor to be had from the hub ({_first_line(error)}); "
            "check the name and the network, or pass a local folder"
        ) from error


def _read_json(folder: Path, name: str) -> Any:
    file = folder / name
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelError(
            f"model folder {folder.name!r} has no {name}; pass a folder with a saved model"
        ) from None
    except (ValueError, OSError) as error:
        raise ModelError(f"{folder.name}/{name} is not readable JSON; download the model again") from error


def _check_weights(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file.parent.name}/{file.name} is corrupt ({_first_line(error)}); download the model again"
        ) from error


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """transformers draws a bar per model on stderr; the command line has its own."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
