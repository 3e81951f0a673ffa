"""``routesparse bench kernel``: sparse attention alone against dense kernels and FlexAttention, in one run.

Throughput counts the (query, key) pairs that the plan reads, exactly, so half of a diagonal block is no work; the
ratio is this throughput over the dense kernel's at the same length. Bound: the same operations at the rate of a large
matrix product in this run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from routesparse.engine.lab.bench import rivals
from routesparse.engine.lab.bench.problems import Shape, plan_pairs, random_plan, tensors
from routesparse.engine.lab.bench.timing import Timing, header, matmul_ceiling_tflops, sustained
from routesparse.kernels.attention import attend_in_triton
from routesparse.kernels.interface import RowPlan, sparse_attention

DENSITIES = (0.05, 0.10, 0.20)
LENGTHS = (16_384, 65_536, 131_072, 262_144, 524_288)
QUICK_LENGTHS = (65_536, 131_072)
# Above this a dense run takes seconds; its time is extrapolated by its work, and the row says so.
DENSE_LIMIT = 262_144
COLUMNS = 1_000
ABLATION_TOKENS = 131_072
GROUPS = 4


def run(quick: bool, seed: int, note: Callable[[str], None]) -> dict[str, Any]:
    """The result object of the benchmark; ``note`` gets a line per row."""
    ceiling = matmul_ceiling_tflops()
    rows = []
    dense_ms: dict[str, float] = {}
    for n_tokens in QUICK_LENGTHS if quick else LENGTHS:
        shape = Shape(n_tokens)
        inputs = tensors(shape, seed)
        measured = _dense_rows(shape, inputs, dense_ms) + list(_sparse_rows(shape, inputs, seed))
        if n_tokens == ABLATION_TOKENS:
            measured += _ablation_rows(shape, inputs, seed)
        baseline = next(row for row in measured if row["what"] == "cudnn")["tflops"]
        for row in measured:
            row["ratio"] = row["tflops"] / baseline
            row["bound_ms"] = row["flops"] / ceiling / 1e9
            note(
                f"{n_tokens:>7,} {row['what']:<34} density {row['density']:.4f} {row['median_ms']:9.3f} ms "
                f"{row['tflops']:6.1f} TFLOP/s, {row['ratio']:.3f} of cuDNN's"
            )
        rows += measured
    return {
        **header(seed),
        "heads": 32,
        "kv_heads": 8,
        "head_size": 128,
        "ceiling_tflops": ceiling,
        "rows": rows,
    }


def _row(shape: Shape, what: str, pairs: float, timing: Timing, **more: object) -> dict[str, Any]:
    flops = shape.flops(pairs)
    return {
        "what": what,
        "n_tokens": shape.n_tokens,
        "density": pairs / shape.causal_pairs,
        **dataclasses.asdict(timing),
        "flops": flops,
        "tflops": flops / timing.median_ms / 1e9,
        **more,
    }


def _dense_rows(
    shape: Shape, inputs: tuple[torch.Tensor, ...], dense_ms: dict[str, float]
) -> list[dict[str, Any]]:
    """cuDNN and FlashAttention-2; ``dense_ms`` keeps the last measured times for the lengths above the limit."""
    rows = []
    for name in rivals.DENSE:
        if shape.n_tokens <= DENSE_LIMIT:
            timing = sustained(rivals.dense, name, *inputs, seconds=1.0)
            dense_ms[name] = timing.median_ms / shape.causal_pairs
            rows.append(_row(shape, name, shape.causal_pairs, timing))
        else:
            ms = dense_ms[name] * shape.causal_pairs
            rows.append(_row(shape, name, shape.causal_pairs, Timing(ms, ms, ms, 0), extrapolated=True))
    return rows


def _sparse_rows(shape: Shape, inputs: tuple[torch.Tensor, ...], seed: int) -> Iterator[dict[str, Any]]:
    for density in DENSITIES:
        plan = random_plan(shape, density, seed)
        timing = sustained(sparse_attention, *inputs, plan)
        yield _row(shape, f"sparse {density:.0%}", plan_pairs(plan), timing)
        if shape.n_tokens in QUICK_LENGTHS:
            plan = random_plan(shape, density, seed, COLUMNS)
            timing = sustained(sparse_attention, *inputs, plan)
            yield _row(shape, f"sparse {density:.0%} + {COLUMNS} columns", plan_pairs(plan), timing)
            plan = random_plan(shape, density, seed, grain_tokens=128)
            pairs = plan_pairs(plan)
            timing = sustained(sparse_attention, *inputs, plan)
            yield _row(shape, f"sparse {density:.0%}, blocks of 128", pairs, timing)
            compiled = rivals.flex(plan, 128)
            timing = sustained(compiled, *inputs)
            yield _row(shape, f"flex {density:.0%}, blocks of 128", pairs, timing)


def _ablation_rows(shape: Shape, inputs: tuple[torch.Tensor, ...], seed: int) -> list[dict[str, Any]]:
    """How tiles are loaded, and how many launches the heads are spread over."""
    plan = random_plan(shape, 0.10, seed)
    pairs = plan_pairs(plan)
    scale = shape.head_size**-0.5
    rows = []
    for loads in ("pointer", "descriptor", "producer"):
        timing = sustained(attend_in_triton, *inputs, plan, scale, loads)
        rows.append(_row(shape, f"loads: {loads}", pairs, timing))
    every = range(shape.heads)
    modes = {
        "fused": [list(every)],
        "grouped": [list(every)[start::GROUPS] for start in range(GROUPS)],
        "per_head": [[head] for head in every],
    }
    for mode, groups in modes.items():
        plans = [plan.select_heads(members) for members in groups]
        timing = sustained(_launches, shape, inputs, groups, plans)
        rows.append(_row(shape, f"launches: {mode}", pairs, timing, launches=len(groups)))
    return rows


def _launches(
    shape: Shape, inputs: tuple[torch.Tensor, ...], groups: list[list[int]], plans: list[RowPlan]
) -> None:
    q, k, v = inputs
    out = torch.empty_like(q)
    for members, plan in zip(groups, plans, strict=True):
        if len(groups) == 1:
            sparse_attention(q, k, v, plan)
            return
        kv = [head * shape.kv_heads // shape.heads for head in members]
        out[:, members] = sparse_attention(q[:, members], k[:, kv], v[:, kv], plan)[0]
