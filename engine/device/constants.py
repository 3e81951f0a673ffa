"""Host values on a device: tables of constants that are moved there once, and kept while a CUDA graph reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import numpy as np
import torch

_Key = tuple[bytes, str, tuple[int, ...], torch.device]
_held: ContextVar[dict[_Key, torch.Tensor] | None] = ContextVar("held", default=None)


def constant(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A table of constants on a device, moved there once. Not to be written to."""
    key = (values.tobytes(), values.dtype.str, values.shape, device)
    held = _held.get()
    if held is None:
        return _constant(*key)
    if key not in held:
        held[key] = _constant(*key)
    return held[key]


@contextmanager
def holding(held: dict[_Key, torch.Tensor]) -> Iterator[None]:
    """Constants used inside live as long as ``held``: a CUDA graph knows them by address only."""
    token = _held.set(held)
    try:
        yield
    finally:
        _held.reset(token)


@lru_cache(maxsize=4_096)
def _constant(data: bytes, dtype: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return to_device(np.frombuffer(data, dtype).reshape(shape).copy(), device)


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Host values on a device; on a GPU the copy is queued, not waited for."""
    host = torch.as_tensor(values)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def copy_to(there: torch.Tensor, values: np.ndarray | torch.Tensor) -> None:
    """Host values into a tensor of their shape and type; on a GPU the copy is queued, not waited for."""
    host = torch.as_tensor(values)
    there.copy_(host.pin_memory() if there.is_cuda else host, non_blocking=True)
