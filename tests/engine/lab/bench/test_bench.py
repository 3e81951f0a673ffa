"""Benchmarks without a GPU: what they count, the rival's mask, and the refusal. Times need a GPU."""

from __future__ import annotations

import json

import pytest
import torch

from routesparse.engine import paths
from routesparse.engine.cli.main import main
from routesparse.engine.lab.bench.end_to_end import Decider
from routesparse.engine.lab.bench.problems import Shape, plan_pairs, published_plans, random_plan, tensors
from routesparse.engine.lab.bench.rivals import _block_mask
from routesparse.engine.lab.bench.transformer import Size, Transformer
from routesparse.kernels.interface import RowPlan, sparse_attention


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


def test_every_layer_of_a_prefill_asks_for_attention_and_keeps_its_keys() -> None:
    """A fixed plan that reads everything gives what dense attention gives."""
    size = Size(layers=3, hidden=64, feed_forward=96, heads=4, kv_heads=2, head_size=16)
    model = Transformer(size, 0, device="cpu")
    x = torch.randn(1, 200, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    asked = []

    def dense(index, q, k, v):
        asked.append((index, tuple(q.shape), tuple(k.shape)))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    plan = RowPlan.dense(1, 4, 200, 200)
    first, second = x.clone(), x.clone()
    cache = model.prefill(first, dense)
    model.prefill(second, lambda index, q, k, v: sparse_attention(q, k, v, plan)[0])
    assert asked == [(index, (1, 4, 200, 16), (1, 2, 200, 16)) for index in range(3)]
    assert [tuple(k.shape) for k, _ in cache] == [(1, 2, 200, 16)] * 3
    torch.testing.assert_close(first, second, atol=3e-2, rtol=3e-2)
    assert not torch.equal(first, x)


def test_deciding_covers_every_segment_of_a_layer() -> None:
    q, k, v = tensors(Shape(n_tokens=2048, heads=2, kv_heads=1, head_size=32), 0, torch.float32, "cpu")
    pendings = Decider(1024).decide(3, q, k, v)
    assert [pending.segment.rows for pending in pendings] == [1024, 1024]
    assert all(tuple(pending.choice.shape) == (1, 2) for pending in pendings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bench_without_a_gpu_says_where_it_runs(capsys) -> None:
    assert main(["bench", "kernel"]) == 2
    assert "bench needs a CUDA GPU" in capsys.readouterr().err


def test_published_budgets_become_columns_and_the_nearest_diagonals() -> None:
    shape = Shape(n_tokens=4_096)
    plans = published_plans(shape, seed=0, device="cpu")
    published = json.loads((paths.DATA / "baselines" / "minference_llama_3.1_8b.json").read_text())["budgets"]
    assert len(plans) == len(published) == 32
    row = plans[0].query_blocks - 1
    for head, (columns, slashes) in enumerate(published[0]):
        count = int(plans[0].block_count[0, head, row])
        blocks = plans[0].blocks[0, head, row, :count].tolist()
        first = row * 2
        reach = -(-slashes // 64)
        assert set(blocks) == {0, *range(max(0, first - reach), first + 2)}
        assert int(plans[0].column_count[0, head, row]) <= columns
        assert reach >= first or int(plans[0].column_count[0, head, row]) > 0.2 * min(columns, 64)
