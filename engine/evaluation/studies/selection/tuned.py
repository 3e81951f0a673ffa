"""Related rules at their best settings for one area: chosen on development prompts, reported on fresh ones.

    python -m routesparse.engine.evaluation.studies.selection.tuned --seed 51 --out related_tuned_h200.jsonl

1. Every candidate of CANDIDATES reads the development prompts (documents of the calibration split, seed 0).
2. Of each rule the candidate with the least KL among those that read at most --area there is chosen. KL: geometric mean
   over tasks of the mean over prompts, so that a task counts by ratios and none by its size; area: mean over tasks. A
   rule of which no candidate reads so little is reported with the one that reads least.
3. The chosen ones read the reported prompts (documents of the test split, --seed): CLOSE ones first, --most prompts a
   task, with a second setting that reads a quarter more, so that areas can be brought into line; then all, --prompts.

--out grows line by line as that of the study does (run.py), with one line of what was chosen; the same command goes on.
This choice was written down before any candidate was measured at this length.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from routesparse.engine.errors import InputError
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies.selection import methods, prompts, rows, run

# About 13 % of the causal area of 32,768 tokens, which has 257 KV blocks a query block: what the default price reads.
CANDIDATES: dict[str, tuple[str, ...]] = {
    "quest": ("quest@page:8=32", "quest@page:16=32", "quest@page:32=32"),
    "sparq": ("sparq@dimensions:8=32", "sparq@dimensions:16=32", "sparq@dimensions:32=32"),
    "dynamic_sparse": ("dynamic_sparse@rank:16=32", "dynamic_sparse@rank:32=32"),
    "dhsa": ("dhsa@chunk:8=32", "dhsa@chunk:16=32", "dhsa@chunk:64=32"),
    "infllm": (
        "infllm@local_tokens:256=13",
        "infllm@local_tokens:512=11",
        "infllm@local_tokens:512,representatives:16=11",
        "infllm@local_tokens:1024=7",
    ),
    "indexer": ("indexer=32",),
    "pooled_top_k": ("pooled_top_k=32",),
    "window": ("window=1984",),
    "longformer": ("longformer=1920", "longformer@global_first:512=1472"),
    "sparse_transformer_strided": ("sparse_transformer_strided=1792", "sparse_transformer_strided=2048"),
    "sparse_transformer_fixed": (
        "sparse_transformer_fixed=14",
        "sparse_transformer_fixed@block:512=56",
        "sparse_transformer_fixed@block:1024=96",
    ),
    "bigbird": ("bigbird=27", "bigbird@window_blocks:16=14", "bigbird@window_blocks:24=6"),
    "reformer": (
        "reformer@buckets:8=1",
        "reformer@buckets:16=2",
        "reformer@buckets:36=4",
        "reformer@buckets:72=8",
    ),
}
BASE = "routesparse=0.5"
CLOSE = ("sparq", "quest")  # what came close to BASE before, or ahead of it
MORE = 1.25  # of the chosen setting: the second one of CLOSE
DEVELOPED = ("text:prose", "relay", "niah_multivalue")
TASKS = (*DEVELOPED, "vt")


@dataclass(frozen=True)
class Tried:
    """A candidate on the development prompts."""

    text: str
    area: float
    kl: float


def main(argv: list[str] | None = None) -> None:
    """The three steps; what the file holds already is not measured again."""
    parser = study.parser(__doc__)
    parser.add_argument("--length", type=int, default=32_768)
    parser.add_argument("--area", type=float, default=0.13, help="largest area of a choice")
    parser.add_argument("--rules", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--development", type=int, default=2, help="prompts of a task to choose on")
    parser.add_argument("--prompts", type=int, default=8, help="reported ones of a task")
    parser.add_argument("--most", type=int, default=12, help=f"of a task, for {' and '.join(CLOSE)}")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing after it")
    study.add_processes(parser)
    arguments = parser.parse_args(argv)
    if arguments.seed == prompts.DEVELOPMENT_SEED:
        parser.error(f"--seed {arguments.seed} is that of development; pass another one")
    deadline = time.time() + arguments.limit_s
    candidates = [text for rule in arguments.rules for text in CANDIDATES[rule]]
    _measure(
        arguments, [BASE, *candidates], DEVELOPED, prompts.DEVELOPMENT_SEED, arguments.development, deadline
    )
    chosen = {
        rule: choose(tried(arguments.out, CANDIDATES[rule]), arguments.area) for rule in arguments.rules
    }
    note_choice(arguments.out, chosen, arguments.area)
    close = [_with_more(chosen[rule].text) for rule in arguments.rules if rule in CLOSE]
    if close:
        _measure(arguments, [BASE, *close], TASKS, arguments.seed, arguments.most, deadline)
    every = [BASE, *(one.text for one in chosen.values())]
    _measure(arguments, every, TASKS, arguments.seed, arguments.prompts, deadline)


def _measure(
    arguments: argparse.Namespace,
    wanted: list[str],
    tasks: tuple[str, ...],
    seed: int,
    count: int,
    deadline: float,
) -> None:
    left = deadline - time.time()
    shared = ("--processes", str(arguments.processes)) if arguments.processes else ()
    run.main(
        [
            *("--model", arguments.model, "--data", str(arguments.data), "--out", str(arguments.out)),
            *("--seed", str(seed), "--lengths", str(arguments.length), "--limit-s", str(left)),
            *("--prompts", str(count), "--windows", str(count), *shared),
            *("--tasks", *tasks, "--methods", *wanted),
        ]
    )


def tried(out: Path, candidates: tuple[str, ...]) -> list[Tried]:
    """The candidates on the development prompts. Errors: InputError where one lacks any prompt of another."""
    measured: dict[tuple[str, float], dict[tuple[str, int], dict[str, float]]] = defaultdict(dict)
    for key, row in rows.read_rows(rows.parts(out))[0].items():
        if row["seed"] == prompts.DEVELOPMENT_SEED:
            measured[key[0], key[1]][row["task"], row["index"]] = row
    every = {place for found in measured.values() for place in found}
    made = []
    for text in candidates:
        ((name, setting),) = methods.rounds([text])[0]
        found = measured[name, setting]
        if not found or set(found) != every:
            raise InputError(
                f"{text} was measured on {len(found)} of {len(every)} development prompts; "
                "give the same command more time"
            )
        by_task = list(_by_task(found))
        logs = [np.log(max(float(np.mean([row["kl"] for row in group])), 1e-12)) for group in by_task]
        area = float(np.mean([np.mean([row["area"] for row in group]) for group in by_task]))
        made.append(Tried(text, area, float(np.exp(np.mean(logs)))))
    return made


def _by_task(found: dict[tuple[str, int], dict[str, float]]) -> Iterator[list[dict[str, float]]]:
    for task in sorted({task for task, _ in found}):
        yield [row for (its, _), row in found.items() if its == task]


def choose(candidates: list[Tried], area: float) -> Tried:
    """The least KL at no more than the area; where none reads so little, what reads least."""
    within = [one for one in candidates if one.area <= area]
    return min(within, key=lambda one: one.kl) if within else min(candidates, key=lambda one: one.area)


def note_choice(out: Path, chosen: dict[str, Tried], area: float) -> None:
    """A line of the file, unless it stands there: each rule's choice, with its area and KL (nats) in development."""
    told = {
        "chosen": {
            rule: [one.text, round(one.area, 4), float(f"{one.kl:.4g}")] for rule, one in chosen.items()
        },
        "area": area,
    }
    if told not in list(rows.read_lines(out)):
        with rows.Appender(out) as file:
            file.write(told)


def _with_more(text: str) -> str:
    name, _, setting = text.rpartition("=")
    return f"{name}={setting},{round(MORE * float(setting))}"


if __name__ == "__main__":
    study.run(main)
