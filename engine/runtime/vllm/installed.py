"""What routing is installed in: of every attention layer of a loaded model whether it is ours, and if not, why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from routesparse.engine.runtime.vllm.backend import MARK, SPLITS


@dataclass(frozen=True)
class Installed:
    """How many of a model's attention layers are routed."""

    layers: int
    stock: Mapping[str, int]  # why layers are left to vLLM, and how many each

    @classmethod
    def of(cls, layers: Iterable[Any]) -> Installed:
        """Of vLLM's AttentionLayerBase, those of the whole model."""
        found = [why_stock(layer) for layer in layers]
        return cls(len(found), Counter(reason for reason in found if reason is not None))

    @property
    def routed(self) -> int:
        return self.layers - sum(self.stock.values())

    @property
    def why(self) -> str:
        """Why layers are stock, the most common reason first."""
        told = sorted(self.stock.items(), key=lambda item: -item[1])
        return ", ".join(f"{count} because of {reason}" for reason, count in told) or "it has no such layers"


def why_stock(layer: Any) -> str | None:
    """Why vLLM serves an attention layer; None where its prompts are routed."""
    backend = layer.get_attn_backend()
    if not hasattr(backend, MARK):
        return f"backend {backend.get_name()} (--attention-backend; routed are {', '.join(SPLITS)})"
    if layer.impl.stock_because is None and MARK not in vars(backend):
        # vLLM derives a backend of its own from ours, for instance for chunked local attention.
        return str(backend.__name__.split("_")[0])
    reason: str | None = layer.impl.stock_because
    return reason
