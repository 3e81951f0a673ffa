"""The process that reads a GGUF file for gguf.py: its header in seconds, and all of it once.

transformers reads the file (its ``gguf_file``), so what it reads is what can be read: the architectures of its tables.
Weights come out in bfloat16, whatever their blocks were: a block of four bits holds less.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine.files.bounded_process import serve
from routesparse.engine.models.sizes import check_said
from routesparse.engine.schema import FieldError

# What single frequencies are divided by; transformers leaves it out.
_ROPE_TENSORS = ("rope_freqs", "rope_factors")
# Of Llama 3.1 to 3.3; the factor differs. Converters compute in float32, and a rounding may count factor-fold.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_ROUNDED = 1e-5
_RESCALED = (
    "its rotary positions are rescaled, and not as in Llama 3.1 to 3.3, which transformers' reader leaves out; use its "
    "safetensors"
)


class _UnreadableError(ValueError):
    """What is wrong with a file, in words for its user."""


def _header(file: Path) -> dict[str, Any]:
    """What the file says about itself, none of its weights read."""
    from gguf.constants import GGMLQuantizationType
    from gguf.gguf_reader import GGUFReader
    from gguf.quants import dequantize
    from transformers import AutoConfig
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    with file.open("rb") as handle:
        if handle.read(4) != b"GGUF":
            raise _UnreadableError("it does not begin as a GGUF file does")
    reader = GGUFReader(file)  # maps the file; its tensors are views within it, or it fails
    said = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("tokenizer.") and len(field.data) == 1
    }
    if (parts := said.get("split.count", 1)) > 1:
        raise _UnreadableError(f"it is one of {parts} parts; join them with llama-gguf-split --merge")
    architecture = said.get("general.architecture")
    tables: Any = GGUF_CONFIG_MAPPING
    names = (pair for table in tables.values() for pair in table.items())
    try:
        check_said(said, ((f"{architecture}.{key}", field) for key, field in names))
    except FieldError as error:
        raise _UnreadableError(str(error)) from None
    rescaling = [tensor for tensor in reader.tensors if tensor.name.startswith(_ROPE_TENSORS)]
    if said.get(f"{architecture}.rope.scaling.factor", 1.0) not in (0.0, 1.0) or len(rescaling) > 1:
        raise _UnreadableError(_RESCALED)
    taken = 0
    for tensor in sorted(reader.tensors, key=lambda t: t.data_offset):
        if tensor.data_offset < taken or math.prod(map(int, tensor.shape)) != tensor.n_elements:
            raise _UnreadableError(f"its tensor {tensor.name[:40]!r} lies over another one")
        taken = tensor.data_offset + int(tensor.n_bytes)
    if taken > file.stat().st_size:
        raise _UnreadableError("it ends before its weights do; download it again")
    kinds = Counter[str]()
    for tensor in reader.tensors:
        kinds[GGMLQuantizationType(tensor.tensor_type).name] += int(tensor.n_elements)
    config = AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
    for tensor in rescaling:
        config.rope_parameters = _llama3(dequantize(tensor.data, tensor.tensor_type), config)
    return {
        "config": json.loads(config.to_json_string(use_diff=False)),
        "tensors": len(reader.tensors),
        "numbers": sum(kinds.values()),
        "stored": kinds.most_common(1)[0][0] if kinds else "",
        "licence": str(said.get("general.license", ""))[:60],
        "has_tokenizer": "tokenizer.ggml.tokens" in reader.fields,
    }


def _llama3(divisors: Any, config: Any) -> dict[str, Any]:
    """transformers' rotary parameters where frequencies are divided as in Llama 3.1 to 3.3 (rope_type llama3).

    With L the original context and w = 2 pi b^(2i/d) the wavelength of pair i (b: rope_theta, d: head_dim), theirs is
    1 / ((1 - s)/factor + s), s = (L/w - low)/(high - low) clipped to [0, 1]; the pairs of the longest have factor.
    """
    own = config.rope_parameters
    if not (isinstance(own, dict) and "rope_theta" in own and np.isfinite(divisors).all()):
        raise _UnreadableError(_RESCALED)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    factor, low, high, original = float(np.max(divisors)), *_LLAMA3.values()
    wavelength = 2 * math.pi * own["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    kept = np.clip((original / wavelength - low) / (high - low), 0, 1)
    expected = 1 / ((1 - kept) / factor + kept)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=_ROUNDED, atol=0):
        raise _UnreadableError(_RESCALED)
    if factor == 1:
        return dict(own)
    return {**own, "rope_type": "llama3", "factor": factor, **_LLAMA3}


def _unpack(file: Path, to: str, rope: dict[str, Any] | None) -> dict[str, Any]:
    """The model and its fast tokenizer as save_pretrained writes them. rope: its rotary parameters, of its header."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    folder = Path(to)
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **where)
    tokenizer.save_pretrained(folder)
    unpacked: Any = AutoModelForCausalLM.from_pretrained(
        str(file.parent),
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
        **where,
    )
    model, report = unpacked
    if absent := sorted(report["missing_keys"]):
        raise _UnreadableError(f"it lacks {len(absent)} weights, such as {absent[0]}; use a whole file")
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    # The revision hashes this file: it names the model, not a packed form, nor the version that unpacked it (of one
    # before 5 transformers patches tokenizers).
    for name in ("_model_name_or_path", "quantization_config"):
        config.pop(name, None)
    config["transformers_version"] = "5.0.0"
    if rope is not None:
        config["rope_parameters"] = rope
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    return {}


def _answer(content: bytes, what: str, *of: Any) -> Iterator[bytes]:
    file = Path(content.decode("utf-8", "surrogateescape"))
    found = _header(file) if what == "header" else _unpack(file, *of)
    yield json.dumps(found).encode()


def _told(error: BaseException) -> str:
    told = " ".join(str(error).split())[:300]
    if isinstance(error, _UnreadableError):
        return told
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


if __name__ == "__main__":
    serve(_answer, _told)
