"""Both backends behind one fixture on poisoned memory, where torch.empty is NaN, and what kernels compile to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from routesparse.kernels.attention import attend_in_triton
from routesparse.kernels.attention.operands import Loads
from routesparse.kernels.interface import RowPlan, sparse_attention
from tests.triton_process import triton_process

SHARED_BYTES = {80: 166_912, 90: 232_448}
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


@pytest.fixture
def ptx_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """ptx_of(kernel, constants, types, capability): the PTX for a GPU that need not be here; its tiles fit there.

    Triton has an empty cache of its own.
    """
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if triton.knobs.runtime.interpret:
        pytest.skip("Triton interprets in this process")

    def compiled(
        kernel: Any,
        constants: dict[str, Any],
        types: dict[str, str],
        capability: int = 90,
        source: Any = None,
        is_aligned: bool = True,
        **options: Any,
    ) -> str:
        names = kernel.arg_names
        attributes = _aligned(names, constants) if is_aligned else None
        source = (source or triton.compiler.ASTSource)(
            kernel, _signature(names, constants, types), constants, attributes
        )
        target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
        found = triton.compile(source, target=target, options=options)
        assert found.metadata.shared <= SHARED_BYTES[capability]
        return found.asm["ptx"]

    return compiled


def _signature(names: list[str], constants: dict, types: dict) -> dict[str, str]:
    """Types of the kernel's arguments by their names."""

    def type_of(name: str) -> str:
        if name in constants:
            return "constexpr"
        default = "*i32" if name.endswith("_ptr") else "fp32" if name.endswith("_log2") else "i32"
        return types.get(name, default)

    return {name: type_of(name) for name in names}


def _aligned(names: list[str], constants: dict) -> dict:
    """Pointers and strides are multiples of 16, as they are for a model's tensors."""
    return {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name not in constants and (name.endswith("_ptr") or "stride" in name)
    }
