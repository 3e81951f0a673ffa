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
    section = "\n".join([*prefill(), *kernel(), *certificates(), *coverage(), *needles()])
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
        interval = _interval(low, high, documents, 4) if missed else ""
        lines.append(
            f"| {domain} | {row['windows']} ({documents}) | {row['selected_sparse_units']:,} | "
            f"{row['coverage']:.4f}{interval}, missed in {missed} of {documents} documents | "
            f"{row['coverage_min_prompt']:.3f} | "
            f"{row['median_gap']:.3f} | {row['density']:.2f} | {row['expanded_share']:.1%} / "
            f"{row['dense_fallback_share']:.1%} | {row['bound_violations']} of {row['audited_rows']:,} rows |"
        )
    return [*lines, ""]


def coverage() -> list[str]:
    """The conformal certificate, the row statement, the controls and the drift alarm on test documents."""
    result = _read("coverage.json")
    made = result["calibrations"]
    counts = ", ".join(
        f"{name} {c['buckets'][0]['prompts']} ({c['buckets'][0]['documents']})"
        for name, c in made.items()
        if name != "robust"
    )
    lines = [
        "**Conformal certificate**, in domain and out, q .95, lambda and delta frozen before test; no calibration "
        f"document in both folds or among the test documents. Prompts (documents) in fold B of 4,096 to 8,192 "
        f"tokens: {counts}. Coverage is of selected sparse units, mean over prompts; interval over documents where "
        f"there are {FEWEST_CLUSTERS} or more; - where the prompts fall just short of the calibrated lengths. Row: "
        "share of body rows "
        f"above the row statement at q. {_source(result)}.",
        "",
        "| test windows of | tokens | windows (documents) | calibration | delta | coverage | lowest prompt | median "
        "m - m_low | in-prompt coverage | row | dense by fallback | attention work |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for domain, lengths in result["domains"].items():
        for tokens, row in lengths.items():
            name = domain if domain in row["conformal"] else "mixed"
            conformal = row["conformal"][name]
            shown = " | ".join(["-"] * 4)
            if conformal.get("mean") is not None:
                low, high = conformal["low"], conformal["high"]
                shown = (
                    f"{conformal['delta']:.3f} | {conformal['mean']:.3f}{_interval(low, high, row['documents'], 3)} | "
                    f"{conformal['minimum']:.3f} | {conformal['median_mass_gap']:.3f}"
                )
            lines.append(
                f"| {domain} | {int(tokens):,} | {row['windows']} ({row['documents']}) | {name} | {shown} | "
                f"{row['in_prompt']['mean']:.4f} | {row['row']['kept_at_q']['mean']:.3f} | "
                f"{row['fallback']['dense_by_fallback']:.1%} | {row['fallback']['attention_work']:.2f} |"
            )
    controls, drift = result["controls"], result["drift"]
    told = [
        f"{domain} {controls[domain]['all_admissible']['mean']:.3f} for "
        f"{controls[domain]['selected']['mean']:.3f}"
        for domain in ("prose", "code", "dialog")
    ]
    aligned = [
        f"{domain} {controls[domain]['aligned_rows_16384']['coverage']:.3f} for "
        f"{controls[domain]['random_rows_16384']['coverage']:.3f}"
        for domain in ("prose", "code", "dialog")
    ]
    bounds = [row["bounds"] for lengths in result["domains"].values() for row in lengths.values()]
    inside, away = drift["in_domain"], drift["prose"]["code"]
    lines += [
        "",
        f"Controls: delta from all candidates that pass the gate, not the selected ones, covers {', '.join(told)}; "
        f"scores from rows at the ends of query blocks {', '.join(aligned)}. Code under the prose calibration still "
        f"covers {controls['code_under_prose']['mean']:.3f}; the drift alarm (nominal .04) goes off on "
        f"{away['alarms']} of {away['windows']} of these windows, and on {inside['alarms']} of "
        f"{inside['windows']} in-domain ones. Error bounds: {sum(b['violations'] for b in bounds)} violations in "
        f"{sum(b['audited_rows'] for b in bounds):,} "
        "rows.",
        "",
    ]
    return lines


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


FEWEST_CLUSTERS = 8  # a bootstrap over fewer documents is their range, not an interval


def _interval(low: float, high: float, documents: int, digits: int) -> str:
    """ " [low, high]", or nothing where too few documents stand behind it."""
    return f" [{low:.{digits}f}, {high:.{digits}f}]" if documents >= FEWEST_CLUSTERS else ""


def _read(name: str) -> dict[str, Any]:
    return json.loads((Path(RESULTS) / name).read_text())


def _source(result: dict[str, Any]) -> str:
    return (
        f"{result['device']}, {result['threads']} thread{'s' if result['threads'] > 1 else ''}, {result['dtype']}, "
        f"torch {result['versions']['torch']}, seed {result['seed']}; `{result['command']}`"
    )


if __name__ == "__main__":
    main()
