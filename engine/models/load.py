"""Loading a model: the bundled one, a local folder, or a hub id; safetensors or GGUF, no remote code.

The folder is checked before its weights are read (files.py); what is left to go wrong while loading ends in
one line too.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routesparse.engine.device import host_memory
from routesparse.engine.errors import ModelError, first_line
from routesparse.engine.models import tokenizer_process
from routesparse.engine.models.files import DEMO, HUB_ID, check_folder, resolve, revision_of
from routesparse.engine.models.refusals import check_family
from routesparse.engine.models.rope import RopeScaling, revision_with
from routesparse.engine.models.sizes import check_heads, check_vocabulary
from routesparse.engine.models.token_text import text_of
from routesparse.engine.prompts.text import Prompt, PromptText, as_model_error, refuse_too_long, tokenize

_LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
_SMALL_MODEL = 1_000_000  # weights: what is missing of one is named


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for prefill, with what a run record says about it."""

    model: Any  # PreTrainedModel in eval mode, no gradients
    tokenizer: Any  # a fast tokenizer
    name: str  # "demo", the folder's name, or the hub id
    revision: str  # 16 hex digits: config, safetensors headers, sizes and sampled weights, and rope
    tokenizer_hash: str  # 16 hex digits
    max_tokens: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    device: str  # "cpu" or "cuda:0"
    dtype: str  # "float32" or "bfloat16"
    rope: str | None = None  # the JSON of the RopeScaling that it was loaded with

    @property
    def on_gpu(self) -> bool:
        """Whether it lies on a GPU."""
        return self.device.startswith("cuda")

    def tokenize(self, prompt: PromptText) -> Prompt:
        """As ``prompts.tokenize``, after another process has tried. Errors: PromptError, ModelError."""
        folder, what = Path(self.tokenizer.name_or_path), f"prompt {prompt.name!r}"
        count = functools.partial(tokenizer_process.count, folder)
        refuse_too_long(what, prompt.text, self.max_tokens, lambda part: count(part)[0])
        self.check_text(prompt)
        return tokenize(prompt, self.tokenizer, self.max_tokens)

    def check_text(self, prompt: PromptText) -> None:
        """Errors: ModelError for a text that the tokenizer fails on, which could end a process that tries it."""
        tokenizer_process.count(Path(self.tokenizer.name_or_path), prompt.text)

    def text_of(self, tokens: list[int]) -> str:
        """What token ids read. Errors: ModelError where the tokenizer fails on them."""
        with as_model_error(self.name, "its tokenizer fails"):
            return text_of(self.tokenizer, tokens)

    def cache_bytes(self, tokens: int) -> int:
        """What the keys and values of so many tokens take."""
        element = 4 if self.dtype == "float32" else 2
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * element

    def free_bytes(self) -> int:
        """Memory that is free now where the model lies."""
        import psutil
        import torch

        if self.on_gpu:
            return int(torch.cuda.mem_get_info(self.device)[0])
        host_memory.give_back()
        return int(psutil.virtual_memory().available)


def load_model(
    name_or_path: str = DEMO, *, device: str = "auto", rope: RopeScaling | None = None
) -> LoadedModel:
    """Load "demo", a folder with config.json and *.safetensors, a GGUF file, or a hub id (org/name).

    device: "auto" is the first GPU, else the CPU. The dtype is float32 on a CPU and bfloat16 on a GPU. rope: rescales
    the positions for longer prompts (rope.py); the revision is then another one.
    Errors: ModelError, UnsupportedModelError, ConfigError for a rope that does not fit the model.
    """
    folder, name = resolve(name_or_path)
    return _load(folder, name, check_folder(folder)[1], device, rope)


