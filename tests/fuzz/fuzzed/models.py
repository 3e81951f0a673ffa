"""A model's folder: its configuration, its tokenizer, the headers of its weights; and an adapter's."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import transformers
from hypothesis import strategies as st

from routesparse.engine import errors, paths
from routesparse.engine.models import adapter, token_count
from routesparse.engine.models import files as model_files
from routesparse.engine.models.load import load_model, shape_of
from routesparse.engine.prompts.text import decode_prompt
from tests.fuzz.fuzzed.target import SEEDS, Content, Target, json_bytes, tensors_like
from tests.fuzz.fuzzed.tokenizers import TEXTS, TOKENIZER, tokenizer_like


def _model(name: str) -> Callable[[Content, Path], object]:
    """What the pages ask of a model's folder: what it is, which one, and what a prompt takes."""

    def run(content: Content, folder: Path) -> None:
        (folder / name).write_bytes(bytes(content))
        config, _ = model_files.check_folder(folder)
        model_files.revision_of(folder)
        size = token_count.size_of(str(folder), 1_000)
        assert size.tokens == 1_000 and size.layers == config["num_hidden_layers"]
        assert 0 < size.activation_bytes < 1 << 62 and shape_of(str(folder)).head_dim == size.head_dim

    return run


def _copy_model(folder: Path) -> None:
    """A folder with the bundled model's small files and weights of a few bytes."""
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(paths.DATA / "models" / "demo" / name, folder / name)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    shape_of(str(folder))  # its library comes with the first


def _counted(case: tuple[Content, str], folder: Path) -> None:
    """Pages count and cut a text by a tokenizer: a part has as many tokens as asked for, or fewer.

    Where one character becomes many tokens, the part is that character.
    """
    tokenizer, text = case
    (folder / "tokenizer.json").write_bytes(bytes(tokenizer))
    model = str(folder)
    tokens = token_count.prompt_size(model, text).tokens
    assert tokens < 1 or token_count.holds(model, text, tokens)
    for side in ("first", "last"):
        part = token_count.part_of(model, text, 5, side)
        assert text.startswith(part) if side == "first" else text.endswith(part)
        assert len(part) <= 2 or part == text or token_count.prompt_size(model, part).tokens <= 5


def _loaded(case: tuple[str, Content, str], folder: Path) -> None:
    """A worker loads what the pages have accepted, and reads as many tokens as they count."""
    name, content, text = case
    kept = (folder / name).read_bytes()
    try:
        (folder / name).write_bytes(bytes(content))
        model = load_model(str(folder), device="cpu")
        prompt = model.tokenize(decode_prompt(text.encode(), "x"))
        assert token_count.prompt_size(str(folder), text).tokens == prompt.tokens
        assert max(prompt.token_ids) < model.model.config.vocab_size
        model.text_of(list(prompt.token_ids))
    finally:
        (folder / name).write_bytes(kept)


def _save_tokenizer(folder: Path) -> None:
    """What pages count with; without a first token, so that no other library has a say."""
    _save_model(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS | {"bos_token": None}))


def _save_model(folder: Path) -> None:
    """A model of one layer, loaded once: its library comes with the first."""
    config = transformers.LlamaConfig(**SMALL)
    with contextlib.redirect_stdout(io.StringIO()):
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    load_model(str(folder), device="cpu").tokenize(decode_prompt(b"a b", "x"))


def _adapter(name: str) -> Callable[[Content, Path], object]:
    def run(content: Content, folder: Path) -> None:
        (folder / "adapter" / name).write_bytes(bytes(content))
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


WEIGHTS = _safetensors(**{f"w{place}": [4] for place in range(8)})
_PROJECTION = "model.layers.0.self_attn.q_proj"
PROJECTION = _safetensors(**{f"{_PROJECTION}.weight": [32, 16], **{f"w{place}": [4] for place in range(8)}})
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
SMALL = {
    **{"vocab_size": 400, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2_000},
}
SETTINGS = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
_SAVED = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 8, "dtype": "float32"},
    **SMALL,
}
CONFIG = json.loads((paths.DATA / "models" / "demo" / "config.json").read_text())
TARGETS: dict[str, Target] = {
    "model config": Target(json_bytes(CONFIG), _model("config.json"), (errors.ModelError,), _copy_model),
    "model tokenizer": Target(
        st.tuples(SEEDS.map(tokenizer_like) | json_bytes(TOKENIZER), st.sampled_from(TEXTS)),
        _counted,
        (errors.ModelError, errors.PromptError),
        _save_tokenizer,
    ),
    "model loaded": Target(
        st.tuples(st.just("config.json"), json_bytes(_SAVED), st.sampled_from(TEXTS))
        | st.tuples(st.just("tokenizer_config.json"), json_bytes(SETTINGS, 5), st.sampled_from(TEXTS))
        | st.tuples(st.just("tokenizer.json"), SEEDS.map(tokenizer_like), st.sampled_from(TEXTS)),
        _loaded,
        (errors.ModelError, errors.PromptError),
        _save_model,
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
