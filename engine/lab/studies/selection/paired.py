"""One method against another on the same prompts: what each loses against dense, and the paired difference.

    python -m routesparse.engine.lab.studies.selection.paired data/results/real/h1_1.5b_h200.jsonl.gz \\
        --base minference=1 --other routesparse_fitted=0.25 --deciding 0.3

A question's loss is what its gold answer lost, in nats; a text's its KL, in nats a token. Intervals and p resample
documents; Holm's correction is over the two kinds. --deciding: what the other's deciding is worth in area; prompts
where it reads more than the base less this are left out, and counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine.errors import InputError
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.selection.rows import read_rows
from routesparse.engine.stats.clusters import RESAMPLES, resampled_means
from routesparse.engine.stats.paired import Interval, holm, interval

Row = dict[str, Any]
Pair = tuple[Row, Row, Row]  # of one prompt: dense, base, other
KINDS = {"questions": "nats an answer", "texts": "KL, nats a token"}


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--base", required=True, help="NAME=SETTING")
    parser.add_argument("--other", required=True, help="NAME=SETTING")
    parser.add_argument(
        "--deciding", type=float, default=-1.0, help="share of the area; default: none left out"
    )
    arguments = parser.parse_args(argv)
    every = pairs(list(read_rows(arguments.rows)[0].values()), arguments.base, arguments.other)
    kept = [pair for pair in every if pair[2]["area"] <= pair[1]["area"] - arguments.deciding]
    print("\n".join(table(kept)))
    print(f"\n{len(every) - len(kept)} of {len(every)} prompts left out for their area")


def pairs(rows: Sequence[Row], base: str, other: str) -> list[Pair]:
    """Prompts that dense and both methods have. Errors: InputError where there are none."""
    found: dict[str, dict[tuple[Any, ...], Row]] = {}
    for row in rows:
        at = found.setdefault(f"{row['method']}={row['setting']:g}", {})
        at[row["task"], row["length"], row["index"], row["seed"]] = row
    three = [found.get(name, {}) for name in ("dense=1", base, other)]
    both = [
        (three[0][key], three[1][key], three[2][key])
        for key in three[0]
        if key in three[1] and key in three[2]
    ]
    if not both:
        raise InputError(
            f"no prompt has rows of dense, {base} and {other}; known: {', '.join(sorted(found))}"
        )
    return both


def loss(row: Row, dense: Row) -> float:
    """Of a text its KL; of a question the nats that its gold answer lost."""
    if row["task"].startswith("text:"):
        return float(row["kl"])
    return float((row["nats"] - dense["nats"]) * row["positions"])


def less_lost(chosen: Sequence[Pair]) -> Interval:
    """Base's loss less the other's, mean over prompts; documents are resampled."""
    values = np.array([loss(base, dense) - loss(other, dense) for dense, base, other in chosen])
    documents = [" ".join(map(str, dense["documents"])) for dense, _, _ in chosen]
    draws = resampled_means(values, documents, np.random.default_rng(0), RESAMPLES)
    return interval(np.concatenate([[values.mean()], draws]))


def table(every: Sequence[Pair]) -> Iterator[str]:
    """Markdown: both kinds, and each task of them."""
    yield "| | prompts, documents | base: loss, area | other: loss, area | less lost | p, Holm | score, points |"
    yield f"|{'---|' * 7}"
    of = {
        "questions": [pair for pair in every if not pair[0]["task"].startswith("text:")],
        "texts": [pair for pair in every if pair[0]["task"].startswith("text:")],
    }
    adjusted = holm({kind: less_lost(chosen).p for kind, chosen in of.items() if chosen})
    for kind, chosen in of.items():
        if chosen:
            yield _line(f"**{kind}, {KINDS[kind]}**", chosen, f"{adjusted[kind]:.4f}")
            for task in sorted({pair[0]["task"] for pair in chosen}):
                yield _line(task, [pair for pair in chosen if pair[0]["task"] == task], "")


def _line(name: str, chosen: Sequence[Pair], p: str) -> str:
    documents = len({" ".join(map(str, dense["documents"])) for dense, _, _ in chosen})
    cells = []
    for place in (1, 2):
        mean = np.mean([loss(pair[place], pair[0]) for pair in chosen])
        cells.append(f"{mean:.4f}, {np.mean([pair[place]['area'] for pair in chosen]):.2f}")
    found = less_lost(chosen)
    scores = [100 * (other["score"] - base["score"]) for _, base, other in chosen if "score" in base]
    points = f"{np.mean(scores):+.1f}" if scores else ""
    told = f"{found.value:.4f} ({found.low:.4f} to {found.high:.4f})"
    return f"| {' | '.join([name, f'{len(chosen)}, {documents}', *cells, told, p, points])} |"


if __name__ == "__main__":
    study.run(main)
