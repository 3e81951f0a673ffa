"""What glibc does with a CPU prefill's memory: kept between operations, given back between jobs.

By default tensors of 32 MB and more get pages of their own from the system and return them when they are freed; the
system clears each new page, which took a tenth of a routed prefill of 16,384 tokens (bundled model, two threads).
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

# <malloc.h>
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_MOST_KEPT = (1 << 31) - 1  # bytes at the heap's end, as an int takes them


def keep_freed() -> bool:
    """Let this process keep what tensors free, for the next ones. False where the C library can't, which is no harm."""
    libc = _glibc()
    return libc is not None and bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM_THRESHOLD, _MOST_KEPT))


def give_back() -> None:
    """Return to the system what is free, for other processes and for what asks how much memory is left."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@lru_cache(maxsize=1)
def _glibc() -> Any:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
