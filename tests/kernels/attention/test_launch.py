"""What the Triton backend decides before a launch: row order, descriptors and the fastest configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from routesparse.kernels.attention import possible_loads
from routesparse.kernels.attention.operands import descriptor_strides, fits_descriptor
from routesparse.kernels.attention.row_order import row_order, row_order_triton
from routesparse.kernels.attention.triton_launch import Config, fastest
from routesparse.kernels.interface import RowPlan
from tests.stand_in_gpu import stand_in_gpu


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("n_q", [640, 300, 1], ids=["whole", "chunk", "row"])
def test_row_order_keeps_a_kv_head_together_and_puts_its_longest_row_first(
    n_q: int, backend: str, in_triton: Callable[..., Any]
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = -(-n_q // 128)
    plan = RowPlan.from_block_mask(
        torch.rand(2, 4, rows, 10, generator=generator) < 0.5,
        n_q,
        640,
        columns=torch.randint(0, 640, (2, 4, 200), generator=generator),
        dense_rows=torch.rand(2, 4, rows, generator=generator) < 0.3,
    )
    if backend == "triton":
        there = plan.to("cuda") if torch.cuda.is_available() else plan
        order = in_triton(row_order_triton, there, 2).cpu().long()
    else:
        order = row_order(plan, group=2).long()
    assert order.sort().values.tolist() == list(range(2 * 4 * rows))
    tiles = plan.block_count + (plan.column_count + 63) // 64
    last_block = plan.query_positions()[1] // 64 + 1
    tiles = torch.where(plan.dense_rows, last_block, tiles).flatten()[order].view(4, -1)
    assert (order.view(4, -1) // (2 * rows) == torch.arange(4)[:, None]).all()
    # So few tiles have a step each.
    assert (tiles[:, 1:] <= tiles[:, :-1]).all()


@pytest.mark.parametrize(
    "tensor, fits",
    [
        (torch.zeros(2, 3, 50, 64, dtype=torch.bfloat16), True),
        (torch.zeros(2, 50, 3, 64, dtype=torch.bfloat16).transpose(1, 2), True),
        (torch.zeros(1, 1, 50, 80, dtype=torch.bfloat16), True),
        (torch.zeros(2, 3, 50, 65, dtype=torch.bfloat16)[..., :64], False),
        (torch.zeros(2, 3, 50, 68, dtype=torch.bfloat16)[..., 4:], False),
        (torch.zeros(2, 3, 64, 50, dtype=torch.bfloat16).mT, False),
        (torch.zeros(1, 3, 50, 64, dtype=torch.bfloat16).expand(2, -1, -1, -1), False),
    ],
    ids=["contiguous", "interleaved", "head-80", "odd-pitch", "odd-start", "transposed", "expanded"],
)
def test_descriptors_need_aligned_rows(tensor: torch.Tensor, fits: bool) -> None:
    assert fits_descriptor(tensor) == fits


def test_an_axis_of_length_one_may_have_any_stride() -> None:
    tensor = torch.zeros(40_000, dtype=torch.bfloat16).as_strided((1, 2, 50, 64), (3, 6400, 128, 1))
    assert fits_descriptor(tensor)
    assert descriptor_strides(tensor) == [64, 6400, 128, 1]


@pytest.mark.parametrize(
    "capability, dtype, head_size, options, best",
    [
        ((9, 0), torch.bfloat16, 128, {}, "producer"),
        ((9, 0), torch.float16, 64, {"sinks": torch.zeros(2)}, "producer"),
        ((9, 0), torch.bfloat16, 80, {}, "descriptor"),
        ((9, 0), torch.bfloat16, 128, {"key_start": torch.zeros(1, dtype=torch.int32)}, "descriptor"),
        ((9, 0), torch.bfloat16, 128, {"window": 100}, "descriptor"),
        ((9, 0), torch.bfloat16, 128, {"softcap": 5.0}, "descriptor"),
        ((9, 0), torch.bfloat16, 128, {"block_q": 64}, "descriptor"),
        ((9, 0), torch.float32, 128, {}, "pointer"),
        ((10, 0), torch.bfloat16, 128, {}, "descriptor"),
        ((8, 0), torch.bfloat16, 128, {}, "pointer"),
    ],
    ids=lambda value: str(value) if not isinstance(value, dict) else "-".join(value) or "plain",
)
def test_the_compute_capability_and_the_plan_choose_the_kernel(
    capability, dtype, head_size: int, options: dict, best: str, monkeypatch
) -> None:
    stand_in_gpu(monkeypatch, 10 * capability[0])
    q, k = torch.zeros(1, 2, 256, head_size, dtype=dtype), torch.zeros(1, 1, 256, head_size, dtype=dtype)
    plan = RowPlan.dense(1, 2, 256, 256, **options)
    possible = possible_loads(q, k, k, plan, interpreted=False)
    assert possible[0] == best
    assert possible[-1] == "pointer"


def test_the_fastest_configuration_is_measured_once_and_kept(monkeypatch) -> None:
    stand_in_gpu(monkeypatch, 90)
    slow, fast, kind = Config(False, 4, 1), Config(True, 8, 2), object()
    measured = []

    def time_ms(run) -> float:
        measured.append(run())
        return 1.0 if measured[-1] is fast else 2.0

    for _ in range(2):
        assert fastest(kind, [slow, fast], lambda config: config, time_ms) is fast
    assert measured == [slow, fast]


def test_nothing_is_measured_while_a_graph_is_captured(monkeypatch) -> None:
    stand_in_gpu(monkeypatch, 90)
    first, second, kind = Config(True, 8, 2), Config(False, 8, 2), object()
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert fastest(kind, [first, second], lambda config: pytest.fail("measured")) is first
    times = iter([2.0, 1.0])
    assert fastest(kind, [first, second], lambda config: config, lambda run: next(times)) is second
