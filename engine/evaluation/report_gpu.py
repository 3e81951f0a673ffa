"""data/results/GPU.md: targets beside measurements on one GPU, and every table behind them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig
from routesparse.engine.evaluation.result_files import read, write_page
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import split

PROFILES = paths.DATA / "profiles"
LLAMA = "cuda-*-d128-g4-*.json"
LLAMA_HEADS, LLAMA_LAYERS = 32, 32
TILE_FLOPS = 4 * 128 * 64 * 128  # of 128 queries and one KV block, both products


def write() -> None:
    """Replace data/results/GPU.md."""
    lines = [*targets(), *kernel(), *prefill(), *deciding(), *demo(), *first_prompt()]
    write_page("GPU.md", "Measured on a GPU", lines)


def headline() -> tuple[str, str, str]:
    """For the README: prefills whose plans the router chose, and what the 8B shape's forced plans do not say."""
    runs, ends = _routed_runs(), _compiled_ends()
    ratios, lengths = ([run[name] for run in runs] for name in ("paired_ratio", "tokens"))
    recorded = ends[131_072, "recorded"]
    return (
        f"**{min(ratios):.2f} to {max(ratios):.2f}x**",
        f"dense / routed prefill of {' and '.join(f'{n:,}' for n in lengths)} tokens, bundled model, one "
        f"{read('gpu_demo.json')['device']}, bfloat16; {_routed_densities()} is kept "
        "([GPU](data/results/GPU.md))",
        f"Not the speed-up of an 8B model. At that shape, random weights and this model's plans "
        f"({100 * recorded['density']:.0f} %) were {recorded['speedup_over_cudnn']:.2f} times as fast as cuDNN's dense "
        "prefill at 131,072 tokens, deciding included. This model was trained to 65,536 tokens.",
    )


def _routed_runs() -> list[dict[str, Any]]:
    """Of the bundled model, where it was long enough for the router to choose sparse plans."""
    return [run for run in read("gpu_demo.json")["runs"] if run["routed"]]


def _routed_densities() -> str:
    kept = [run["density"] for run in _routed_runs()]
    low, high = (f"{100 * share:.0f}" for share in (min(kept), max(kept)))
    return f"{low if low == high else f'{low} to {high}'} % of the causal area"


def _deciding_times() -> tuple[str, str, str]:
    """Milliseconds a layer at 131,072 tokens: alone, in a row, and within a prefill."""
    alone = _decided(131_072, 131_072)["decided_ms"]
    return f"{alone:.1f}", f"{_sustained_ms():.2f}", f"{_within_prefill_ms(5):.2f}"


def _sustained_ms() -> float:
    """One layer's deciding, called again and again until the GPU has the clock of a long run."""
    (row,) = (
        row
        for row in read("layer_h200.json")["rows"]
        if (row["what"], row["n_tokens"], row.get("segment_tokens")) == ("deciding", 131_072, 131_072)
    )
    return row["ms"]


def _within_prefill_ms(percent: int) -> float:
    """What deciding adds to one layer of a whole prefill: with it minus without it, at 131,072 tokens, compiled."""
    ends = _compiled_ends()
    with_it, without = (ends[131_072, f"{what} {percent}%"]["seconds"] for what in ("sparse", "kernel"))
    return (with_it - without) / LLAMA_LAYERS * 1e3


def targets() -> list[str]:
    """Each target beside what was measured, computed here."""
    result, correct = read("kernel_h200.json"), read("correctness_h200.json")
    lines = [
        f"**Targets and measurements on one {result['device']}**: bfloat16, 32 query and 8 KV heads of 128, ratios "
        f"within one run, torch {result['versions']['torch']}, triton {result['versions']['triton']}, seed "
        f"{result['seed']}. Against the float64 oracle {correct['passed']} of {len(correct['findings'])} cases pass "
        f"(`{correct['command'].split(' (')[0]}`).",
        "",
        "A *forced plan* is a random plan of a stated density: the weights are random, so a routed plan would mean "
        "nothing. Deciding runs in every layer beside it, its time counts, and its result is not used. *Recorded "
        "plans* are those that the router chose for the bundled model's heads on real text, lent to the larger shape's "
        "heads and layers in turn.",
        "",
        "| what | target | measured |",
        "|---|---|---|",
    ]
    lines += [f"| {what} | {target} | {reached} |" for what, target, reached in _reached()]
    picture = "../pictures/gpu_throughput.png"
    return [
        *lines,
        "",
        f"Measured at these commits: {_commits()}.",
        "",
        f"![Throughput by length, and a prefill of the 8B shape with forced plans]({picture})",
        "",
    ]


def _commits() -> str:
    """Which commit each of the files was measured at."""
    names = ("kernel", "deciding", "end_to_end", "layer", "correctness")
    where = {name.replace("_", " "): read(f"{name}_h200.json")["git_commit"] for name in names}
    where["demo model"] = read("gpu_demo.json")["git_commit"]
    return ", ".join(f"{name} {commit[:7]}" for name, commit in where.items())


