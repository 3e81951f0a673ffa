"""One method against another on the same prompts: what each loses against dense, and the paired difference.

    python -m routesparse.engine.lab.studies.selection.paired data/results/real/evidence_1.5b_h200.jsonl.gz \\
        --base minference@prose/16384=1 --other routesparse_fitted=0.25 --deciding 0.3

A question's loss is what its gold answer lost, in nats; a text's its KL, in nats a token. Intervals and p resample
the first document of each prompt; Holm's correction is over the two kinds. --deciding: what the other's deciding is
worth in area; prompts where it reads more than the base less this are left out, and counted.
--plain TASK/LENGTH: also the relative gain, 1 - the other's KL / the base's, of every kind and length of text less that
of this one. --plan PROMPTS: what a test of so many prompts could find, of a pilot's rows, and whether to run it at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine.errors import InputError
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.selection.rows import read_rows
from routesparse.engine.stats.paired import Draws, Interval, holm, interval

Row = dict[str, Any]
Pair = tuple[Row, Row, Row]  # of one prompt: dense, base, other
KINDS = {"questions": "nats an answer", "texts": "KL, nats a token"}
TESTS = 5  # of one family: H1, H2 by domain, length and both, H3
POWERED = 2.58 + 0.84  # normal quantiles of .01 (Holm's strictest of TESTS, two-sided) and of a power of .8
LEAST_HEADROOM, LEAST_DISCORDANT, LEAST_TREATED = 2.0, 0.05, 0.03  # points; shares


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--base", required=True, help="NAME=SETTING")
    parser.add_argument("--other", required=True, help="NAME=SETTING")
    parser.add_argument(
        "--deciding", type=float, default=-1.0, help="share of the area; default: none left out"
    )
    parser.add_argument("--plain", help="TASK/LENGTH, such as text:prose/16384")
    parser.add_argument("--plan", type=int, metavar="PROMPTS")
    arguments = parser.parse_args(argv)
    every = pairs(list(read_rows(arguments.rows)[0].values()), arguments.base, arguments.other)
    kept = [pair for pair in every if pair[2]["area"] <= pair[1]["area"] - arguments.deciding]
    if arguments.plan is not None:
        print("\n".join(plan(kept, arguments.plan)))
        return
    print("\n".join(table(kept)))
    print(f"\n{len(every) - len(kept)} of {len(every)} prompts left out for their area")
    if arguments.plain:
        print("\n".join(["", *shifts(kept, arguments.plain)]))


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
    return _interval(chosen, lambda drawn, base, other: drawn.means(base) - drawn.means(other))


def less_lost_at_worst(chosen: Sequence[Pair]) -> Interval:
    """The same of the mean of each method's own worst tenth of prompts."""
    return _interval(chosen, lambda drawn, base, other: _worst(drawn, base) - _worst(drawn, other))


def shift(chosen: Sequence[Pair], plain: Sequence[Pair]) -> tuple[Interval, Interval]:
    """Relative gain 1 - other / base of prompts, and that less the plain prompts'."""
    gains = [_interval_draws(one, _relative, seed) for seed, one in enumerate((chosen, plain))]
    return interval(gains[0]), interval(gains[0] - gains[1])


def _relative(drawn: Draws, base: Any, other: Any) -> np.ndarray:
    return 1 - drawn.totals(other) / drawn.totals(base)


def _worst(drawn: Draws, losses: Any) -> np.ndarray:
    return -drawn.worst_means({name: -values for name, values in losses.items()})


def _interval(chosen: Sequence[Pair], statistic: Callable[[Draws, Any, Any], np.ndarray]) -> Interval:
    return interval(_interval_draws(chosen, statistic, 0))


def _interval_draws(
    chosen: Sequence[Pair], statistic: Callable[[Draws, Any, Any], np.ndarray], seed: int
) -> np.ndarray:
    drawn = Draws({"all": [dense["documents"][0] for dense, _, _ in chosen]}, seed)
    base, other = (np.array([loss(pair[place], pair[0]) for pair in chosen]) for place in (1, 2))
    return statistic(drawn, {"all": base}, {"all": other})


def table(every: Sequence[Pair]) -> Iterator[str]:
    """Markdown: both kinds, and each task and length of them."""
    heads = ("base: loss, area", "other: loss, area", "less lost", "in the worst tenth", "p, Holm", "points")
    yield f"| | prompts, documents | {' | '.join(heads)} |"
    yield f"|{'---|' * 8}"
    of = {
        "questions": [pair for pair in every if not pair[0]["task"].startswith("text:")],
        "texts": [pair for pair in every if pair[0]["task"].startswith("text:")],
    }
    adjusted = holm({kind: less_lost(chosen).p for kind, chosen in of.items() if chosen})
    for kind, chosen in of.items():
        if chosen:
            yield _line(f"**{kind}, {KINDS[kind]}**", chosen, f"{adjusted[kind]:.4f}")
            for cell, own in _cells(chosen).items():
                yield _line(cell, own, "")


