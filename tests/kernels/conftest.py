"""Both backends behind one fixture, on poisoned memory: torch.empty comes filled with NaN."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from routesparse.kernels.interface import RowPlan, sparse_attention
from routesparse.kernels.triton_backend import Loads, attend

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
    return attend(q, k, v, plan, q.shape[-1] ** -0.5 if scale is None else scale, loads)


@pytest.fixture(scope="session")
def triton_attention() -> Iterator[Attention]:
    """sparse_attention on Triton: on the GPU where there is one, else interpreted in a process of its own.

    ``loads`` asks for one way of loading tiles.

    The interpreter must be chosen before Triton is first imported, which another test may have caused.
    """
    if torch.cuda.is_available():

        def on_gpu(q, k, v, plan: RowPlan, scale: float | None = None, loads: Loads | None = None):
            out, lse = _on_triton(q.cuda(), k.cuda(), v.cuda(), plan.to("cuda"), scale, loads)
            return out.cpu(), lse.cpu()

        yield on_gpu
        return
    pytest.importorskip("triton")
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, torch.use_deterministic_algorithms, (True,)) as pool:
        pool.submit(os.getpid).result()
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before

        def interpreted(q, k, v, plan: RowPlan, scale: float | None = None, loads: Loads | None = None):
            return pool.submit(_on_triton, q, k, v, plan, scale, loads).result()

        yield interpreted


@pytest.fixture(params=["torch", "triton"])
def attention(request: pytest.FixtureRequest) -> Attention:
    """sparse_attention(q, k, v, plan, scale=None) on CPU tensors, once per backend."""
    if request.param == "triton":
        return request.getfixturevalue("triton_attention")

    def on_torch(q, k, v, plan: RowPlan, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return sparse_attention(q, k, v, plan, scale, "torch")

    return on_torch
