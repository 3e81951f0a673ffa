"""Block masks in files, as others save them: NumPy's .npy and safetensors.

``.npy``: bool [L, H, M, N] over layers, query heads, query blocks and KV blocks. ``.safetensors``: one such tensor
called "mask", or a bool [H, M, N] a layer, called "3", "layer.3" or "layers.3"; layers that are missing read
everything. Its metadata may say block_q and block_k. H may be 1 where all heads read the same.
"""

from __future__ import annotations

import io
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from routesparse.engine.errors import ConfigError, shortened
from routesparse.engine.files import plain_files

MAX_BYTES = 4 << 30
_LAYER = re.compile(r"(?:layers?\.)?([0-9]{1,4})")
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_NO_HEADER = (
    *(ValueError, TypeError, KeyError, EOFError, SyntaxError, TokenError),
    *(RecursionError, MemoryError, Warning),
)


@dataclass(frozen=True)
class BlockMasks:
    """bool [1 or H, M, N] by layer; the sizes of a block where the file says them.

    all_layers: the file is one array of every layer, so that none may be missing.
    """

    layers: Mapping[int, np.ndarray]
    block_q: int | None = None
    block_k: int | None = None
    name: str = field(default="mask")
    all_layers: bool = False

    def block(self, block_q: int | None, block_k: int | None, default: tuple[int, int]) -> tuple[int, int]:
        """The sizes of a block: the caller's, else the file's, else the default."""
        return block_q or self.block_q or default[0], block_k or self.block_k or default[1]


def read_masks(path: Path) -> BlockMasks:
    """Read a mask file. Errors: ConfigError."""
    try:
        content = plain_files.read_bounded(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"mask {shortened(path)} can't be read: {error.strerror}") from error
    if path.suffix == ".npy":
        return BlockMasks(_by_layer(_array(content, path), path), name=path.name, all_layers=True)
    if path.suffix == ".safetensors":
        return _tensors(content, path)
    raise ConfigError(f"mask {shortened(path.name)} is neither .npy nor .safetensors; save it as one of them")


def _array(content: bytes, path: Path) -> np.ndarray:
    """The array of a .npy file, whose header is checked before anything of its size is allocated."""
    handle = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(handle)
        if version not in _HEADERS:
            raise ValueError(f"format {version} of .npy")
        with warnings.catch_warnings():
            # NumPy warns of headers that it has to guess at.
            warnings.simplefilter("error")
            shape, fortran, dtype = _HEADERS[version](handle)
    except _NO_HEADER as error:
        raise ConfigError(f"mask {shortened(path.name)} is no .npy file: {shortened(error)}") from error
    if (
        dtype != np.bool_
        or len(shape) not in (3, 4)
        or min(shape) < 1
        or math.prod(shape) != len(content) - handle.tell()
    ):
        raise ConfigError(
            f"mask {shortened(path.name)} is {dtype} {list(shape)} in {len(content):,} bytes; save a whole bool array "
            "[layers, heads, query blocks, key blocks]"
        )
    flat = np.frombuffer(content, np.uint8, offset=handle.tell()).astype(bool)
    return flat.reshape(shape, order="F" if fortran else "C")


def _tensors(content: bytes, path: Path) -> BlockMasks:
    """The masks of a safetensors file. Errors: ConfigError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"mask {shortened(path.name)} is no safetensors file: {shortened(error)}"
        ) from error
    stacked = set(tensors) == {"mask"}
    if stacked:
        layers = _by_layer(tensors["mask"], path)
    else:
        layers = {}
        for name, tensor in tensors.items():
            found = _LAYER.fullmatch(name)
            if found is None:
                raise ConfigError(
                    f"mask {shortened(path.name)} has a tensor {shortened(name)!r}; name it mask, or layer.3"
                )
            layer = int(found[1])
            if layer in layers:
                raise ConfigError(
                    f"mask {shortened(path.name)} names layer {layer} twice; keep one of its tensors"
                )
            layers[layer] = _checked(tensor, 3, path)
    sizes = _size(metadata, "block_q", path), _size(metadata, "block_k", path)
    return BlockMasks(layers, *sizes, path.name, stacked)


def _by_layer(masks: np.ndarray, path: Path) -> dict[int, np.ndarray]:
    """[L, H, M, N] by layer. Errors: ConfigError."""
    return dict(enumerate(_checked(masks, 4, path)))


def _checked(mask: np.ndarray, dimensions: int, path: Path) -> np.ndarray:
    if mask.dtype != np.bool_ or mask.ndim != dimensions or not mask.size:
        names = ("layers", "heads", "query blocks", "key blocks")[-dimensions:]
        raise ConfigError(
            f"mask {shortened(path.name)} is {mask.dtype} {list(mask.shape)}; save bool [{', '.join(names)}]"
        )
    # safetensors hands over bytes as they are, and torch and NumPy read a 2 as they please.
    return mask.view(np.uint8) != 0


def _size(metadata: Any, name: str, path: Path) -> int | None:
    """A block size that the file's metadata may say. Errors: ConfigError."""
    said = metadata.get(name) if isinstance(metadata, dict) else None
    if said is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", str(said)):
        raise ConfigError(
            f"mask {shortened(path.name)} says {name} {shortened(said)!r}; write a number of tokens"
        )
    return int(said)