def _reached() -> Iterator[tuple[str, str, str]]:
    rows = _rows("kernel_h200.json")
    percents = (5, 10, 20)

    def each(value: Callable[[int], float]) -> str:
        return " / ".join(f"{value(percent):.2f}" for percent in percents)

    def over_cudnn(tokens: int, percent: int) -> float:
        return sparse_rate(tokens, percent) / rows[tokens, "cudnn"]["tflops"]

    def over_flex(tokens: int, percent: int) -> float:
        ours, theirs = (rows[tokens, f"{name} {percent}%, blocks of 128"] for name in ("sparse", "flex"))
        return theirs["median_ms"] / ours["median_ms"]

    def with_columns(percent: int) -> float:
        return rows[131_072, f"sparse {percent}% + 1000 columns"]["tflops"] / sparse_rate(131_072, percent)

    def sparse_rate(tokens: int, percent: int) -> float:
        return rows[tokens, f"sparse {percent}%"]["tflops"]

    for tokens, least in ((65_536, ".95"), (131_072, "1.0"), (262_144, "1.0")):
        yield (
            f"sparse throughput / cuDNN's dense, {tokens:,} tokens, density 5 / 10 / 20 %",
            f">= {least}",
            each(partial(over_cudnn, tokens)),
        )
    for tokens in (65_536, 131_072):
        yield (
            f"/ FlexAttention's, the same mask (blocks of 128), {tokens:,}, 5 / 10 / 20 %",
            ">= 1.4",
            each(partial(over_flex, tokens)),
        )
    yield (
        "with 1,000 gathered columns a row, share of block-only throughput, 131,072, 5 / 10 / 20 %",
        ">= .8",
        each(with_columns),
    )
    dense = rows[131_072, "cudnn"]["median_ms"]
    speed = [dense / rows[131_072, f"sparse {percent}%"]["median_ms"] for percent in (10, 5)]
    yield "attention speed-up over cuDNN, 131,072, density 10 / 5 %", ">= 9.5 / 20", _numbers(speed)
    yield (
        "deciding (probe, builders, router, certificate), 131,072, a layer: alone / in a row / within a prefill",
        "<= 2 ms",
        f"{' / '.join(_deciding_times())} ms",
    )

    runs = _compiled_ends()
    sparse, dense_run = runs[131_072, "sparse 5%"], runs[131_072, "cudnn"]
    yield (
        "8B shape, random weights, 131,072, forced plan of 5 %, deciding included: speed-up over cuDNN / "
        "FlashAttention-2 / share of the free-attention bound",
        ">= 3.0 / 4.5 / 83 %",
        f"{sparse['speedup_over_cudnn']:.2f} / {sparse['speedup_over_flash2']:.2f} / {sparse['share_of_bound']:.0%}",
    )
    for tokens in (131_072, 65_536):
        row = runs[tokens, "recorded"]
        yield (
            f"8B shape, random weights, {tokens:,}, recorded plans ({row['density']:.0%} kept), deciding included: "
            "over cuDNN / FlashAttention-2",
            "",
            f"{row['speedup_over_cudnn']:.2f} / {row['speedup_over_flash2']:.2f}",
        )
    yield (
        "8B shape, forced plan of 5 %, at 524,288 over cuDNN (dense extrapolated from one layer)",
        ">= 6.8",
        f"{runs[524_288, 'sparse 5%']['speedup_over_cudnn']:.1f}",
    )
    yield (
        "peak memory over dense, 131,072",
        "<= 3 %",
        f"{sparse['peak_bytes'] / dense_run['peak_bytes'] - 1:.1%}",
    )
    spreads = []
    for percent in percents:
        rates = [
            row["tflops"] for (_, what), row in rows.items() if what == f"sparse {percent}%" and _ >= 65_536
        ]
        spreads.append(max(rates) / min(rates) - 1)
    yield (
        "growth: spread of time / (density n^2), 65,536 to 524,288, 5 / 10 / 20 %",
        "<= 15 %",
        " / ".join(f"{spread:.0%}" for spread in spreads),
    )
    profile = _llama_profile()
    yield (
        f"break-even of the 8B shape, predicted by the latency model ({LLAMA_LAYERS} layers, density 35 %, setup of a "
        "new length included)",
        "<= 16,384 tokens",
        f"{profile.break_even_tokens(LLAMA_HEADS, LLAMA_LAYERS):,}",
    )
    studied = read("gpu_demo.json")["runs"]
    slowest = {
        routed: min((r["paired_ratio"], r["tokens"]) for r in studied if r["routed"] is routed)
        for routed in (True, False)
    }
    yield (
        "bundled model, dense / routed, in turn: least where routing chose sparse; least below break-even",
        ">= .97",
        "; ".join(f"{slowest[r][0]:.2f} ({slowest[r][1]:,} tokens)" for r in (True, False)),
    )


