"""Write the README's measured section from the result files, so that no figure is typed by hand.

python -m routesparse.engine.evaluation.report            # print it
python -m routesparse.engine.evaluation.report --write    # replace it in README.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.evaluation import report_gpu
from routesparse.engine.latency import LatencyProfile

RESULTS = paths.DATA / "results"
GPU_MORE = [
    '<img alt="Throughput by length, and a prefill" src="data/pictures/gpu_throughput.png">',
    "",
    "All rows, medians with their spread, ablations and the demo model's runs: "
    "[data/results/GPU.md](data/results/GPU.md).",
    "",
]
BEGIN, END = "<!-- measured: python -m routesparse.engine.evaluation.report --write -->", "<!-- /measured -->"


def main(argv: list[str] | None = None) -> None:
    """Print the section, or put it into README.md between its two marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the section in README.md")
    section = "\n".join(
        [*prefill(), *report_gpu.targets(), *GPU_MORE, *certificates(), *coverage(), *needles()]
    )
    if not parser.parse_args(argv).write:
        print(section)
        return
    report_gpu.write()
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
        f"{result['peak_memory_bytes'] / 2**30:.2f} GiB; break-even by the profile shipped for this machine "
        f"{_shipped_break_even():,} tokens. Planned / measured: the profile's prediction of the attention layers, "
        f"deciding included, over the clock.{_profile_errors(result)}",
        "",
        "| tokens | domain | windows | dense s | routed s | dense / routed | deciding share | density | "
        "planned / measured |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        density = "dense untouched" if row["density"] is None else f"{row['density']:.2f}"
        planned = "-" if row["planned_over_measured"] is None else f"{row['planned_over_measured']:.2f}"
        lines.append(
            f"| {row['tokens']:,} | {row['domain']} | {row['windows']} | {row['dense_ms'] / 1e3:.2f} | "
            f"{row['routed_ms'] / 1e3:.2f} | {row['ratio']:.2f} | {row['deciding_share']:.0%} | {density} | {planned} |"
        )
    return [*lines, ""]


def _profile_errors(result: dict[str, Any]) -> str:
    """On which plans the study's profile was fitted, and its errors; nothing for a study that did not record it."""
    profile = result.get("profile")
    if profile is None:
        return ""
    checked = profile["validation_error"]
    return (
        f" The profile was fitted on {profile['plans']} plans, median error {profile['median_error']:.0%} in the fit "
        f"and {'not measured' if checked is None else f'{checked:.0%}'} on other plans."
    )


def _shipped_break_even() -> int:
    """Of the demo model, by the shipped CPU profile: profiles and the rule may be younger than the study."""
    (file,) = (paths.DATA / "profiles").glob("cpu-*.json")
    config = json.loads((paths.DATA / "models" / "demo" / "config.json").read_text())
    return LatencyProfile.load(file).break_even_tokens(
        config["num_attention_heads"], config["num_hidden_layers"]
    )


