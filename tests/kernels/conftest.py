"""Both backends behind one fixture, on poisoned memory: torch.empty comes filled with NaN."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from routesparse.kernels.interface import RowPlan, sparse_attention

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Deterministic algorithms fill uninitialised memory with NaN, so an output left unwritten shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def triton_attention() -> Iterator[Attention]:
    """sparse_attention on Triton: on the GPU where there is one, else interpreted in a process of its own.

    The interpreter must be chosen before Triton is first imported, which another test may have caused.
    """
    if torch.cuda.is_available():

        def on_gpu(q, k, v, plan: RowPlan, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
            out, lse = sparse_attention(q.cuda(), k.cuda(), v.cuda(), plan.to("cuda"), scale, "triton")
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

        def interpreted(q, k, v, plan: RowPlan, scale: float | None = None):
            return pool.submit(sparse_attention, q, k, v, plan, scale, "triton").result()

        yield interpreted


@pytest.fixture(params=["torch", "triton"])
def attention(request: pytest.FixtureRequest) -> Attention:
    """sparse_attention(q, k, v, plan, scale=None) on CPU tensors, once per backend."""
    if request.param == "triton":
        return request.getfixturevalue("triton_attention")

    def on_torch(q, k, v, plan: RowPlan, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return sparse_attention(q, k, v, plan, scale, "torch")

    return on_torch
