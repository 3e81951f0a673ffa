"""Runs of one model at equal settings on several kinds of text: which may be compared, and which heads differ.

A head's density in a domain is the mean over the domain's prompts. Its *spread* is the range over the prompts of one
domain, the larger of the two domains that are compared (NaN where neither has two prompts). A head *differs* where the
domains' difference is at least LEAST and larger than its spread; where no spread is known, where it reads MUCH_MORE in
one of them, and a reader has to be told that prompts of one domain may differ as much.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from routesparse.engine.config import RouterConfig, renamed

MUCH_MORE = 1.5  # times what the other domain reads
LEAST = 0.01  # of the causal area
SAME_LENGTH = 1.1  # times the shortest prompt's tokens
MOST = 6  # domains side by side
# Settings that do not change what a routed head reads, or by chance alone.
_ANY = {"seed", "served", "break_even_tokens", "ranks", "rank_load"}
_EXCHANGES = 100
_HEAD = ["layer", "head"]


def settings_key(config_json: str) -> str:
    """The settings by which runs are compared, as JSON; equal texts for equal ones.

    A default is left out: a run that was recorded before a setting existed has it.
    """
    settings = renamed(json.loads(config_json), {"gate": "gate_threshold"})
    default = RouterConfig().to_dict()
    names = (name for name in sorted(settings.keys() - _ANY) if settings[name] != default.get(name))
    return json.dumps({name: settings[name] for name in names})


def comparable(runs: pd.DataFrame) -> list[pd.DataFrame]:
    """Sets of runs that differ in their prompts alone: same weights, equal settings, lengths within SAME_LENGTH; of a
    prompt that was run twice the newest. The set that tells most comes first: a user's own before samples, several
    prompts in two domains before one, more domains before fewer.

    runs: ``run_id created_at model_revision config_json prompt_sha256 domain tokens is_sample``, a domain each.
    """
    found = []
    runs = runs.assign(settings=runs["config_json"].map(settings_key)).sort_values("created_at")
    for _, alike in runs.groupby(["model_revision", "settings"], sort=False):
        ordered = alike.drop_duplicates(["prompt_sha256", "domain"], keep="last").sort_values("tokens")
        least, place, places = math.inf, -1, []
        for tokens in ordered["tokens"]:
            if not least <= tokens <= SAME_LENGTH * least:
                least, place = tokens, place + 1
            places.append(place)
        found += [part.sort_values("created_at") for _, part in ordered.groupby(places)]

    def tells(one: pd.DataFrame) -> tuple[object, ...]:
        counts = one["domain"].value_counts()
        return (
            len(counts) > 1,
            not one["is_sample"].all(),
            (counts > 1).sum() > 1,
            len(counts),
            one["created_at"].max(),
        )

    return sorted(found, key=tells, reverse=True)


@dataclass(frozen=True)
class Finding:
    """How many of ``heads`` differ, by where they read more.

    chance: how many would, in the mean, with the prompts exchanged between the domains; None without a known spread.
    """

    heads: int
    more_in_one: int
    more_in_other: int
    chance: float | None


def changes(heads: pd.DataFrame, one: str, other: str) -> pd.DataFrame:
    """A row a head: densities ``one`` and ``other``, ``difference`` (other - one), ``spread``, and ``more``, where one
    that differs reads more: "one", "other" or "". Those that differ come first, what changes most before the others.

    heads: ``run_id domain layer head density``, a row a head and run.
    """
    a, b, index = _densities(heads, one, other)
    differs, difference = _differs(a, b), b.mean(1) - a.mean(1)
    rows = pd.DataFrame(
        {
            "one": a.mean(1),
            "other": b.mean(1),
            "difference": difference,
            "spread": _spread(a, b),
            "more": np.array(["", "other", "one"])[differs],
        },
        index=index,
    ).reset_index()
    order = np.lexsort((-np.abs(difference), differs == 0))
    return rows.iloc[order].reset_index(drop=True)


def finding(heads: pd.DataFrame, one: str, other: str) -> Finding:
    """What ``changes`` adds up to."""
    a, b, _ = _densities(heads, one, other)
    differs = _differs(a, b)
    return Finding(len(a), int((differs < 0).sum()), int((differs > 0).sum()), _by_chance(a, b))


def _densities(heads: pd.DataFrame, one: str, other: str) -> tuple[np.ndarray, np.ndarray, pd.MultiIndex]:
    """float [heads, prompts] of both domains, of the heads that every prompt has."""
    tables = [
        heads[heads["domain"] == domain].pivot(index=_HEAD, columns="run_id", values="density").astype(float)
        for domain in (one, other)
    ]
    both = pd.concat(tables, axis=1).dropna()
    wide = both.to_numpy()
    return wide[:, : tables[0].shape[1]], wide[:, tables[0].shape[1] :], both.index


def _spread(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    known = [np.ptp(side, axis=1) for side in (a, b) if side.shape[1] > 1]
    return np.max(known, axis=0) if known else np.full(len(a), np.nan)


def _differs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """-1 where a head that differs reads more in a, 1 in b, else 0."""
    one, other, spread = a.mean(1), b.mean(1), _spread(a, b)
    difference = other - one
    beyond = (np.abs(difference) > spread) & (np.abs(difference) >= LEAST)
    much = (np.maximum(one, other) >= MUCH_MORE * np.minimum(one, other)) & (one != other)
    found: np.ndarray = np.where(np.isnan(spread), much, beyond) * np.sign(difference).astype(int)
    return found


def _by_chance(a: np.ndarray, b: np.ndarray) -> float | None:
    if max(a.shape[1], b.shape[1]) < 2:
        return None
    every, size = np.concatenate([a, b], 1), a.shape[1]
    true = (set(range(size)), set(range(size, every.shape[1])))
    random, counts = np.random.default_rng(0), []
    for _ in range(_EXCHANGES):
        order = random.permutation(every.shape[1])
        if set(order[:size].tolist()) not in true:
            one, other = every[:, order[:size]], every[:, order[size:]]
            counts.append(int((_differs(one, other) != 0).sum()))
    return float(np.mean(counts)) if counts else None
