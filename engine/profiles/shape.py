"""What a latency profile belongs to: a device, a dtype and the heads of a layer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.device.names import device_name
from routesparse.engine.errors import ProfileError

if TYPE_CHECKING:
    from routesparse.engine.models.load import ModelShape

SHORT_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True)
class AttentionShape:
    """What a profile is measured for: the attention of a layer on one device."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    heads: int
    kv_heads: int

    @classmethod
    def of(cls, inputs: AttentionInputs) -> AttentionShape:
        """That of a layer's call."""
        (_, heads, _, head_dim), kv_heads = inputs.q.shape, inputs.k.shape[1]
        return cls(inputs.q.device, inputs.q.dtype, head_dim, heads, kv_heads)

    @classmethod
    def here(cls, shape: ModelShape) -> AttentionShape:
        """A model's on the first GPU in bfloat16, else on the CPU in float32."""
        cuda = torch.cuda.is_available()
        device, dtype = ("cuda:0", torch.bfloat16) if cuda else ("cpu", torch.float32)
        return cls(torch.device(device), dtype, shape.head_dim, shape.heads, shape.kv_heads)

    def profile_name(self, config: RouterConfig) -> str:
        """What its profile is called. Errors: ProfileError for a dtype without kernels."""
        if self.dtype not in SHORT_NAMES:
            raise ProfileError(f"dtype {self.dtype} has no kernel; use float32, bfloat16 or float16")
        threads = torch.get_num_threads() if self.device.type == "cpu" else 0
        digest = hashlib.sha256(device_name(self.device).encode()).hexdigest()[:8]
        return (
            f"{self.device.type}-{digest}-t{threads}-{SHORT_NAMES[self.dtype]}-d{self.head_dim}"
            f"-g{self.heads // self.kv_heads}-b{config.block_q}x{config.block_k}-{config.probe}"
        )
