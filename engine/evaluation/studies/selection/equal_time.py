"""KL at equal total time: one price against the gate of each head and against fixed budgets (H1 in small).

    python -m routesparse.engine.evaluation.studies.selection.equal_time selection*.jsonl --clock clock.jsonl

Areas and KL come from the study's files, measured beside other processes; times from --clock, a file of the study whose
one process had its GPU to itself. All rules run on one kernel, so its time is taken for a line in the area, fitted a
length to our own prefills in --clock; what deciding takes there is added for our policies. The rivals' rules are plain
PyTorch here, which says nothing of their speed: their deciding counts as **nothing**, which favours them. MInference's
heads and budgets are frozen on development prose, as published; its plans, too, read the sink, the block before the
diagonal and the dense last rows. This is not the paper's H1, which asks for scores, with all deciding counted.

A clock whose error exceeds the differences orders nothing, and below break-even our product runs dense by default.
"> x": no setting was measured at so short a time, and the ratio is at least x; "<= x" the other way round.

The mixed set: all text prompts of all lengths that every method has; mean over lengths and domains. Intervals: 95 %,
bootstrap over prompts within domain and length, paired.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine.errors import InputError
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies.selection import curves
from routesparse.engine.evaluation.studies.selection.methods import OURS
from routesparse.engine.evaluation.studies.selection.rows import read_lines, read_rows
from routesparse.engine.evaluation.studies.selection.table import cell, head, line

Point = tuple[str, float]  # method and setting
Place = tuple[str, int, int, int]  # task, length, seed, index
BASE = "routesparse"


def main(argv: list[str] | None = None) -> None:
    """Print the table, or write it to --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["routesparse_per_head", "minference"])
    parser.add_argument("--out", type=Path, help="Markdown file")
    arguments = parser.parse_args(argv)
    clock = Clock(read_lines(arguments.clock))
    found = measured(arguments.files, clock, arguments.methods)
    lines = [*introduction(arguments, clock), "## The mixed set\n", *table(found, clock, set(clock.lines))]
    for length in clock.lines:
        lines += [f"\n## {length:,} tokens alone\n", *table(found, clock, {length})]
    text = "\n".join(lines)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    else:
        print(text)


class Clock:
    """Milliseconds of a whole prompt's attention: of the kernel by area, and of deciding by method."""

    def __init__(self, lines: Iterator[dict[str, Any]]) -> None:
        """Errors: InputError where a length has fewer than three settings, or the file was not of one process."""
        rows = []
        for row in lines:
            if row.get("processes", 1) != 1:
                raise InputError(
                    "the clock's file was written by several processes; run it with --processes 1"
                )
            if row.get("attention_ms") and row["method"] in OURS:
                rows.append(row)
        self.lines: dict[int, tuple[float, float]] = {}
        self.errors: dict[int, float] = {}
        self._deciding: dict[tuple[str, int], float] = {}
        for length in sorted({row["length"] for row in rows}):
            here = [row for row in rows if row["length"] == length]
            points: dict[Point, list[dict[str, Any]]] = defaultdict(list)
            for row in here:
                points[row["method"], row["setting"]].append(row)
            if len(points) < 3:
                raise InputError(f"the clock has {len(points)} settings at {length:,} tokens; give it three")
            # Medians over prompts: the first of a shape also captures its graphs.
            areas, times = (
                np.array([np.median([row[name] for row in found]) for found in points.values()])
                for name in ("area", "attention_ms")
            )
            slope, fixed = np.polyfit(areas, times, 1)
            self.lines[length] = (float(fixed), float(slope))
            self.errors[length] = float(np.abs((fixed + slope * areas) / times - 1).max())
            for method in OURS:
                spent = [row["select_ms"] for row in here if row["method"] == method]
                if spent:
                    self._deciding[method, length] = float(np.median(spent))

    def total(self, method: str, length: int, area: np.ndarray) -> np.ndarray:
        """Of attention and, for our own policies, deciding. Errors: InputError for a policy without a clock."""
        fixed, slope = self.lines[length]
        if method in OURS and (method, length) not in self._deciding:
            raise InputError(f"the clock has no {method} at {length:,} tokens; add it to its --methods")
        return fixed + slope * area + self._deciding.get((method, length), 0.0)

    def described(self) -> Iterator[str]:
        """One line a length."""
        for length, (fixed, slope) in self.lines.items():
            deciding = ", ".join(f"{m} {ms:.2f}" for (m, n), ms in self._deciding.items() if n == length)
            yield (
                f"- {length:,} tokens: attention takes {fixed:.2f} + {slope:.1f} x area ms (largest error "
                f"{self.errors[length]:.0%}), deciding {deciding} ms"
            )


