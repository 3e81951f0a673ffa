"""Both backends behind one fixture on poisoned memory, where torch.empty is NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from routesparse.kernels.attention import attend_in_triton
from routesparse.kernels.attention.operands import Loads
from routesparse.kernels.interface import RowPlan, sparse_attention
from tests.triton_process import triton_process

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Deterministic algorithms fill uninitialised memory with NaN, so an output left unwritten shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def _on_triton(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RowPlan, scale: float | None, loads: Loads | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if loads is None:
        return sparse_attention(q, k, v, plan, scale, "triton")
    return attend_in_triton(q, k, v, plan, q.shape[-1] ** -0.5 if scale is None else scale, loads)


@pytest.fixture(scope="session")
def in_triton() -> Iterator[Callable[..., Any]]:
    """function(*args) where Triton runs: here with a GPU, else interpreted in a process of its own."""
    with triton_process(deterministic=True) as run:
        yield run


@pytest.fixture(scope="session")
def triton_attention(in_triton: Callable[..., Any]) -> Attention:
    """sparse_attention on Triton; ``loads`` asks for one way of loading tiles."""
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def attend_there(q, k, v, plan: RowPlan, scale: float | None = None, loads: Loads | None = None):
        inputs = (x.to(device) for x in (q, k, v, plan))
        out, lse = in_triton(_on_triton, *inputs, scale, loads)
        return out.cpu(), lse.cpu()

    return attend_there


@pytest.fixture(params=["torch", "triton"])
def attention(request: pytest.FixtureRequest) -> Attention:
    """sparse_attention(q, k, v, plan, scale=None) on CPU tensors, once per backend."""
    if request.param == "triton":
        return request.getfixturevalue("triton_attention")

    def on_torch(q, k, v, plan: RowPlan, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return sparse_attention(q, k, v, plan, scale, "torch")

    return on_torch
