"""data/results/TRUST.md: both certificates on test documents, their controls, and the drift alarm.

    python -m routesparse.engine.lab.studies.coverage.page      # from data/results/coverage.json, by analyse.py

No figure there is typed by hand; a test compares the page with what this writes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from routesparse.engine import paths

CALIBRATED = ("prose", "code", "dialog")
SCOPE = (
    "**What a certificate says.** It is about one layer's own Q, K and V: how much of the attention mass of that "
    "layer's dense attention the plan keeps, on inputs that earlier sparse layers have already changed. It says "
    "nothing about the model's output or its answers. It is about the mean over the rows of a segment's body (all "
    "rows but the tail, the last 128, which are always dense), so a single row may lose more."
)
PRICED = (
    "There are two kinds. A *layer's* certificate is about the mean over its heads (a dense head keeps all), so a "
    "single head may lose more than the layer is certified to. A *head's* is about that head alone; what it must "
    "reach is lower, and only keeps a head from being given up. Each claims at the full confidence for itself: at q "
    ".95 at most one in twenty is wrong in the long run, and nothing is claimed for all of them at once."
)


@cache
def _result() -> dict[str, Any]:
    return json.loads((paths.DATA / "results" / "coverage.json").read_text())


def page() -> str:
    """The page as it should be."""
    head = [
        "# What the certificates promised, and what the audit found",
        "Written by `python -m routesparse.engine.lab.studies.coverage.page` from `coverage.json`.",
    ]
    lines = [*head, "", f"{SCOPE} {PRICED}", "", _audit(), "", *in_prompt(), *conformal()]
    return "\n".join(lines).rstrip() + "\n"


def _audit() -> str:
    """What the audit behind the figures computed, and whether it compared the kernel's output with that."""
    result = _result()
    found = [row["bounds"].get("executed_error") for _, _, row in _rows(result)]
    compared = [error for error in found if error is not None]
    kernel = "it did not read the output that the kernel wrote"
    if compared:
        kernel = (
            f"in the same rows the kernel's output lay within {max(compared):.0e} of it, relative to the values that "
            "the row read"
        )
    return (
        "A *unit* is one head of one layer in one segment. The audit that every figure here rests on recomputes the "
        f"sparse output in float32 from the run's own Q, K, V and plan; {kernel}. The break-even check was off, so "
        "that windows of 4,096 tokens, which would run dense, were routed too. README counts certificates that were "
        "issued; the tables here count every bound that was tested, and say in which cells it held least."
    )