def shifts(every: Sequence[Pair], plain: str) -> Iterator[str]:
    """Markdown: the relative gain by kind and length of text, and less that of the plain cell.

    Errors: InputError for an unknown cell.
    """
    cells = _cells([pair for pair in every if pair[0]["task"].startswith("text:")])
    if plain not in cells:
        raise InputError(f"no texts {plain}; known: {', '.join(cells)}")
    task, length = plain.rsplit("/", 1)
    groups: dict[str, list[Pair]] = {"domain": [], "length": [], "both": []}
    for cell, own in cells.items():
        other_task, other_length = (
            mine != its for mine, its in zip(cell.rsplit("/", 1), (task, length), strict=True)
        )
        if other_task or other_length:
            name = "both" if other_task and other_length else "domain" if other_task else "length"
            groups[name] += own
    yield f"| texts | windows, documents | relative gain | less that of {plain} | p |"
    yield f"|{'---|' * 5}"
    for name, own in [*((f"**{name}**", own) for name, own in groups.items() if own), *cells.items()]:
        gain, more = shift(own, cells[plain])
        told = f"{_told(more, 3)} | {more.p:.4f}" if name != plain else " | "
        yield f"| {name} | {len(own)}, {_documents(own)} | {_told(gain, 3)} | {told} |"


def plan(every: Sequence[Pair], prompts: int) -> Iterator[str]:
    """What a test of so many prompts finds with a power of 80 % at Holm's strictest level, by task; and refusals."""
    yield f"| task | pilot | sd of the difference | found by {prompts} | headroom, points | differ | raised | run it |"
    yield f"|{'---|' * 8}"
    for cell, own in _cells(every).items():
        values = np.array([loss(base, dense) - loss(other, dense) for dense, base, other in own])
        draws = _interval_draws(own, lambda drawn, base, other: drawn.means(base) - drawn.means(other), 0)
        # Prompts of one document resemble each other: as many prompts as make the pilot's own standard error.
        found = POWERED * float(draws[1:].std()) * (len(own) / prompts) ** 0.5
        raised = float(np.mean([other.get("fallback", 0.0) for _, _, other in own]))
        # Rules of others never raise a head; between two of ours the test is about what was raised.
        treated = "fallback" not in own[0][1] or raised >= LEAST_TREATED
        why = [] if treated else [f"under {LEAST_TREATED:.0%} raised"]
        told = " | "
        if "score" in own[0][1]:
            headroom = 100 * float(np.mean([dense["score"] - base["score"] for dense, base, _ in own]))
            differ = float(np.mean([base["score"] != other["score"] for _, base, other in own]))
            why += [f"headroom under {LEAST_HEADROOM:g} points"] * (headroom < LEAST_HEADROOM)
            why += [f"under {LEAST_DISCORDANT:.0%} differ"] * (differ < LEAST_DISCORDANT)
            told = f"{headroom:.1f} | {differ:.2f}"
        verdict = f"no: {', '.join(why)}" if why else "yes"
        yield f"| {cell} | {len(own)} | {values.std():.4f} | {found:.4f} | {told} | {raised:.3f} | {verdict} |"


def _cells(chosen: Sequence[Pair]) -> dict[str, list[Pair]]:
    cells: dict[str, list[Pair]] = {}
    for pair in sorted(chosen, key=lambda pair: (pair[0]["length"], pair[0]["task"])):
        cells.setdefault(f"{pair[0]['task']}/{pair[0]['length']}", []).append(pair)
    return cells


def _documents(chosen: Sequence[Pair]) -> int:
    return len({dense["documents"][0] for dense, _, _ in chosen})


def _told(found: Interval, digits: int = 4) -> str:
    return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def _line(name: str, chosen: Sequence[Pair], p: str) -> str:
    cells = []
    for place in (1, 2):
        mean = np.mean([loss(pair[place], pair[0]) for pair in chosen])
        cells.append(f"{mean:.4f}, {np.mean([pair[place]['area'] for pair in chosen]):.3f}")
    scores = [100 * (other["score"] - base["score"]) for _, base, other in chosen if "score" in base]
    points = f"{np.mean(scores):+.1f}" if scores else ""
    told = [_told(less_lost(chosen)), _told(less_lost_at_worst(chosen))]
    return f"| {' | '.join([name, f'{len(chosen)}, {_documents(chosen)}', *cells, *told, p, points])} |"


if __name__ == "__main__":
    study.run(main)
