"""data/results/CPU.md: routed against dense prefill on a CPU."""

from __future__ import annotations

import json
from typing import Any

from routesparse.engine import paths
from routesparse.engine.lab.reports.result_files import read, source, write_page
from routesparse.engine.method.latency import LatencyProfile

FITTED = {  # by ``LatencyProfile.plans``
    "random": "random plans, not to plans that the router makes",
    "synthetic": "plans that the families make of random inputs, not to plans of prompts",
    "recorded": "plans that the router made of other prompts",
}


def write() -> None:
    """Replace data/results/CPU.md."""
    write_page("CPU.md", "Measured on a CPU", prefill())


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