def certificates() -> list[str]:
    """The in-prompt certificate and what it led to, by domain and length."""
    result = _read("coverage.json")
    lines = [
        f"**In-prompt certificate**, nothing calibrated, tau .9, q {result['confidence']:g}, on test documents. "
        f"{_measured(result)}. Coverage: share of selected sparse units whose audited body mean mass is at least the "
        "certified one, mean over prompts. Gap: mass minus bound, median. Work: kept share of the causal area, the "
        f"dense tail included. {_clusters(result)}",
        "",
        "| test windows of | tokens | windows (documents, clusters) | sparse units | coverage | lowest prompt | "
        "gap, betting / Bernstein | kept below tau | row statement | expanded / dense by fallback / dense by the "
        "router | attention work |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for domain, tokens, row in _rows(result):
        held, fallback = row["in_prompt"], row["fallback"]
        lines.append(
            f"| {domain} | {tokens:,} | {row['windows']} ({row['documents']}, {row['clusters']}) | "
            f"{row['sparse_units']:,} | {_share(held, 4)} | {held['minimum']:.3f} | {held['median_gap']:.3f} / "
            f"{held['median_gap_bernstein']:.3f} | {held['false_passes']} | "
            f"{row['row']['kept_at_q']['mean']:.3f} | {fallback['expanded']:.1%} / "
            f"{fallback['dense_by_fallback']:.1%} / {fallback['dense_by_router']:.0%} | "
            f"{fallback['attention_work']:.2f}{_interval(fallback['attention_work_interval'], '.2f')} |"
        )
    return [*lines, "", *_work(result)]


def _work(result: dict[str, Any]) -> list[str]:
    """Fallback on the mixed set, where the work comes from, and the error bounds."""
    mixed = "; ".join(
        f"{int(tokens):,} tokens: dense by fallback {row['dense_by_fallback']:.2%}"
        f"{_interval(row['dense_by_fallback_interval'], '.2%')}, work {row['attention_work']:.2f} "
        f"({row['windows']} windows, {row['documents']} documents, {row['clusters']} clusters)"
        for tokens, row in result["mixed"].items()
    )
    work = [result["domains"][domain]["8192"]["work"] for domain in CALIBRATED]
    dearer, none, free, true = (
        sum(row[name] for row in work) / len(work)
        for name in (
            "dense_cheaper_than_sparse",
            "dense_none_reaches_lambda",
            "without_fixed_costs",
            "by_true_mass",
        )
    )
    bounds = [row["bounds"] for _, _, row in _rows(result)]
    paper, tight = (
        (
            min(b[f"looseness_{name}"]["median"] for b in bounds),
            max(b[f"looseness_{name}"]["median"] for b in bounds),
            max(b[f"looseness_{name}"]["p95"] for b in bounds),
        )
        for name in ("paper", "tight")
    )
    return [
        f"Prose, code and dialog with equal weights: {mixed}. At 8,192 tokens {dearer:.0%} of the units are dense "
        "because dense costs less on this machine than the cheapest candidate that passes the gate, "
        f"{none:.1%} because none passes; without a sparse head's fixed costs the work would be {free:.2f}, with the "
        f"audited mass in place of the probe's {true:.2f}.",
        "",
        f"Error bounds: {sum(b['violations'] for b in bounds)} violations in "
        f"{sum(b['audited_rows'] for b in bounds):,} rows; bound over exact error of a body row, medians of "
        f"the table's lines {paper[0]:.0f} to {paper[1]:.0f} (paper) and {tight[0]:.1f} to {tight[1]:.1f} (tight), "
        f"p95 up to {paper[2]:.0f} and {tight[2]:.0f}.",
        "",
    ]


def coverage() -> list[str]:
    """The conformal certificate, the controls and the drift alarm on test documents."""
    result = _read("coverage.json")
    counts = ", ".join(
        f"{name} {'; '.join(_fold_b(b) for b in c['buckets'])}"
        for name, c in result["calibrations"].items()
        if name != "robust"
    )
    lines = [
        f"**Conformal certificate**, q .95, lambda {result['gate']:.3f} and delta frozen before test, the same "
        "windows; no calibration document in both folds or among the test documents. Prompts (documents) in fold B, "
        f"of 4,096 to 8,192; of 8,193 to 16,384 tokens: {counts}. Windows of one document overlap where it is short. "
        "Coverage: share of selected sparse units with g* >= g - delta. Needle prompts of 4,096 tokens "
        "fall just short of the calibrated lengths.",
        "",
        "| test windows of | tokens | calibration | delta | coverage | lowest prompt | median m - m_low | m_low = 0 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for domain, tokens, row in _rows(result):
        name = domain if domain in row["conformal"] else "mixed"
        held = row["conformal"][name]
        if held.get("mean") is not None:
            lines.append(
                f"| {domain} | {tokens:,} | {name} | {held['delta']:.4f} | {_share(held, 3)} | {held['minimum']:.3f} "
                f"| {held['median_mass_gap']:.3f} | {held['zero_bounds']} |"
            )
    return [*lines, "", *_controls(result), ""]


def _controls(result: dict[str, Any]) -> list[str]:
    controls, drift = result["controls"], result["drift"]

    def told(group: str, name: str) -> str:
        return ", ".join(f"{d} {_share(controls[d][group][name], 3)}" for d in CALIBRATED)

    aligned = ", ".join(f"{d} {_share(controls[d]['aligned_rows'], 3)}" for d in CALIBRATED)
    across, alarms = controls["across"]["prose"], drift["prose"]["code"]
    inside = drift["in_domain"]
    return [
        "Controls, 4,096 to 8,192 tokens, on the router's own choice, before step 5. Delta from the choices it makes "
        f"covers {told('routed_choice', 'selected')}; from all candidates that pass the gate "
        f"{told('routed_choice', 'all_admissible')} (after step 5 {told('kept_choice', 'all_admissible')}); from all "
        f"candidates {told('routed_choice', 'all_candidates')}. A router that scores the last rows of query blocks "
        f"{aligned}. Code under the prose calibration {_share(across['code'], 3)}, where prose has "
        f'{_share(across["prose"], 3)}: see CONTRIBUTING.md, "Controls".',
        "",
        f"Drift alarm, level {drift['level']:g} fixed before these windows: {inside['alarms']} of "
        f"{inside['windows']} in-domain windows ({inside['clusters']} clusters), {inside['rate']:.1%}"
        f"{_interval(inside['interval'], '.1%')}; code under prose {alarms['alarms']} of {alarms['windows']}.",
    ]


def needles() -> list[str]:
    """Answers on needles, paired with dense and with the controls."""
    result = _read("needles.json")
    lines = [
        f"**Answers on needles**, {result['tokens']:,} tokens, RULER's partial credit in percent, density in "
        f"brackets. fixed: {result['fixed_pattern'].replace('_', '-')} at the routed run's density for every head; "
        f"window: sink and {result['window_tokens']:,} local tokens everywhere.{_seeds(result)} {_source(result)}.",
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


def _seeds(result: dict[str, Any]) -> str:
    """Whether the needle prompts had been looked at before."""
    prompts = result.get("prompts", {"reported": False})
    if prompts["reported"]:
        return (
            f" Prompts of seed {prompts['seed']}, drawn for this table; development used seed "
            f"{prompts['development_seed']}."
        )
    return " These prompts led to changes of the router, so they are no independent test."


def _rows(result: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    """(domain, tokens, its figures), calibrated domains first."""
    order = [*CALIBRATED, *(d for d in sorted(result["domains"]) if d not in CALIBRATED)]
    return [(d, int(tokens), row) for d in order for tokens, row in result["domains"][d].items()]


def _share(held: dict[str, Any], digits: int) -> str:
    interval = None if held["low"] is None else (held["low"], held["high"])
    return f"{held['mean']:.{digits}f}{_interval(interval, f'.{digits}f')}"


def _clusters(result: dict[str, Any]) -> str:
    return (
        "Intervals (95 %) resample clusters, the project of a code or docs document and otherwise the document itself "
        f"(a book, a meeting); fewer than {result['fewest_clusters']} clusters have none."
    )


def _fold_b(bucket: dict[str, Any]) -> str:
    return f"{bucket['prompts']} ({bucket['documents']})"


def _measured(result: dict[str, Any]) -> str:
    """Devices, versions and commands of the windows behind a coverage table."""
    (run,) = result["measured"]["runs"]
    counts, devices, twins = result["measured"]["windows_by_device"], run["devices"], result["twins"]
    return (
        f"{counts.get('cpu', 0)} windows on {run['processes']['cpu']} processes of {devices['cpu']}, "
        f"{counts.get('cuda', 0)} on {len(devices['cuda'])} {devices['cuda'][0]}, float32 (TF32 off), one latency "
        f"profile; {twins['windows']} windows measured on both agree in {twins['same_choice']:.1%} of "
        f"{twins['units']:,} choices; torch {run['versions']['torch']}, seeds {run['plan']['seed']} (calibration) and "
        f"{run['plan']['test_seed']} (test); `{run['plan']['command']}`, `{run['command']}`, `{result['command']}`"
    )


CALIBRATED = ("prose", "code", "dialog")


def _interval(interval: Sequence[float] | None, form: str) -> str:
    """ " [low, high]", or nothing where too few clusters stand behind it or all are alike."""
    if interval is None or interval[0] == interval[1]:
        return ""
    low, high = interval
    return f" [{low:{form}}, {high:{form}}]"


def _read(name: str) -> dict[str, Any]:
    return json.loads((Path(RESULTS) / name).read_text())


def _source(result: dict[str, Any]) -> str:
    return (
        f"{result['device']}, {result['threads']} thread{'s' if result['threads'] > 1 else ''}, {result['dtype']}, "
        f"torch {result['versions']['torch']}, seed {result['seed']}; `{result['command']}`"
    )


if __name__ == "__main__":
    main()