def load_in_turn(model: str, place: int, *, rope: RopeScaling | None = None) -> LoadedModel:
    """The model of one of several processes, which take GPUs in turn by their places, or the CPU where there is none.

    Errors: those of ``load_model``.
    """
    import torch

    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{place % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    return load_model(model, device=device, rope=rope)


@dataclass(frozen=True)
class LoadedTokenizer:
    """A model's tokenizer alone, for what needs no weights."""

    tokenizer: Any  # a fast tokenizer
    tokenizer_hash: str  # 16 hex digits, as LoadedModel's


def load_tokenizer(name_or_path: str = DEMO) -> LoadedTokenizer:
    """The tokenizer of a model that load_model would accept. Errors: ModelError, UnsupportedModelError."""
    folder, name = resolve(name_or_path)
    config, _ = check_folder(folder)
    return LoadedTokenizer(_tokenizer(folder, name, config["vocab_size"]), _tokenizer_hash(folder))


def fast_tokenizer(folder: Path) -> Any:
    """As transformers makes it. Errors: whatever transformers raises."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, **_LOCAL)


def _tokenizer(folder: Path, name: str, vocabulary: int) -> Any:
    with as_model_error(name):
        found = fast_tokenizer(folder)
        if not found.is_fast:
            raise ModelError(f"model {name!r} has a slow tokenizer, without offsets; save a tokenizer.json")
        check_vocabulary(name, max(found.get_vocab().values(), default=-1), vocabulary)
    return found


def _tokenizer_hash(folder: Path) -> str:
    return hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()[:16]


def model_name(model: Any) -> str:
    """What a transformers model is called: the last part of where it came from, else its class."""
    return Path(getattr(model.config, "_name_or_path", "") or type(model).__name__).name


def revision_of_model(model: Any) -> str:
    """The revision of a model in memory, from the files that it was loaded from.

    Errors: ModelError where these are unknown (weights made or changed in memory can't be told apart).
    """
    from huggingface_hub import try_to_load_from_cache

    source = str(model.name_or_path)
    folder = Path(source)
    if not folder.is_dir() and HUB_ID.fullmatch(source):
        commit = getattr(model.config, "_commit_hash", None)
        config = try_to_load_from_cache(source, "config.json", revision=commit)
        folder = Path(config).parent if isinstance(config, str) else folder
    if not (folder / "config.json").is_file():
        raise ModelError(f"the files of this model are not known ({source!r}); load it with from_pretrained")
    return revision_with(revision_of(folder), model.config, _config_of(folder, source))


@dataclass(frozen=True)
class ModelShape:
    """What a latency profile depends on, known without reading weights."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    layers: int


def shape_of(name_or_path: str = DEMO) -> ModelShape:
    """The attention shape of a model that load_model would accept. Errors: ModelError, UnsupportedModelError."""
    folder, name = resolve(name_or_path)
    check_folder(folder)
    return _shape(name, _config_of(folder, name))


def _config_of(folder: Path, name: str) -> Any:
    """transformers' configuration of a folder. Errors: ModelError."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    with as_model_error(name):
        try:
            return AutoConfig.from_pretrained(folder, **_LOCAL)
        except StrictDataclassError as error:
            raise ModelError(
                f"{name}/config.json is wrong: {first_line(error.__cause__ or error)}"
            ) from error


def _shape(name: str, config: Any) -> ModelShape:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    check_heads(name, heads, kv_heads)
    return ModelShape(
        name=name,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        layers=config.num_hidden_layers,
    )


def _load(folder: Path, name: str, numbers: int, device: str, rope: RopeScaling | None) -> LoadedModel:
    import torch
    from transformers import AutoModelForCausalLM

    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    config = _config_of(folder, name)
    shape = _shape(name, config)
    if rope is not None:
        rope.extend(config, name)
    with as_model_error(name), _no_progress_bars():
        _check_size(config, numbers, name)
        tokenizer = _tokenizer(folder, name, config.vocab_size)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True, **_LOCAL
        )
    model, report = loaded
    absent = sorted(report["missing_keys"])
    if absent:
        raise ModelError(f"model {name!r} lacks {len(absent)} weights, such as {absent[0]}; use all of them")
    check_family(model.config)
    if device == "cpu":
        host_memory.keep_freed()
    model = model.to(device).eval().requires_grad_(False)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        revision=revision_with(revision_of(folder), model.config, _config_of(folder, name)),
        tokenizer_hash=_tokenizer_hash(folder),
        max_tokens=model.config.max_position_embeddings,
        layers=model.config.num_hidden_layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        device=device,
        dtype=str(dtype).removeprefix("torch."),
        rope=None if rope is None else rope.text,
    )


def _check_size(config: Any, stored: int, name: str) -> None:
    """Refuse a model of which the files hold less than half: what is missing would be made in memory first.

    Errors: ModelError, and whatever transformers raises.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    wanted = sum(one.numel() for one in model.parameters())
    if wanted > 2 * stored + _SMALL_MODEL:
        told = f"describes {wanted:,} weights, its files hold {stored:,}; use files that belong together"
        raise ModelError(f"{name}/config.json {told}")


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
