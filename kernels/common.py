"""What every operation's dispatch asks: whether a tensor goes to Triton's kernels or to the naive twin beside them."""

from __future__ import annotations

import os
from typing import Any


def runs_triton(x: Any) -> bool:
    """Whether operations on this tensor run as Triton kernels: on a GPU, and on a CPU where Triton interprets.

    Triton itself reads TRITON_INTERPRET=1 when it is first imported; anything that is no CUDA tensor, NumPy arrays
    included, takes the naive twin otherwise.
    """
    return bool(getattr(x, "is_cuda", False)) or (
        hasattr(x, "data_ptr") and os.environ.get("TRITON_INTERPRET") == "1"
    )
