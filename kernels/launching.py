"""What launchers share: sizes of blocks, and what kernels with a matrix product have to know."""

from __future__ import annotations

from typing import Any

import torch


def product_constants(q: torch.Tensor) -> dict[str, Any]:
    """What every kernel with a matrix product needs to know of the queries."""
    import triton

    # The interpreter's bf16 matrix product is silently wrong.
    interpreted = bool(triton.knobs.runtime.interpret)
    return {
        "HEAD": q.shape[-1],
        "HEAD_PADDED": power_of_two(q.shape[-1]),
        "UPCAST": interpreted,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
    }


def power_of_two(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def knows_ptx() -> bool:
    """Whether kernels run on an NVIDIA GPU; Triton's interpreter takes a slower way round."""
    import triton

    return torch.version.cuda is not None and not triton.knobs.runtime.interpret
