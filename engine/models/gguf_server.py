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

from routesparse.engine.files.bounded_process import serve

_ROPE_TENSORS = ("rope_freqs", "rope_factors")  # factors of single frequencies, which transformers leaves out


class _UnreadableError(ValueError):
    """What is wrong with a file, in words for its user."""


def _header(file: Path) -> dict[str, Any]:
    """What the file says about itself, none of its weights read."""
    from gguf.constants import GGMLQuantizationType
    from gguf.gguf_reader import GGUFReader
    from transformers import AutoConfig

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
    scaled = said.get(f"{architecture}.rope.scaling.factor", 1.0)
    if scaled not in (0.0, 1.0) or any(t.name.startswith(_ROPE_TENSORS) for t in reader.tensors):
        raise _UnreadableError(
            "its rotary positions are rescaled, which transformers' reader leaves out; use its safetensors"
        )
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
    return {
        "config": json.loads(config.to_json_string(use_diff=False)),
        "tensors": len(reader.tensors),
        "numbers": sum(kinds.values()),
        "stored": kinds.most_common(1)[0][0] if kinds else "",
        "licence": str(said.get("general.license", ""))[:60],
        "has_tokenizer": "tokenizer.ggml.tokens" in reader.fields,
    }


def _unpack(file: Path, folder: Path) -> dict[str, Any]:
    """The model and its fast tokenizer as save_pretrained writes them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

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
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    return {}


def _answer(content: bytes, what: str, folder: str) -> Iterator[bytes]:
    file = Path(content.decode("utf-8", "surrogateescape"))
    found = _header(file) if what == "header" else _unpack(file, Path(folder))
    yield json.dumps(found).encode()


def _told(error: BaseException) -> str:
    told = " ".join(str(error).split())[:300]
    if isinstance(error, _UnreadableError):
        return told
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


if __name__ == "__main__":
    serve(_answer, _told)
