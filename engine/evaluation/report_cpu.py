"""data/results/CPU.md: routed against dense prefill on a CPU, and answers on needles."""

from __future__ import annotations

import json
from typing import Any

from routesparse.engine import paths
from routesparse.engine.evaluation.result_files import read, source, write_page
from routesparse.engine.evaluation.studies.needles import DEVELOPMENT_SEED
from routesparse.engine.method.latency import LatencyProfile

FITTED = {  # by ``LatencyProfile.plans``
    "random": "random plans, not to plans that the router makes",
    "synthetic": "plans that the families make of random inputs, not to plans of prompts",
    "recorded": "plans that the router made of other prompts",
}


def write() -> None:
    """Replace data/results/CPU.md."""
    write_page("CPU.md", "Measured on a CPU", [*prefill(), *needles()])


def prefill() -> list[str]:
    """Routed against dense prefill, by length and domain."""
    result = read("prefill_cpu.json")
    lines = [
        "**Prefill on two CPU threads**, bundled model, dense and routed in turn; each line gives medians over test "
        f"windows. Policy {policy(result)}. Dense / routed is the speed-up. Deciding is probe, builders, router and "
        "certificates, as a share of the routed prefill. Planned / measured divides the time that the latency model "
        "predicts for deciding and attention by the time they took: above 1 the model overestimates. It is fitted to "
        f"{FITTED[result.get('profile', {'plans': 'random'})['plans']]}. {source(result)}; peak memory of the whole "
        f"run {result['peak_memory_bytes'] / 2**30:.2f} GiB.",
        "",
        f"Break-even is predicted, not measured: {shipped_break_even():,} tokens by the latency profile shipped for "
        f"this machine, {result['break_even_tokens']:,} by the profile of the study. Below it the dense kernel runs "
        "untouched.",
        "",
        "| tokens | domain | windows | dense s | routed s | dense / routed | deciding share | density | "
        "planned / measured |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        routed = row["density"] is not None
        density = f"{row['density']:.2f}" if routed else "dense untouched"
        planned = f"{row['planned_over_measured']:.2f}" if routed else ""
        lines.append(
            f"| {row['tokens']:,} | {row['domain']} | {row['windows']} | {row['dense_ms'] / 1e3:.2f} | "
            f"{row['routed_ms'] / 1e3:.2f} | {row['ratio']:.2f} | {row['deciding_share']:.0%} | {density} | {planned} |"
        )
    return [*lines, ""]


def policy(result: dict[str, Any]) -> str:
    """Of the study's runs, with its setting."""
    config = result["config"]
    setting = "price" if config["policy"] == "priced" else "tau"
    return f"`{config['policy']}` at {setting} {config[setting]:g}"


def shipped_break_even() -> int:
    """Of the bundled model, by the shipped profile of the study's CPU; profile and rule may be younger than it."""
    profiles = [LatencyProfile.load(path) for path in (paths.DATA / "profiles").glob("cpu-*.json")]
    (profile,) = (p for p in profiles if p.device == read("prefill_cpu.json")["device"])
    config = json.loads((paths.DATA / "models" / "demo" / "config.json").read_text())
    return profile.break_even_tokens(config["num_attention_heads"], config["num_hidden_layers"])


def needles() -> list[str]:
    """Answers on needles, paired with dense and with the controls."""
    result = read("needles.json")
    lines = [
        f"**Answers on needles**, {result['tokens']:,} tokens, RULER's partial credit in percent, density in "
        f"brackets, policy {policy(result)}, with the break-even check off; not on a CPU but on the device named here. "
        f"Controls: fixed gives every head the family {result['fixed_pattern'].replace('_', '-')} at the routed run's "
        f"density; window keeps the first block and {result['window_tokens']:,} local tokens in every row. "
        f"{source(result)}.{_development(result)}",
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


def _development(result: dict[str, Any]) -> str:
    """Whether the prompts are those that the method was changed for."""
    if result["seed"] != DEVELOPMENT_SEED:
        return f" The prompts were drawn for this table; development used those of seed {DEVELOPMENT_SEED}."
    return (
        " These prompts are not an independent test: 4 of the 20 answers on niah_multikey_3 came out wrong at first, "
        "and the rule that every plan reads the KV block before the diagonal was added because of them."
    )
