"""Two runs side by side: which units changed, by how much, and how sure one can be of a mean difference.

Runs of the same prompt are paired unit by unit; runs of different prompts are not, and only their means can be
compared. Either way the intervals resample whole layers: they say how the difference varies over this model's heads,
not over prompts, of which there is one on each side. The entropy of a head's choice weighs each domain equally.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.config import renamed
from routesparse.engine.rows import RunRow
from routesparse.engine.stats.coverage import clustered_interval, difference_interval

UNIT = ["batch_index", "layer", "head", "segment"]
# column of a choice -> whether more of it is better (None: neither)
METRICS: dict[str, bool | None] = {
    "density": None,
    "gate_statistic": True,
    "lower_mass": True,
    "conformal_lower_mass": True,
    "audited_mass": True,
    "audited_error": False,
    "kernel_us": False,
}
_RUN_FIELDS = (
    "model",
    "model_revision",
    "tokenizer_hash",
    "calibration",
    "calibration_mismatch",
    "profile",
    "gate_threshold",
    "audit_depth",
    "device",
    "dtype",
    "git_commit",
    "prompt_name",
    "prompt_sha256",
    "domain",
    "tokens",
    "batch",
)


@dataclass(frozen=True)
class Difference:
    """other - baseline of one metric: means over units, their difference, and its 95 % interval over layers."""

    metric: str
    baseline: float | None
    other: float | None
    difference: float | None
    low: float | None
    high: float | None
    units: int  # pairs, or the smaller side where unpaired
    paired: bool


def pair(baseline: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The units that both sides routed, columns with the suffixes ``_a`` (baseline) and ``_b``; ``changed``: another
    candidate."""
    both = baseline.merge(other, on=UNIT, suffixes=("_a", "_b"))
    different = (both["pattern_a"] != both["pattern_b"]) | (both["budget_a"] != both["budget_b"])
    return both.assign(changed=different)


def transitions(pairs: pd.DataFrame, patterns: Sequence[str]) -> pd.DataFrame:
    """Counts [baseline's pattern, other's pattern] over paired units, in the order of ``patterns``.

    Errors: ValueError where a unit has another pattern: it would not be counted.
    """
    missing = ({*pairs["pattern_a"], *pairs["pattern_b"]}) - set(patterns)
    if missing:
        raise ValueError(
            f"units chose {', '.join(sorted(missing))}, not among {', '.join(patterns)}; name them all"
        )
    table = pd.crosstab(pairs["pattern_a"], pairs["pattern_b"])
    return table.reindex(index=list(patterns), columns=list(patterns), fill_value=0)


def differences(baseline: pd.DataFrame, other: pd.DataFrame, paired: bool) -> list[Difference]:
    """One Difference per metric that both sides have measured somewhere."""
    found = []
    both = pair(baseline, other) if paired else None
    for metric in METRICS:
        if both is not None:
            known = both[["layer", f"{metric}_a", f"{metric}_b"]].astype(float).dropna()
            found.append(_paired(metric, known))
        else:
            sides = [side[["layer", metric]].astype(float).dropna() for side in (baseline, other)]
            found.append(_unpaired(metric, *sides))
    return [difference for difference in found if difference.units]


def choice_entropy(counts: pd.DataFrame) -> pd.DataFrame:
    """Per (layer, head) the entropy in bits of its pattern over domains, each domain with equal weight.

    counts: rows of compare_queries.patterns_by_domain. 0: the same pattern everywhere. ``domains`` is how many domains
    hold the head, ``usual`` its most frequent pattern.
    """
    head, kind = ["layer", "head"], ["layer", "head", "pattern"]
    share = counts["units"] / counts.groupby(["domain", *head])["units"].transform("sum")
    domains = counts.groupby(head)["domain"].nunique()
    mixed = counts.assign(share=share).groupby(kind, as_index=False)["share"].sum()
    mixed["share"] /= mixed.set_index(head).index.map(domains)
    mixed["bits"] = -mixed["share"] * np.log2(mixed["share"])
    usual = mixed.loc[mixed.groupby(head)["share"].idxmax()].set_index(head)
    found = pd.DataFrame(
        {
            "bits": mixed.groupby(head)["bits"].sum().clip(lower=0.0) + 0.0,  # no "-0.0"
            "domains": domains,
            "usual": usual["pattern"],
            "usual_share": usual["share"],
        }
    )
    return found.reset_index()


def settings(run: RunRow) -> dict[str, Any]:
    """Everything that was set or found fixed for a run: its configuration, model, device and library versions.

    What the run's policy does not read is None, whatever stands in the record.
    """
    row = asdict(run)
    config = renamed(json.loads(run.config_json), {"gate": "gate_threshold"})
    versions = {f"version of {name}": value for name, value in json.loads(run.versions_json).items()}
    # The run's threshold is lambda as used; the configuration's is what was asked for.
    config["gate_threshold asked for"] = config.pop("gate_threshold", None)
    used: dict[str, Any] = {"price": run.price, "tau_layer": run.tau_layer}
    used["tau_head" if run.tau_layer is None else "tau"] = None
    config.update({name: value for name, value in used.items() if name in config})
    named = {("lambda" if name == "gate_threshold" else name): row[name] for name in _RUN_FIELDS}
    return {**named, "quality target": run.tuned_price, **config, **versions}


def settings_table(sides: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """One row per setting, a column per side, and ``equal``; a setting that a side does not know is None."""
    names = list(dict.fromkeys(name for values in sides.values() for name in values))
    rows = []
    for name in names:
        values = [values.get(name) for values in sides.values()]
        rows.append(
            {
                "setting": name,
                **dict(zip(sides, values, strict=True)),
                "equal": len(set(map(str, values))) == 1,
            }
        )
    return pd.DataFrame(rows)


def _paired(metric: str, known: pd.DataFrame) -> Difference:
    before, after = known[f"{metric}_a"], known[f"{metric}_b"]
    low, high = None, None
    if known["layer"].nunique() > 1:
        low, high = clustered_interval((after - before).to_numpy(), known["layer"].to_numpy())
    return _difference(metric, before, after, low, high, len(known), True)


def _unpaired(metric: str, before: pd.DataFrame, after: pd.DataFrame) -> Difference:
    low, high = None, None
    if min(before["layer"].nunique(), after["layer"].nunique()) > 1:
        low, high = difference_interval(
            before[metric].to_numpy(),
            before["layer"].to_numpy(),
            after[metric].to_numpy(),
            after["layer"].to_numpy(),
        )
    return _difference(metric, before[metric], after[metric], low, high, min(len(before), len(after)), False)


def _difference(
    metric: str,
    before: pd.Series,
    after: pd.Series,
    low: float | None,
    high: float | None,
    units: int,
    paired: bool,
) -> Difference:
    if not units:
        return Difference(metric, None, None, None, None, None, 0, paired)
    a, b = float(before.mean()), float(after.mean())
    return Difference(metric, a, b, b - a, low, high, units, paired)
