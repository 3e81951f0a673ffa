"""``routesparse bench layer`` and ``bench end-to-end``: deciding included, at Llama-3.1-8B's shape, random weights.

A sparse run computes probe, builders, router and certificate in every layer and then runs a fixed plan of a stated
density, or of MInference's published budgets. The bound is the same prefill with attention removed. Stock and compiled
layers are separate rows, each with its own dense baselines. Peak memory is the allocator's, weights and KV cache
included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Pending
from routesparse.engine.decide.layer import begin
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.lab.bench import rivals
from routesparse.engine.lab.bench.problems import Shape, plan_pairs, published_plans, random_plan, tensors
from routesparse.engine.lab.bench.timing import header, sustained
from routesparse.engine.lab.bench.transformer import Attention, Size, Transformer
from routesparse.engine.method.segments import split
from routesparse.engine.profiles.measure import free_settings
from routesparse.kernels.interface import RowPlan, sparse_attention

DENSITIES = (0.05, 0.10, 0.35)
RUNS = 3
LONG_S = 5.0
# Tokens, compiled; the first is all that a quick run does.
CASES = ((131_072, True), (131_072, False), (524_288, True), (65_536, True), (16_384, True))
DENSE_LIMIT = 262_144
SEGMENTS = (16_384, 131_072)


class Decider:
    """Probe, builders, router and certificate of every segment of a layer, as a layer runs them; nothing is kept.

    With random weights the decision means nothing, so the plan that runs is fixed; but every step that would have led
    to a plan is computed, and its cost counts. Graphs are captured at the first calls.
    """

    def __init__(self, segment_tokens: int) -> None:
        self.config = RouterConfig(segment_tokens=segment_tokens)
        self._settings = free_settings(self.config)
        self._graphs: Graphs = Graphs()

    def decide(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[Pending]:
        """Steps 1 to 5 for q [B, Hq, n, d], k and v [B, Hkv, n, d], as layer ``index``."""
        inputs = AttentionInputs(q, k, v, q.shape[3] ** -0.5)
        segments = split(q.shape[2], k.shape[2], self.config)
        return [begin(inputs, segment, index, self._settings, graphs=self._graphs) for segment in segments]


def run_layer(quick: bool, seed: int, note: Callable[[str], None]) -> dict[str, Any]:
    """One layer's attention: deciding and the kernel, against dense attention."""
    rows = []
    for n_tokens in (131_072,) if quick else (32_768, 65_536, 131_072):
        shape = Shape(n_tokens)
        inputs = tensors(shape, seed)
        for name in rivals.DENSE:
            ms = sustained(rivals.dense, name, *inputs, seconds=1.0).median_ms
            rows.append({"what": name, "n_tokens": n_tokens, "density": 1.0, "ms": ms})
        for segment in sorted({min(segment, n_tokens) for segment in SEGMENTS}):
            decider = Decider(segment)
            ms = sustained(decider.decide, 0, *inputs).median_ms
            rows.append({"what": "deciding", "n_tokens": n_tokens, "segment_tokens": segment, "ms": ms})
        for density in DENSITIES:
            plan = random_plan(shape, density, seed)
            ms = sustained(sparse_attention, *inputs, plan).median_ms
            rows.append(
                {
                    "what": "sparse",
                    "n_tokens": n_tokens,
                    "density": plan_pairs(plan) / shape.causal_pairs,
                    "ms": ms,
                }
            )
        for row in rows:
            if row["n_tokens"] == n_tokens:
                note(f"{n_tokens:>7,} {row}")
    return {**header(seed), "rows": rows}


