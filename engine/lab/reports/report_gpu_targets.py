"""The GPU page's first table: each target beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from routesparse.engine.lab.reports.gpu_results import (
    LLAMA_HEADS,
    LLAMA_LAYERS,
    compiled_ends,
    deciding_at,
    llama_profile,
    rows_of,
    sustained_ms,
    within_prefill_ms,
)
from routesparse.engine.lab.reports.result_files import read

PERCENTS = (5, 10, 20)  # of the causal area


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
    """(what, target, measured) of every row."""
    yield from _of_the_kernel()
    yield (
        "deciding (probe, builders, router, certificate), 131,072, a layer: alone / in a row / within a prefill",
        "<= 2 ms",
        f"{' / '.join(_deciding_times())} ms",
    )
    yield from _of_the_prefill()
    yield _growth()
    yield (
        f"break-even of the 8B shape, predicted by the latency model ({LLAMA_LAYERS} layers, density 35 %, setup of a "
        "new length included)",
        "<= 16,384 tokens",
        f"{llama_profile().break_even_tokens(LLAMA_HEADS, LLAMA_LAYERS):,}",
    )
    yield _of_the_bundled_model()


def _of_the_kernel() -> Iterator[tuple[str, str, str]]:
    rows = rows_of("kernel_h200.json")

    def each(value: Callable[[int], float]) -> str:
        return " / ".join(f"{value(percent):.2f}" for percent in PERCENTS)

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


def _of_the_prefill() -> Iterator[tuple[str, str, str]]:
    runs = compiled_ends()
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
        bare = runs[tokens, "no attention"]["seconds"]
        spent = row["seconds"] - bare
        speed = [(runs[tokens, what]["seconds"] - bare) / spent for what in ("cudnn", "flash2")]
        yield (
            f"the same, attention with deciding alone: seconds above *no attention*, {tokens:,}: over cuDNN / "
            "FlashAttention-2",
            "- / 6.5",
            _numbers(speed),
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


def _growth() -> tuple[str, str, str]:
    rows = rows_of("kernel_h200.json")
    spreads = []
    for percent in PERCENTS:
        rates = [
            row["tflops"] for (_, what), row in rows.items() if what == f"sparse {percent}%" and _ >= 65_536
        ]
        spreads.append(max(rates) / min(rates) - 1)
    return (
        "growth: spread of time / (density n^2), 65,536 to 524,288, 5 / 10 / 20 %",
        "<= 15 %",
        " / ".join(f"{spread:.0%}" for spread in spreads),
    )


def _of_the_bundled_model() -> tuple[str, str, str]:
    studied = read("gpu_demo.json")["runs"]
    slowest = {
        routed: min((r["paired_ratio"], r["tokens"]) for r in studied if r["routed"] is routed)
        for routed in (True, False)
    }
    return (
        "bundled model, dense / routed, in turn: least where routing chose sparse; least below break-even",
        ">= .97",
        "; ".join(f"{slowest[r][0]:.2f} ({slowest[r][1]:,} tokens)" for r in (True, False)),
    )


def _deciding_times() -> tuple[str, str, str]:
    """Milliseconds a layer at 131,072 tokens: alone, in a row, and within a prefill."""
    alone = deciding_at(131_072, 131_072)["decided_ms"]
    return f"{alone:.1f}", f"{sustained_ms():.2f}", f"{within_prefill_ms(5):.2f}"


def _numbers(values: list[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)
