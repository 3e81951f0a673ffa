"""Benchmarks without a GPU: what they count, the rival's mask, and the refusal. Times need a GPU."""

from __future__ import annotations

import pytest
import torch

from routesparse.engine.cli.main import main
from routesparse.engine.lab.bench.problems import Shape, plan_pairs, random_plan
from routesparse.engine.lab.bench.rivals import _block_mask
from routesparse.kernels.interface import RowPlan


def test_a_dense_plan_holds_the_causal_pairs_of_its_shape() -> None:
    shape = Shape(n_tokens=300, heads=4, kv_heads=2, head_size=64, batch=2)
    assert plan_pairs(RowPlan.dense(2, 4, 300, 300)) == shape.causal_pairs
    assert shape.flops(shape.causal_pairs) == 4 * 64 * 2 * 4 * 300 * 301 / 2


@pytest.mark.parametrize("grain_tokens", [64, 128])
def test_the_rival_reads_the_same_keys(grain_tokens: int) -> None:
    """FlexAttention's lists and predicate together give the plan's mask."""
    n, generator = 1024, torch.Generator().manual_seed(1)
    mask = torch.rand(1, 2, n // 128, n // grain_tokens, generator=generator) < 0.4
    mask = mask.repeat_interleave(grain_tokens // 64, -1)
    plan = RowPlan.from_block_mask(mask, n, n)
    blocks = _block_mask(plan, grain_tokens)

    def dense(count: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        kept = torch.zeros(order.shape, dtype=torch.bool)
        live = torch.arange(order.shape[-1]) < count[..., None]
        kept.scatter_(-1, order.long(), live)
        return kept.repeat_interleave(grain_tokens, -1).repeat_interleave(128, -2)

    position = torch.arange(n)
    causal = blocks.mask_mod(None, None, position[:, None], position)
    partial = dense(blocks.kv_num_blocks, blocks.kv_indices)
    full = dense(blocks.full_kv_num_blocks, blocks.full_kv_indices)
    assert torch.equal((partial & causal) | full, plan.to_mask())


@pytest.mark.parametrize("grain_tokens", [64, 128])
def test_a_random_plan_is_valid_and_has_about_the_density_asked_for(grain_tokens: int) -> None:
    shape = Shape(n_tokens=8192, heads=2, kv_heads=1)
    plan = random_plan(shape, 0.2, 3, grain_tokens=grain_tokens, device="cpu").validate()
    assert not plan.dense_rows.any()
    # The diagonal adds its own blocks: at most two of 128 or so.
    assert 0.19 < plan.density < 0.23
    more = random_plan(shape, 0.2, 3, columns=50, device="cpu").validate()
    assert int(more.column_count.max()) > 30


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bench_without_a_gpu_says_where_it_runs(capsys) -> None:
    assert main(["bench", "kernel"]) == 2
    assert "bench needs a CUDA GPU" in capsys.readouterr().err