def kernel() -> list[str]:
    """The sparse kernel alone, and its ablations."""
    result, rows = read("kernel_h200.json"), _rows("kernel_h200.json")
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
        f"{_row_costs(rows)}. The docstring of `kernels/attention/hopper_kernel.py` says why, and CHANGELOG.md what "
        "was tried against it.",
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
        "is the median of its runs after one that warms up (one run where it takes more than 5 s).",
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
        f"At 131,072 tokens and one segment the {_decided(131_072, 131_072)['decided_ms']:.2f} ms are of single "
        f"decisions with idle time between them. Decisions in a row took {_sustained_ms():.2f} ms "
        f"(`{layer['command']}`). Within a prefill, the compiled rows *sparse* minus *kernel* above over "
        f"{LLAMA_LAYERS} layers, deciding added {_within_prefill_ms(5):.2f} ms at 5 % and "
        f"{_within_prefill_ms(10):.2f} ms at 10 %.",
        "",
    ]


def demo() -> list[str]:
    """The demo model through the worker's analysis."""
    result = read("gpu_demo.json")
    lines = [
        "**The bundled model on that GPU**, routed by itself through the worker's own analysis: test documents, one "
        f"segment, default policy, bfloat16, medians of two runs after one. `{result['command']}`.",
        "",
        "| tokens | dense ms | routed ms | dense / routed | in turn | first ms | deciding ms | density | "
        "planned / measured | peak MiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in result["runs"]:
        spent = sum(run[name] for name in ("probe_ms", "index_ms", "route_ms"))
        decided, peak = "dense, untouched | | ", run["peak_memory_bytes"]
        if run["routed"]:
            decided = f"{spent:.1f} | {run['density']:.2f} | {run['planned_over_measured']:.2f}"
        lines.append(
            f"| {run['tokens']:,} | {run['dense_ms']:.1f} | {run['total_ms']:.1f} | {run['speed_up']:.2f} | "
            f"{run['paired_ratio']:.2f} (n {run['pairs']}) | {run['first_total_ms']:,.0f} | {decided} "
            f"| {'' if peak is None else f'{peak / 2**20:.0f}'} |"
        )
    told = "; ".join(
        f"{row['task']} at {row['tokens']:,}: dense {row['dense']:.0f}, routed {row['routed']:.0f}, same text "
        f"{row['identical']:.0%} (n {row['n']}, density {row['density']:.2f})"
        for row in result["needles"]
    )
    lines += [
        "",
        "*dense / routed* is from one record, in which the dense prefill runs second; *in turn* is the median of pairs "
        "in which each goes first in every other pair. *first* is the first run of a length in a new process, which "
        "compiles what no length before it needed, and captures its graphs. *planned / measured* is the latency "
        "model's time for deciding and attention over the measured one.",
        "",
        f"Needles there, with the break-even check off: {told}.",
        "",
    ]
    return lines


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
    profile = _llama_profile()
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


def _llama_profile() -> LatencyProfile:
    return LatencyProfile.load(next(PROFILES.glob(LLAMA)))


def _decided(tokens: int, segment: int) -> dict[str, Any]:
    rows = read("deciding_h200.json")["rows"]
    return next(row for row in rows if (row["tokens"], row["segment_tokens"]) == (tokens, segment))


def _compiled_ends() -> dict[tuple[int, str], dict[str, Any]]:
    return {
        (row["n_tokens"], row["what"]): row for row in read("end_to_end_h200.json")["rows"] if row["compiled"]
    }


def _rows(name: str) -> dict[tuple[int, str], dict[str, Any]]:
    return {(row["n_tokens"], row["what"]): row for row in read(name)["rows"]}


def _numbers(values: list[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


def first_prompt() -> list[str]:
    """How long a new machine's first routed prompts wait for their kernels."""
    result = read("first_prompt_h200.json")
    lines = [
        "**The first routed prompt of a new machine**: the bundled model's weights, random tokens, an empty cache of "
        "kernels. *One by one* compiles each kernel where it is first launched; *prompt* compiles all that the prompt "
        "needs in parallel before its first layer; *worker* compiles for every length when it starts, before any "
        f"prompt. {result['device']}, {result['cores']} CPU cores, one run each. `{result['command']}`.",
        "",
        "| way | s at the start | tokens | first prompt s | later s | kernels compiled for it |",
        "|---|---|---|---|---|---|",
    ]
    for way, found in result["ways"].items():
        start = (
            "" if found["start_s"] is None else f"{found['start_s']:.1f} ({found['start_binaries']} kernels)"
        )
        for row in found["rows"]:
            lines.append(
                f"| {way} | {start} | {row['tokens']:,} | {row['first_s']:.2f} | {row['later_s']:.2f} | "
                f"{row['binaries']} |"
            )
    return [*lines, ""]
