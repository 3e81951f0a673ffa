"""A prefill at Llama-3.1-8B's shape with random weights: what everything around attention costs.

Random weights give no meaningful routing; they give honest times of dense paths and of fixed plans. All layers'
weights are distinct and the KV cache of every layer is kept, as in a real prefill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Attention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

ROPE_BASE = 500_000.0
# Rows of the feed-forward layer computed at once: its activations would not fit at 512K tokens.
_ROWS = 32_768


@dataclass(frozen=True)
class Size:
    """Llama-3.1-8B's sizes."""

    layers: int = 32
    hidden: int = 4096
    feed_forward: int = 14_336
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def _gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of x [B, H, n, d]; cos and sin [n, d]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


@dataclass(frozen=True)
class _Layer:
    norm1: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    norm2: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


class Transformer:
    """Layers of that size; ``compile`` runs RMSNorm, RoPE and the gate through torch.compile, or not."""

    def __init__(self, size: Size, seed: int, device: str = "cuda") -> None:
        self.size = size
        generator = torch.Generator(device).manual_seed(seed)

        def normal(rows: int, columns: int) -> torch.Tensor:
            weight = torch.empty(rows, columns, device=device, dtype=torch.bfloat16)
            return weight.normal_(0.0, 0.02, generator=generator)

        ones = torch.ones(size.hidden, device=device, dtype=torch.bfloat16)
        queries, keys = size.heads * size.head_size, size.kv_heads * size.head_size
        self.layers = [
            _Layer(
                norm1=ones,
                qkv=normal(queries + 2 * keys, size.hidden),
                out=normal(size.hidden, queries),
                norm2=ones,
                gate=normal(size.feed_forward, size.hidden),
                up=normal(size.feed_forward, size.hidden),
                down=normal(size.hidden, size.feed_forward),
            )
            for _ in range(size.layers)
        ]
        self.compile(False)

    def compile(self, compiled: bool) -> None:
        """Choose how RMSNorm, RoPE and the gate run; the weights stay."""
        functions = (_norm, _rotate, _gate)
        if compiled:
            functions = tuple(torch.compile(function, dynamic=False) for function in functions)  # type: ignore[assignment]
        self._norm, self._rotate, self._gate = functions

    @torch.no_grad()
    def prefill(self, x: torch.Tensor, attention: Attention) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Run x [1, n, hidden] through every layer in place; the KV cache, one (k, v) a layer."""
        n_tokens = x.shape[1]
        position = torch.arange(n_tokens, device=x.device, dtype=torch.float32)[:, None]
        step = torch.arange(0, self.size.head_size, 2, device=x.device) / self.size.head_size
        angle = (position * ROPE_BASE**-step).repeat(1, 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        cache = []
        for index, layer in enumerate(self.layers):
            cache.append(self._attend(index, layer, x, cos, sin, attention))
            for start in range(0, n_tokens, _ROWS):
                rows = x[:, start : start + _ROWS]
                h = self._norm(rows, layer.norm2)
                rows += self._gate(h @ layer.gate.T, h @ layer.up.T) @ layer.down.T
        return cache

    def _attend(
        self,
        index: int,
        layer: _Layer,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attention: Attention,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        size, n_tokens = self.size, x.shape[1]
        counts = (size.heads, size.kv_heads, size.kv_heads)
        qkv = self._norm(x, layer.norm1) @ layer.qkv.T
        q, k, v = (
            part.view(1, n_tokens, -1, size.head_size).transpose(1, 2)
            for part in qkv.split([count * size.head_size for count in counts], -1)
        )
        q, k, v = self._rotate(q, cos, sin), self._rotate(k, cos, sin).contiguous(), v.contiguous()
        del qkv
        out = attention(index, q, k, v).transpose(1, 2).reshape(1, n_tokens, -1)
        x += out @ layer.out.T
        return k, v
