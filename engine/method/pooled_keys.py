"""pool_g(K) of eq. 3 (paper section 3.2): read by the pooled probe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routesparse.kernels.block_means import block_means

if TYPE_CHECKING:
    import torch

    from routesparse.engine.method.inputs import AttentionInputs
    from routesparse.engine.method.segments import Segment


def pool_keys(inputs: AttentionInputs, segment: Segment) -> torch.Tensor:
    """Keys mean-pooled over KV blocks, real keys only: [B, Hkv, N, D] float32."""
    low = None if inputs.key_start is None else inputs.first_keys()
    return block_means(inputs.k, 0, segment.keys, segment.block_k, low, inputs.table, place=1)
