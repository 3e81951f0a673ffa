"""Does a server keep its loss target while its texts drift? Requests by trace, with the losses of measured windows.

    python -m routesparse.engine.lab.studies.keeping data/fits/Qwen2.5-Coder-1.5B-Instruct.json \\
        --rows data/results/real/loss_1.5b_h200.jsonl.gz --out keeping_1.5b.jsonl.gz

A third of REQUESTS are prose, a third code, a third dialog and documentation; each draws a document and a window of it.
What it loses and what its replay sees are as measured, interpolated in log price. ``--rows``: of foretold.py, documents
that no fit has seen, at the prices measured there. Without them each seed halves the documents of every kind of the
fit: one half makes the fit that is used, the other is served (there is no documentation in it).

Beside the keeper, which sees the true loss of one request in N, two servers keep one price: "bound", the fit's for the
target (a server's without a keeper), and "mean", where the fit's mean loss is the target. A JSON line an arm and seed:
mean true loss / target of all requests and of each third's last LAST, every tenth price, requests with an alarm.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.choose import aimed
from routesparse.engine.calibration.fitted import FLOOR, MIXED, Fitted
from routesparse.engine.calibration.keeping import Keeper
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.selection.losses import OURS, ROWS
from routesparse.engine.lab.studies.selection.rows import read_rows

REQUESTS, LAST, SEEDS, TARGETS = 500, 100, 20, (0.005, 0.01)
PHASES = (("prose",), ("code",), ("dialog", "docs"))
# By arm: dense beside one request in so many, 0: beside none, -1: the price stays.
DENSE = {"bound": -1, "mean": -1, "kept": 0, "kept, dense 1 in 50": 50, "kept, dense 1 in 20": 20}
HEAD = ("target", "arm", "all", "prose", "code", "mixed", "seeds within .8 to 1.2", "prices")
# By kind and document [P] each: prices, true losses, replayed nats, entropies, surprises.
Windows = dict[str, dict[str, list[tuple[np.ndarray, ...]]]]


def main(argv: list[str] | None = None) -> None:
    """Write the rows, and print a table of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("fit")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    whole, command = fitted.load(arguments.fit), study.command()
    found: list[dict[str, Any]] = []
    for seed in range(SEEDS):
        fit, windows = (whole, measured(arguments.rows)) if arguments.rows else halves(whole, seed)
        for target, arm in itertools.product(TARGETS, DENSE):
            row = {"model": whole.name, "target": target, "arm": arm, "seed": seed, "command": command}
            found.append(row | served(fit, windows, target, arm, seed))
    with gzip.open(arguments.out, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in found)
    print("|", " | ".join(HEAD), f"|\n|{'---|' * len(HEAD)}")
    for target, arm in itertools.product(TARGETS, DENSE):
        mine = [row for row in found if (row["target"], row["arm"]) == (target, arm)]
        ratios = np.array([[row["all"], *row["last"]] for row in mine])
        prices = [row["prices"] for row in mine]
        cells = [f"{one.mean():.2f} ({one.min():.2f} to {one.max():.2f})" for one in ratios.T]
        within = ", ".join(map(str, ((ratios >= 0.8) & (ratios <= 1.2)).sum(0)))
        print(f"| {target:g} | {arm} |", " | ".join([*cells, within]), end=" | ")
        print(f"{np.min(prices):.2f} to {np.max(prices):.2f} |")


def served(fit: Fitted, windows: Windows, target: float, arm: str, seed: int) -> dict[str, Any]:
    """One arm's losses and prices."""
    random, every = np.random.default_rng([seed, REQUESTS]), DENSE[arm]
    start = aimed(fit, MIXED, target).price
    (at, *_), *_ = next(iter(windows["code"].values()))
    keeper = Keeper(fit, target, (at[0], at[-1]), start)
    fixed = float(np.clip(start if arm == "bound" else keeper.price_of(1.0), at[0], at[-1]))
    losses, prices, alarms = [], [], 0
    for number in range(REQUESTS):
        kinds = [kind for kind in PHASES[number * len(PHASES) // REQUESTS] if kind in windows]
        documents = list(windows[kinds[random.integers(len(kinds))]].values())
        of = documents[random.integers(len(documents))]
        window, price = of[random.integers(len(of))], fixed if every < 0 else keeper.state.price
        true, nats, entropy, surprise = (_at(price, at, values) for values in window[1:])
        known = true if every > 0 and number % every == every - 1 else None
        kept = keeper.seen("-", str(number), price, (nats, entropy, surprise), known)
        alarms += bool(kept.state.alarms)
        losses.append(true / target)
        prices.append(round(price, 4))
    last = [float(one[-LAST:].mean()) for one in np.array_split(losses, len(PHASES))]
    return {"all": float(np.mean(losses)), "last": last, "prices": prices[::10], "alarms": alarms}


def measured(path: Path) -> Windows:
    """Our runs by a fit's floors, of windows that were measured at every price."""
    found: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for row in read_rows([path])[0].values():
        task, _, kind = row["task"].partition(":")
        if row["method"] == OURS and task == "text":
            seen = row["setting"], row["kl"], row["replayed"][ROWS[512]], row["entropy"], row["surprise"]
            found[kind, row["documents"][0], row["index"]].append(seen)
    windows: Windows = defaultdict(lambda: defaultdict(list))
    for (kind, document, _), rows in sorted(found.items()):
        windows[kind][document].append(tuple(np.array(sorted(rows)).T))
    return windows


def halves(fit: Fitted, seed: int) -> tuple[Fitted, Windows]:
    """A fit of half the documents of each kind, and the windows of the others."""
    windows: Windows = defaultdict(lambda: defaultdict(list))
    kept, prices = [], np.array(fit.prices)
    for kind in fit.domains:
        names = sorted({one.cluster for one in fit.of(kind)})
        documents = np.random.default_rng([seed, 1]).permutation(names)
        for one in fit.of(kind):
            if one.cluster in documents[::2]:
                kept.append(one)
                continue
            same = np.full(len(prices), one.entropy), np.full(len(prices), one.surprise)
            windows[kind][one.cluster].append((prices, np.array(one.kl), np.array(one.replayed), *same))
    return dataclasses.replace(fit, windows=tuple(kept)), windows


def _at(price: float, prices: np.ndarray, values: np.ndarray) -> float:
    """A value at a price, both interpolated in logarithms."""
    return float(np.exp(np.interp(np.log(price), np.log(prices), np.log(np.maximum(values, FLOOR)))))


if __name__ == "__main__":
    study.run(main)