def in_prompt() -> list[str]:
    """The in-prompt certificate and what it led to, by domain and length."""
    result = _result()
    lines = [
        "**In-prompt certificate**: a lower confidence bound from the prompt's own random rows, nothing calibrated. "
        f"{_reached(result)}, q {result['confidence']:g}, windows of test documents. {_tests(result)}",
        "",
        *_layers(result),
        "Intervals (95 %) resample clusters: the project of a code or docs document, otherwise the document itself (a "
        f"book, a meeting). Fewer than {result['fewest_clusters']} clusters have no interval."
        + (f" Amended: {result['amended']}." if "amended" in result else ""),
        "",
        "Columns: *coverage* is the share of selected sparse units whose audited mean mass is at least the certified "
        "one, mean over prompts, and *lowest prompt* its minimum; coverage near 1 is a property of a conservative "
        "bound, not of quality. *Gap* is audited mass minus bound, median. *Kept below tau* counts sparse units that "
        "passed although their audited mass is below tau_head. *Row statement* is "
        "the share of audited rows at or above the mass that the certificate states for a random row. *Attention work* "
        "is the kept share of the causal area, the dense tail included.",
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
    return [*lines, "", *_work(result), *_measured(result)]


def _tests(result: dict[str, Any]) -> str:
    """How often a bound exceeded the truth, against how often it might have."""
    above, tests, allowed = bound_errors(result, "in_prompt")
    told = f"Of {tests:,} bounds of heads that were tested, {above} exceeded the audited mass; "
    told += f"up to {allowed:.0f} were allowed. "
    above, tests, allowed = bound_errors(result, "layer")
    return f"{told}Of {tests:,} bounds of layers, {above} did; up to {allowed:.0f} were allowed."


def _reached(result: dict[str, Any]) -> str:
    """What the certificates had to reach."""
    return (
        f"Policy `priced` at price {result['price']:g}: tau_layer {result['tau_layer']:g} for a layer, tau_head "
        f"{result['tau_head']:g} for each head"
    )


def _layers(result: dict[str, Any]) -> list[str]:
    """The layers' certificate by domain and length, under one price."""
    lines = [
        "*Layers*: one certificate for each layer of a window. *Coverage* is the share whose audited mean mass over "
        "all heads is at least the certified one; *raised* had all heads climb to a dearer rung, *dense* ended dense "
        "as a whole and claim nothing.",
        "",
        "| test windows of | tokens | layers | coverage | lowest prompt | certified, median / least | audited, median "
        "/ least | gap | kept below tau_layer | raised / dense |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for domain, tokens, row in _rows(result):
        held = row["layer"]
        lines.append(
            f"| {domain} | {tokens:,} | {held['layers']:,} | {_share(held, 4)} | {held['minimum']:.3f} | "
            f"{held['median_certified']:.3f} / {held['least_certified']:.3f} | {held['median_mass']:.3f} / "
            f"{held['least_mass']:.3f} | {held['median_gap']:.3f} | {held['false_passes']} | {held['raised']:.1%} / "
            f"{held['dense']:.1%} |"
        )
    return [*lines, "", "*Heads*, of the same windows:", ""]


def bound_errors(result: dict[str, Any], kind: str) -> tuple[int, int, float]:
    """Bounds above the audited mass, bounds tested, and how many the confidence level would have allowed.

    kind: "in_prompt" of heads, "layer" of layers.
    """
    held = [row[kind] for _, _, row in _rows(result)]
    tests = sum(row["tests"] for row in held)
    return sum(row["tests_above_the_truth"] for row in held), tests, tests * result["bound_error"]


def _work(result: dict[str, Any]) -> list[str]:
    """Fallback on the mixed set, where the work comes from, and the error bounds."""
    mixed = "; ".join(
        f"{int(tokens):,} tokens: dense by fallback {row['dense_by_fallback']:.2%}"
        f"{_interval(row['dense_by_fallback_interval'], '.2%')}, work {row['attention_work']:.2f} "
        f"({row['windows']} windows, {row['documents']} documents, {row['clusters']} clusters)"
        for tokens, row in result["mixed"].items()
    )
    work = [result["domains"][domain]["8192"]["work"] for domain in CALIBRATED]
    dearer, free, true = (
        sum(row[name] for row in work) / len(work)
        for name in (
            "dense_cheaper_than_sparse",
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
        f"Prose, code and dialog with equal weights. {mixed}. At 8,192 tokens {dearer:.0%} of the units are dense "
        "because dense costs less on this machine than the cheapest candidate that passes the gate. "
        f"Without the fixed costs of a sparse head the work would be {free:.2f}; "
        f"if the router knew the audited mass instead of the probe's estimate, {true:.2f}.",
        "",
        f"Error bounds on a body row's output: {sum(b['violations'] for b in bounds)} violations in "
        f"{sum(b['audited_rows'] for b in bounds):,} rows. A bound is several times the exact error: medians of the "
        f"table's lines {paper[0]:.0f} to {paper[1]:.0f} times (the paper's) and {tight[0]:.1f} to {tight[1]:.1f} "
        f"times (the tight one), 95th percentiles up to {paper[2]:.0f} and {tight[2]:.0f}.",
        "",
    ]


def conformal() -> list[str]:
    """The conformal certificate, the controls and the drift alarm on test documents."""
    result = _result()
    counts = ", ".join(
        f"{name} {'; '.join(_fold_b(b) for b in c['buckets'])}"
        for name, c in result["calibrations"].items()
        if name != "robust"
    )
    lines = [
        "**Conformal certificate**: the gate statistic g minus delta, where delta is a quantile over calibration "
        "prompts; valid for prompts like those. q .95; the price, which sets each unit's lambda, and delta were frozen "
        "before the test windows were drawn, which are those of the table above. No calibration document is in both "
        "folds or among the test documents. Fold B, which gives delta, has so many prompts (documents), of 4,096 to "
        f"8,192 and of 8,193 to 16,384 tokens: {counts}. Windows of one document overlap where it is short.",
        "",
        "*Coverage* is the share of selected sparse units whose audited statistic g* is at least g - delta; .95 is "
        "promised. *m - m_low* is the audited mass minus the certified one. Needle prompts of 4,096 tokens are "
        "missing: they are just shorter than what was calibrated.",
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
        "**Controls**, 4,096 to 8,192 tokens: what coverage becomes when delta is taken from the wrong candidates. All "
        "are judged on the router's own choice, before the fallback (step 5). Delta from the choices that the router "
        f"makes, as shipped, covers {told('routed_choice', 'selected')}; from all candidates that pass the gate, "
        f"{told('routed_choice', 'all_admissible')} (after step 5 {told('kept_choice', 'all_admissible')}); from all "
        f"candidates, {told('routed_choice', 'all_candidates')}. A router that scores the last row of each query "
        f"block covers {aligned}. Code under the prose calibration has {_share(across['code'], 3)}, where prose has "
        f"{_share(across['prose'], 3)}. `engine/lab/studies/coverage/controls.py` explains each.",
        "",
        f"**Drift alarm**, level {drift['level']:g} fixed before these windows were drawn. It went off on "
        f"{inside['alarms']} of {inside['windows']} windows ({inside['clusters']} clusters) of the calibrated domain, "
        f"{inside['rate']:.1%}{_interval(inside['interval'], '.1%')}, and on {alarms['alarms']} of "
        f"{alarms['windows']} windows of code under the prose calibration.",
    ]


def _rows(result: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    """(domain, tokens, its figures), calibrated domains first."""
    order = [*CALIBRATED, *(d for d in sorted(result["domains"]) if d not in CALIBRATED)]
    return [(d, int(tokens), row) for d in order for tokens, row in result["domains"][d].items()]


def _share(held: dict[str, Any], digits: int) -> str:
    interval = None if held["low"] is None else (held["low"], held["high"])
    return f"{held['mean']:.{digits}f}{_interval(interval, f'.{digits}f')}"


def _fold_b(bucket: dict[str, Any]) -> str:
    return f"{bucket['prompts']} ({bucket['documents']})"


def _measured(result: dict[str, Any]) -> list[str]:
    """Devices, versions and commands of the windows behind both tables."""
    (run,) = result["measured"]["runs"]
    devices, twins = run["devices"], result.get("twins", {"windows": 0})
    names = {"cpu": devices["cpu"], "cuda": " ".join([str(len(devices["cuda"])), *devices["cuda"][:1]])}
    where = ", ".join(
        f"{count} windows on {names[kind]}"
        for kind, count in sorted(result["measured"]["windows_by_device"].items())
    )
    both = (
        f"{twins['windows']} windows were measured on both and agree in {twins['same_choice']:.1%} of "
        f"{twins['units']:,} choices. "
        if twins["windows"]
        else ""
    )
    return [
        f"Measured: {where}, float32 (TF32 off), one latency profile. {both}"
        f"torch {run['versions']['torch']}, seeds {run['plan']['seed']} (calibration) and "
        f"{run['plan']['test_seed']} (test). In this order:",
        "",
        "```",
        run["plan"]["command"],
        run["command"],
        result["command"],
        "```",
        "",
    ]


def _interval(interval: Sequence[float] | None, form: str) -> str:
    """ " [low, high]", or nothing where too few clusters stand behind it or all are alike."""
    if interval is None or interval[0] == interval[1]:
        return ""
    return f" [{interval[0]:{form}}, {interval[1]:{form}}]"


if __name__ == "__main__":
    (paths.DATA / "results" / "TRUST.md").write_text(page())
