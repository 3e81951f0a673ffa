"""What a comparison of domains says in words."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd

from routesparse.app.ui import numbers
from routesparse.engine.calibration.fitted import Fitted
from routesparse.engine.stats import domains
from routesparse.engine.stats.domains import Finding

# Of method/shape.py, as a sentence names them.
PART_NAMES = {
    "sink": "the first keys (sink)",
    "local": "nearby keys (local)",
    "vertical": "columns (vertical)",
    "slash": "diagonals (slash)",
    "scattered": "scattered keys",
}
_FEWEST, _LEAST_SHIFT = 3, 0.03  # heads, and a share of their attention, to say what they have in common


def parts_text(row: Mapping[Any, Any]) -> str:
    """The shares of a head's attention: "sink 12 %, local 60 %, …"; those below 1 % left out."""
    if numbers.is_missing(row["sink"]):
        return "shape not measured"
    known = [f"{part} {numbers.share(row[part], 0)}" for part in PART_NAMES if row[part] >= 0.01]
    return ", ".join(known)


def sentence(
    found: Finding, rows: pd.DataFrame, by_domain: pd.DataFrame, area: pd.Series, one: str, other: str
) -> str:
    """HTML: how many heads read how much more where, and what most of their attention does. rows: domains.changes;
    by_domain: heads.by_domain; area: of the runs, by domain."""
    one_, other_ = (f"<b>{escape(name)}</b>" for name in (one, other))
    (most, more_in, less_in), (least, _, _) = sorted(
        ((found.more_in_one, one, other), (found.more_in_other, other, one)), reverse=True
    )
    more_, less_ = (f"<b>{escape(name)}</b>" for name in (more_in, less_in))
    verb = "reads" if most == 1 else "read"
    if not most:
        how = "by half as much again" if found.chance is None else "beyond the spread of their prompts"
        told = f"None of {found.heads} heads differs between {one_} and {other_} {how}."
    elif found.chance is None:
        told = f"{most} of {found.heads} heads {verb} at least half as much again in {more_} as in {less_}, "
        told += f"{least or 'none'} the other way."
    else:
        told = f"{most} of {found.heads} heads {verb} more in {more_} than in {less_}, {least or 'none'} the other "
        told += "way: more than prompts of one domain differ."
    picked = rows[rows["more"] == ("one" if more_in == one else "other")]
    if len(picked) >= _FEWEST:
        told += _moved(picked, by_domain, more_in, less_in)
    told += (
        f" On average a head reads {numbers.share(area[one])} of the causal area in {one_}, "
        f"{numbers.share(area[other])} in {other_}, the dense tail left out."
    )
    return told


def _moved(picked: pd.DataFrame, by_domain: pd.DataFrame, more_in: str, less_in: str) -> str:
    """Which share of the picked heads' attention grows most where they read more."""
    of = by_domain.merge(picked[["layer", "head"]], on=["layer", "head"])
    means = of.groupby("domain")[list(PART_NAMES)].mean()
    here, there = means.loc[more_in], means.loc[less_in]
    if here.isna().any() or there.isna().any():
        return ""
    part = (here - there).idxmax()
    if here[part] - there[part] < _LEAST_SHIFT:
        return ""
    return (
        f" These {len(picked)} heads have {numbers.share(here[part], 0)} of their attention on {PART_NAMES[part]} in "
        f"{escape(more_in)}, {numbers.share(there[part], 0)} in {escape(less_in)}."
    )


def caveat(found: Finding, prompts: Mapping[str, int], one: str, other: str) -> str:
    """How far the sentence can be trusted: how many prompts, and what chance alone would give."""
    counts = f"{prompts[one]} of {one}, {prompts[other]} of {other}"
    if found.chance is None:
        return (
            f"Prompts: {counts}. One prompt a domain is an anecdote: two prompts of one domain may differ as much. Add "
            "prompts below to see whether it is the domain."
        )
    would = numbers.several(round(found.chance), "head")
    return (
        f"Prompts: {counts}. The others differ no more than prompts of one domain, or by less than a point. With the "
        f"prompts exchanged between the domains at random, {would} would be counted."
    )


def shapeless(heads: pd.DataFrame) -> str:
    """How many heads the shapes leave out; "" where none. heads: heads.of_runs."""
    if not (count := int(heads["sink"].isna().sum())):
        return ""
    told = f"{count:,} of {len(heads):,} heads of all prompts"
    return f" Left out of the shapes: {told}, whose probe was not kept or can’t be read."


def own_losses(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """What the compared prompts themselves are predicted to lose, and whether their alarms rang; "" where neither is
    known. figures: of each domain, page._figures."""
    known = {name: one["loss"] for name, one in figures.items() if not numbers.is_missing(one["loss"])}
    lost = " and ".join(f"{loss:.4f} in {name}" for name, loss in known.items())
    told = f" These prompts: predicted loss {lost}, nats a token." if lost else ""
    rang = ", ".join(f"{one['alarms']} in {name}" for name, one in figures.items() if one["rang"])
    return told + (f" An alarm rang (text unlike the fit’s or calibration’s): {rang}." if rang else "")


def loss_sentence(fit: Fitted, price: float, one: str, other: str) -> str:
    """What the same price costs in both domains, by a fit that measured them at it; "" where it did not."""
    losses = {row["kind"]: row["kl"].get(price) for row in fit.summary()}
    if not (losses.get(one) and losses.get(other)):
        return ""
    return (
        f"Other texts, the fit’s windows, measured at this price, {price:g}, lost {losses[one]:.4f} in {one} and "
        f"{losses[other]:.4f} in {other}: one price is not one loss."
    )


def set_label(runs: pd.DataFrame, settings: str) -> str:
    """A set of comparable runs, for a list: model, length, settings, domains."""
    first = runs.iloc[0]
    counts = runs["domain"].value_counts()
    kinds = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f"{first['model']} · {settings} · {round(runs['tokens'].mean() / 1024)}K tokens · {kinds}"


def left_out(others: pd.DataFrame, shown: pd.DataFrame) -> str:
    """Why other runs of the same weights are not compared; "" where there are none."""
    labelled = others.dropna(subset="domain")
    reasons = []
    if unnamed := len(others) - len(labelled):
        reasons.append(f"{unnamed} without a domain")
    settings = domains.settings_key(shown["config_json"].iloc[0])
    alike = labelled["config_json"].map(domains.settings_key) == settings
    if count := int((~alike).sum()):
        reasons.append(f"{count} of other settings")
    lengths = labelled[alike & ~labelled["prompt_sha256"].isin(shown["prompt_sha256"])]
    if len(lengths):
        reasons.append(f"{len(lengths)} of another length")
    if not reasons:
        return ""
    return f"Not compared, though of this model: {', '.join(reasons)}."