def introduction(arguments: argparse.Namespace, clock: Clock) -> Iterator[str]:
    """What the table is, and where its times come from."""
    yield "# One price, a gate for each head, or fixed budgets: KL at equal total time\n"
    yield (
        "Written by `python -m routesparse.engine.evaluation.studies.selection.equal_time "
        f"{' '.join(study.portable(str(p)) for p in arguments.files)} --clock {study.portable(str(arguments.clock))}`; "
        "do not edit by hand. " + " ".join((__doc__ or "").split("\n\n")[2].split()) + "\n"
    )
    for row in read_lines(arguments.clock):
        if "command" in row:
            yield (
                f"Clock: `{row['command']}`, {row['device']}, {row['dtype']}, torch {row['versions']['torch']}, "
                f"commit {row['git_commit'][:7]}.\n"
            )
    yield from clock.described()
    yield ""
    yield from (" ".join(part.split()) + "\n" for part in (__doc__ or "").split("\n\n")[3:5])


def measured(files: list[Path], clock: Clock, rivals: list[str]) -> dict[Point, dict[Place, dict[str, Any]]]:
    """Rows of reported text prompts by setting, of the prompts and lengths that every setting has.

    Settings that were measured at one length alone are left out. Errors: InputError where nothing is left.
    """
    by_point: dict[Point, dict[Place, dict[str, Any]]] = defaultdict(dict)
    for (method, setting, task, length, index, seed, _), row in read_rows(files)[0].items():
        wanted = method in (BASE, *rivals) and row["reported"] and row["extras"]
        if wanted and task.startswith("text:") and length in clock.lines:
            by_point[method, setting][task, length, seed, index] = row
    by_point = {point: rows for point, rows in by_point.items() if len({place[1] for place in rows}) > 1}
    common = set.intersection(*(set(rows) for rows in by_point.values())) if by_point else set()
    if not common:
        raise InputError("no text prompt was measured by every method at two lengths that the clock has")
    return {point: {place: rows[place] for place in sorted(common)} for point, rows in by_point.items()}


def table(found: dict[Point, dict[Place, dict[str, Any]]], clock: Clock, lengths: set[int]) -> Iterator[str]:
    """Ratios of KL at each of our settings' times: above 1, the other loses more. Errors: InputError."""
    groups: dict[tuple[str, int], list[Place]] = defaultdict(list)
    for place in next(iter(found.values())):
        if place[1] in lengths:
            groups[place[:2]].append(place)
    drawn = curves.draws({str(group): len(places) for group, places in groups.items()}, seed=1)
    settings: dict[str, list[tuple[float, np.ndarray, np.ndarray]]] = defaultdict(list)
    for (method, setting), rows in sorted(found.items()):
        times = {
            str(group): clock.total(method, group[1], np.array([rows[p]["area"] for p in places]))
            for group, places in groups.items()
        }
        losses = {str(group): np.array([rows[p]["kl"] for p in places]) for group, places in groups.items()}
        settings[method].append((setting, curves.means(times, drawn), curves.means(losses, drawn)))
    own = sorted(settings.pop(BASE, []), key=lambda point: point[1][0])
    yield (
        f"{sum(map(len, groups.values()))} prompts of {len({task for task, _ in groups})} domains at "
        f"{', '.join(f'{n:,}' for n in sorted(lengths))} tokens.\n"
    )
    yield head(("method", "setting", "ms a prompt", "KL mnat"))
    for method, points in [(BASE, own), *settings.items()]:
        for setting, time, kl in points:
            yield line(method, f"{setting:g}", f"{time[0]:.2f}", f"{1e3 * kl[0]:.3g}")
    yield f"\nKL at equal time, as a multiple of {BASE}'s:\n"
    yield head(("method", *(f"{s:g}: {time[0]:.2f} ms, KL {1e3 * kl[0]:.3g}" for s, time, kl in own)))
    for method, points in settings.items():
        stacked = [np.stack([point[part] for point in points]) for part in (1, 2)]
        yield line(method, *(cell(curves.kl_at(stacked[0], stacked[1], time), kl) for _, time, kl in own))


if __name__ == "__main__":
    study.run(main)