def run_end_to_end(
    quick: bool,
    seed: int,
    segment_tokens: int,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """The whole prefill at 128K tokens, and, unless quick, there with stock layers and at other lengths."""
    model = Transformer(Size(), seed)
    rows = []
    for n_tokens, compiled in CASES[:1] if quick else CASES:
        model.compile(compiled)
        rows += _at(model, n_tokens, seed, segment_tokens, compiled, note)
    shape = {
        "layers": model.size.layers,
        "hidden": model.size.hidden,
        "weights": "random",
        "plans": "fixed, stated density; published: MInference's budgets for this model",
    }
    return {**header(seed), **shape, "segment_tokens": segment_tokens, "rows": rows}


def _dense_by(name: str) -> Attention:
    """A rival's dense attention as a layer of the model calls it."""
    return lambda index, q, k, v: rivals.dense(name, q, k, v)


def _at(
    model: Transformer,
    n_tokens: int,
    seed: int,
    segment_tokens: int,
    compiled: bool,
    note: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Rows of one length. Above DENSE_LIMIT dense attention is timed in one layer, and added for all of them."""
    shape, layers = Shape(n_tokens), model.size.layers
    whole = n_tokens <= DENSE_LIMIT
    rows: list[dict[str, Any]] = []

    def add(what: str, attention: Attention, **more: object) -> float:
        seconds, peak_bytes, runs = _prefill_seconds(model, n_tokens, seed, attention)
        row = {
            "what": what,
            "n_tokens": n_tokens,
            "compiled": compiled,
            "seconds": seconds,
            "runs": runs,
            "peak_bytes": peak_bytes,
        }
        rows.append({**row, **more})
        note(f"{n_tokens:>7,} {'compiled' if compiled else 'stock':<8} {what:<12} {seconds:8.3f} s {more}")
        return seconds

    free = add("no attention", lambda index, q, k, v: q)
    for name in rivals.DENSE:
        if whole:
            add(name, _dense_by(name))
        else:
            inputs = tensors(shape, seed)
            ms = sustained(rivals.dense, name, *inputs, seconds=0.0, least_runs=2).median_ms
            del inputs
            seconds = free + layers * ms / 1e3
            rows.append(
                {
                    "what": name,
                    "n_tokens": n_tokens,
                    "compiled": compiled,
                    "seconds": seconds,
                    "peak_bytes": None,
                    "extrapolated_from_layers": 1,
                }
            )
            note(f"{n_tokens:>7,} {name} {seconds:.2f} s, extrapolated from one layer's {ms:.0f} ms")
    for density in DENSITIES if whole else DENSITIES[:1]:
        plan = random_plan(shape, density, seed)
        exact = plan_pairs(plan) / shape.causal_pairs
        torch.cuda.empty_cache()
        add(f"sparse {density:.0%}", _routed([plan], segment_tokens), density=exact, deciding=True)
        add(f"kernel {density:.0%}", _fixed(plan), density=exact, deciding=False)
    del plan
    if whole and compiled:
        plans = published_plans(shape, seed)
        exact = sum(map(plan_pairs, plans)) / len(plans) / shape.causal_pairs
        torch.cuda.empty_cache()
        add("published", _routed(plans, segment_tokens), density=exact, deciding=True)
    return _ratios(rows)


def _routed(plans: list[RowPlan], segment_tokens: int) -> Attention:
    """Layer i decides, and then runs plan i, or the only one."""
    decider = Decider(segment_tokens)

    def attention(index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        decider.decide(index, q, k, v)
        return sparse_attention(q, k, v, plans[index % len(plans)])[0]

    return attention


def _fixed(plan: RowPlan) -> Attention:
    return lambda index, q, k, v: sparse_attention(q, k, v, plan)[0]


def _prefill_seconds(
    model: Transformer, n_tokens: int, seed: int, attention: Attention
) -> tuple[float, int, int]:
    """Median seconds of RUNS prefills (of one, where that takes longer than LONG_S), peak allocated bytes, runs.

    A prefill before them warms up.
    """
    generator = torch.Generator("cuda").manual_seed(seed)
    size = (1, n_tokens, model.size.hidden)
    times: list[float] = []
    while len(times) < RUNS + 1 and not (len(times) == 2 and times[-1] > LONG_S):
        x = torch.randn(size, generator=generator, device="cuda", dtype=torch.bfloat16)
        torch.cuda.reset_peak_memory_stats()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        cache = model.prefill(x, attention)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
        del cache, x
    counted = sorted(times[1:])
    return counted[len(counted) // 2], torch.cuda.max_memory_allocated(), len(counted)


def _ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with its speed-up over both dense kernels and its share of the bound."""
    seconds = {row["what"]: row["seconds"] for row in rows}
    for row in rows:
        for name in rivals.DENSE:
            row[f"speedup_over_{name}"] = seconds[name] / row["seconds"]
        row["share_of_bound"] = seconds["no attention"] / row["seconds"]
    return rows
