"""Write the README's measured section from the result files, so that no figure is typed by hand.

python -m routesparse.engine.evaluation.report            # print it
python -m routesparse.engine.evaluation.report --write    # replace it in README.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from routesparse.engine import paths

RESULTS = paths.DATA / "results"
BEGIN, END = "<!-- measured: python -m routesparse.engine.evaluation.report --write -->", "<!-- /measured -->"


def main(argv: list[str] | None = None) -> None:
    """Print the section, or put it into README.md between its two marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the section in README.md")
    section = "\n".join([*prefill(), *kernel(), *certificates(), *needles()])
    if not parser.parse_args(argv).write:
        print(section)
        return
    readme = paths.REPOSITORY / "README.md"
    before, rest = readme.read_text().split(BEGIN, 1)
    _, after = rest.split(END, 1)
    readme.write_text(f"{before}{BEGIN}\n{section}\n{END}{after}")


def prefill() -> list[str]:
    """Routed against dense prefill."""
    result = _read("prefill_cpu.json")
    lines = [
        "**Prefill on a CPU**, demo model, paired in one run; medians over test windows. "
        f"Deciding is probe, builders, router and certificates. {_source(result)}; peak memory of the whole run "
        f"{result['peak_memory_bytes'] / 2**30:.2f} GiB; break-even on this machine "
        f"{result['break_even_tokens']:,} tokens.",
        "",
        "| tokens | domain | windows | dense s | routed s | dense / routed | deciding share | density |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        density = "dense untouched" if row["density"] is None else f"{row['density']:.2f}"
        lines.append(
            f"| {row['tokens']:,} | {row['domain']} | {row['windows']} | {row['dense_ms'] / 1e3:.2f} | "
            f"{row['routed_ms'] / 1e3:.2f} | {row['ratio']:.2f} | {row['deciding_share']:.0%} | {density} |"
        )
    return [*lines, ""]


def kernel() -> list[str]:
    """The sparse kernel on a GPU, against the fastest dense kernel there."""
    result = _read("kernel_h200.json")
    versions = result["versions"]
    lines = [
        f"**The kernel on one {result['device']}**, {result['heads']} query and {result['kv_heads']} KV heads of "
        f"{result['head_size']}, {result['dtype']}, torch {versions['torch']}, triton {versions['triton']}, seed "
        f"{result['seed']}. Throughput counts the (query, key) pairs that the plan reads; random blocks of 64 keys. "
        f"Measured by {result['measured_by']}. Power: {result['power']}.",
        "",
        "| tokens | density | columns a row | ms | TFLOP/s | throughput / cuDNN's dense | dense time / this |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        name = "dense, cuDNN" if row["what"] == "cudnn" else f"{row['density']:.3f}"
        lines.append(
            f"| {row['n_tokens']:,} | {name} | {row['columns']:,} | {row['median_ms']:.2f} | {row['tflops']:.0f} | "
            f"{row['ratio']:.2f} | {row['speedup_over_cudnn']:.1f} |"
        )
    return [*lines, ""]


def certificates() -> list[str]:
    """The in-prompt certificate by domain."""
    result = _read("certificates.json")
    lines = [
        f"**In-prompt certificate**, nothing calibrated, tau {result['config']['tau']:g}, q "
        f"{result['config']['confidence']:g}, {result['tokens']:,} tokens, {result['audit_rows']:,} audited rows a "
        f"unit. Coverage: share of selected sparse units whose audited body mean mass is at least the certified one; "
        f"interval over documents. {_source(result)}.",
        "",
        "| domain | windows (documents) | sparse units | coverage | lowest prompt | median gap | density | "
        "expanded / dense by fallback | bound violations |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for domain, row in result["domains"].items():
        low, high = row["coverage_interval"]
        missed, documents = row["documents_with_an_uncovered_unit"], row["documents"]
        interval = f" [{low:.4f}, {high:.4f}]" if missed else ""
        lines.append(
            f"| {domain} | {row['windows']} ({documents}) | {row['selected_sparse_units']:,} | "
            f"{row['coverage']:.4f}{interval}, missed in {missed} of {documents} documents | "
            f"{row['coverage_min_prompt']:.3f} | "
            f"{row['median_gap']:.3f} | {row['density']:.2f} | {row['expanded_share']:.1%} / "
            f"{row['dense_fallback_share']:.1%} | {row['bound_violations']} of {row['audited_rows']:,} rows |"
        )
    return [*lines, ""]


def needles() -> list[str]:
    """Answers on needles, paired with dense and with the controls."""
    result = _read("needles.json")
    lines = [
        f"**Answers on needles**, {result['tokens']:,} tokens, RULER's partial credit in percent, density in "
        f"brackets. fixed: {result['fixed_pattern'].replace('_', '-')} at the routed run's density for every head; "
        f"window: sink and {result['window_tokens']:,} local tokens everywhere. {_source(result)}.",
        "",
        "| task | n | dense | routed | fixed | window | same text as dense: routed / fixed |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, row in result["tasks"].items():
        cells = " | ".join(f"{row[m]:.0f} ({row['density'][m]:.2f})" for m in ("routed", "fixed", "window"))
        same = row["identical_to_dense"]
        lines.append(
            f"| {task} | {row['n']} | {row['dense']:.0f} | {cells} | {same['routed']:.0%} / {same['fixed']:.0%} |"
        )
    lines += ["", "Paired differences in points, 95 % bootstrap interval over prompts within tasks: "]
    parts = []
    for name, row in result["paired"].items():
        low, high = row["interval_points"]
        counts = f"n {row['n']}, harmed {row['harmed']}, gained {row['gained']}"
        if row["harmed"] + row["gained"]:
            parts.append(f"{name} {row['mean_points']:+.1f} [{low:+.1f}, {high:+.1f}] ({counts})")
        else:
            # Nothing differs, so a bootstrap has no width; the exact one-sided 95 % limit of the harmed share does.
            limit = 1.0 - 0.05 ** (1.0 / row["n"])
            parts.append(
                f"{name} none ({counts}: at most {limit:.0%} of such prompts harmed, 95 % one-sided)"
            )
    return [*lines[:-1], lines[-1] + "; ".join(parts) + "."]


def _read(name: str) -> dict[str, Any]:
    return json.loads((Path(RESULTS) / name).read_text())


def _source(result: dict[str, Any]) -> str:
    return (
        f"{result['device']}, {result['threads']} thread{'s' if result['threads'] > 1 else ''}, {result['dtype']}, "
        f"torch {result['versions']['torch']}, seed {result['seed']}; `{result['command']}`"
    )


if __name__ == "__main__":
    main()
