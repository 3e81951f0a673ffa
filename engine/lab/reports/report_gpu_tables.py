"""The GPU page's tables: kernel, prefill, deciding, the bundled model, a new machine's first prompt."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from routesparse.engine.config import RouterConfig
from routesparse.engine.lab.reports.gpu_results import (
    LLAMA_HEADS,
    LLAMA_LAYERS,
    deciding_at,
    llama_profile,
    rows_of,
    sustained_ms,
    within_prefill_ms,
)
from routesparse.engine.lab.reports.result_files import read
from routesparse.engine.method.segments import split

TILE_FLOPS = 4 * 128 * 64 * 128  # of 128 queries and one KV block, both products


def kernel() -> list[str]:
    """The sparse kernel alone, and its ablations."""
    result, rows = read("kernel_h200.json"), rows_of("kernel_h200.json")
    versions = result["versions"]
    lines = [
        f"**The kernel**, random blocks of 64 keys, sorting of rows included. Throughput counts the (query, key) pairs "
        f"that the plan reads; a large matrix product reaches {result['ceiling_tflops']:.0f} TFLOP/s there. torch "
        f"{versions['torch']}, triton {versions['triton']}, limit {result['power_limit']}, seed {result['seed']}, "
        f"`{result['command']}`; medians of runs in a row after the first third.",
        "",
        "| tokens | what | density | ms (20 to 80 %) | TFLOP/s | / cuDNN's |",
        "|---|---|---|---|---|---|",
    ]
    for (tokens, what), row in rows.items():
        if what.startswith(("loads", "launches")):
            continue
        times = f"{row['median_ms']:.2f} ({row['p20_ms']:.2f} to {row['p80_ms']:.2f})"
        if row.get("extrapolated"):
            times = f"{row['median_ms']:.0f}, extrapolated"
        lines.append(
            f"| {tokens:,} | {what} | {row['density']:.3f} | {times} | {row['tflops']:.0f} | {row['ratio']:.2f} |"
        )
    lines += [
        "",
        "What a row (128 queries) costs beside its blocks, by a line through 5, 10 and 20 %: the time of "
        f"{_row_costs(rows)}. The docstring of `kernels/attention/hopper_kernel.py` says why, and "
        "[a note](notes/hopper_kernel.md) what was tried against it.",
        "",
        "**Ablations** at 131,072 tokens and 10 %. Loads: by pointer, by TMA descriptor, by a producer warp group. "
        "Launches: every head in one, four groups, one a head. Predicted: times of mixed plans by FLOPs at the dense "
        "rate, and by the shipped latency profile, which one linear model fits to all lengths.",
        "",
        "| what | |",
        "|---|---|",
    ]
    for (_, what), row in rows.items():
        if what.startswith(("loads", "launches")):
            lines.append(f"| {what} | {row['median_ms']:.1f} ms |")
    for tokens in (8_192, 131_072):
        flops, fitted = _prediction_errors(tokens)
        lines.append(
            f"| median error of a prediction, {tokens:,} tokens | FLOPs {flops:.0%}, profile {fitted:.0%} |"
        )
    return [*lines, ""]


def prefill() -> list[str]:
    """A whole prefill at the shape of an 8B model."""
    result = read("end_to_end_h200.json")
    lines = [
        "**A prefill at Llama-3.1-8B's shape**: random weights, so no routing and no quality, only time. *sparse* "
        "runs a forced plan of the stated density; probe, builders, router and certificate run in every layer, their "
        "time counts, and the plan that they choose is not used. *kernel* is the same without deciding. *published* "
        "runs MInference's budgets for this model. *recorded* runs the plans that the router chose for the bundled "
        f"model on {result['prompt']}: its heads and layers in turn; its peak holds that model and its plans too. *no "
        "attention* is the bound.",
        "",
        f"`{result['command']}`; layers with stock and with compiled RMSNorm, RoPE and gate stand apart. Each line "
        "is the median of its runs after one that warms up (one run where it takes more than 5 s)."
        f"{_meanwhile(result)}",
        "",
        "| tokens | layers | what | density | s | runs | / cuDNN | / FlashAttention-2 | share of bound | peak GiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        density = f"{row['density']:.3f}" if "density" in row else ""
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.1f}"
        what = row["what"] + (", extrapolated" if "extrapolated_from_layers" in row else "")
        what += f" (at {row['git_commit'][:7]})" if "git_commit" in row else ""
        flash2 = row.get("speedup_over_flash2")
        lines.append(
            f"| {row['n_tokens']:,} | {'compiled' if row['compiled'] else 'stock'} | {what} | {density} | "
            f"{row['seconds']:.2f} | {row.get('runs', 'one layer')} | {row['speedup_over_cudnn']:.2f} | "
            f"{'' if flash2 is None else f'{flash2:.2f}'} | {row['share_of_bound']:.0%} | {peak} |"
        )
    return [*lines, ""]


def deciding() -> list[str]:
    """What deciding costs a layer."""
    result = read("deciding_h200.json")
    lines = [
        "**Deciding**, a layer of that shape: probe, builders, scores, router, certificate, row plan and record. "
        "*graph* replays a CUDA graph, *launched* launches kernel by kernel with the host ahead. "
        f"`{result['command']}`; medians of nine single decisions. *memory* is the most that one takes beside Q, K, V.",
        "",
        "| tokens | segment | graph ms | launched ms | probe / indices, scores / router, certificate ms | memory |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        parts = " / ".join(f"{row[name] / 1e3:.2f}" for name in ("probe_us", "index_us", "route_us"))
        lines.append(
            f"| {row['tokens']:,} | {row['segment_tokens']:,} | {row['decided_ms']:.2f} | {row['launched_ms']:.2f} | "
            f"{parts} | {row['peak_mib']:,.0f} MiB |"
        )
    layer = read("layer_h200.json")
    return [
        *lines,
        "",
        f"At 131,072 tokens and one segment the {deciding_at(131_072, 131_072)['decided_ms']:.2f} ms are of single "
        f"decisions with idle time between them. In a row, at commit {layer['git_commit'][:7]}, they "
        f"took {sustained_ms():.2f} ms "
        f"(`{layer['command']}`). Within a prefill, the compiled rows *sparse* minus *kernel* above over "
        f"{LLAMA_LAYERS} layers, deciding added {within_prefill_ms(5):.2f} ms at 5 % and "
        f"{within_prefill_ms(10):.2f} ms at 10 %.",
        "",
    ]


def demo() -> list[str]:
    """The demo model through the worker's analysis."""
    result = read("gpu_demo.json")
    lines = [
        "**The bundled model on that GPU**, routed by itself through the worker's own analysis: test documents, one "
        f"segment, default policy, bfloat16, medians of two runs after one. `{result['command']}`.{_meanwhile(result)}",
        "",
        "| tokens | dense ms | routed ms | dense / routed | in turn | each in a row | first ms | deciding ms | "
        "density | planned / measured | peak MiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in sorted(result["runs"], key=lambda run: run["tokens"]):
        spent = sum(run[name] for name in ("probe_ms", "index_ms", "route_ms"))
        decided, peak = "dense, untouched | | ", run["peak_memory_bytes"]
        if run["routed"]:
            decided = f"{spent:.1f} | {run['density']:.2f} | {run['planned_over_measured']:.2f}"
        lines.append(
            f"| {run['tokens']:,} | {run['dense_ms']:.1f} | {run['total_ms']:.1f} | {run['speed_up']:.2f} | "
            f"{run['paired_ratio']:.2f} (n {run['pairs']}) | {run['row_ratio']:.2f} ({run['dense_row_ms']:.1f} / "
            f"{run['routed_row_ms']:.1f} ms) | {run['first_total_ms']:,.0f} | {decided} "
            f"| {'' if peak is None else f'{peak / 2**20:.0f}'} |"
        )
    lines += [
        "",
        "*dense / routed* is from one record, in which the dense prefill runs second; *in turn* is the median of pairs "
        "in which each goes first in every other pair; *each in a row* is the median of as many dense ones one "
        "after another over that of routed ones, as a server runs them: this GPU's clock falls under dense attention, "
        "so that in turn the routed prefill pays for the dense one before it. *first* is the first run of a length in "
        "a new process, which compiles what no length before it needed, and captures its graphs. *planned / measured* "
        "is the latency model's time for deciding and attention over the measured one.",
        "",
    ]
    return lines


def _meanwhile(result: Mapping[str, Any]) -> str:
    """What else the host did, where the file says it."""
    return f" {result['meanwhile']}" if "meanwhile" in result else ""


def _row_costs(rows: dict[tuple[int, str], dict[str, Any]]) -> str:
    """The kernel's time as a line through its densities: the rate of the blocks alone, and a row's fixed part."""
    told = []
    for tokens in (65_536, 131_072):
        measured = [rows[tokens, f"sparse {percent}%"] for percent in (5, 10, 20)]
        slope, fixed = np.polyfit(
            [row["flops"] for row in measured], [row["median_ms"] for row in measured], 1
        )
        blocks = fixed / (slope * TILE_FLOPS) / (LLAMA_HEADS * tokens / 128)
        told.append(f"{blocks:.1f} KV blocks at {tokens:,} tokens (blocks alone: {1e-9 / slope:.0f} TFLOP/s)")
    return " and ".join(told)


def _prediction_errors(tokens: int) -> tuple[float, float]:
    """Median relative error of mixes' times at one length, from FLOPs at the dense rate and by the profile's model."""
    profile = llama_profile()
    cells = [cell for cell in profile.cells if cell["n"] == tokens and cell.get("tiles")]
    dense = next(cell for cell in cells if cell["mix"] == "dense")
    rate = dense["best_us"] / dense["tiles"]
    segment = split(tokens, tokens, RouterConfig(segment_tokens=tokens))[-1]
    tail = segment.causal_tiles(body_only=False) - segment.causal_tiles()
    by_flops, by_profile = [], []
    for cell in cells:
        if cell is dense:
            continue
        work = cell["tiles"] + cell["columns"] / profile.block_k
        by_flops.append(abs(rate * work / cell["best_us"] - 1.0))
        fitted = cell.get("predicted_us")
        if fitted is None:  # a profile of random plans: every head is sparse
            tiles, columns = (np.array(cell[name] / LLAMA_HEADS) for name in ("tiles", "columns"))
            fitted = LLAMA_HEADS * float(profile.sparse_us(segment, tiles - tail, columns))
        by_profile.append(abs(fitted / cell["best_us"] - 1.0))
    return statistics.median(by_flops), statistics.median(by_profile)
