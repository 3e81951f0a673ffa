"""Tables of what the study measured: loss against area, and areas at equal loss.

    python -m routesparse.engine.lab.studies.selection.table selection*.jsonl --base flexprefill

One table per group of tasks and length, development and reported prompts apart; every task that was run has one,
and a group of which not all tasks were run names those that were:
    area      the kept share of the causal area, mean over layers and heads
    KL        millinats a token from dense attention; loss: what the text costs more than by dense, likewise
    agree     first choices that are dense's; score: the tasks', with the paired difference from dense
Then, for every setting of the base method: the area at which another method reaches its KL, and the KL of another
method at its area, as multiples of the base's (above 1: the other reads or loses more). Intervals: 95 %, bootstrap
over prompts within tasks, paired. "> x" and "<= x" where the other's settings don't bracket it. Settings that lack
prompts of the group stand in the first table with their n and are left out of the other two.
Behind the groups of a length, of tasks that have answers: the least area at which each rule keeps dense's score.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from routesparse.engine.lab import study
from routesparse.engine.lab.studies.selection import curves
from routesparse.engine.lab.studies.selection.methods import takes_extras
from routesparse.engine.lab.studies.selection.rows import read_lines, read_rows

GROUPS: dict[str, tuple[str, ...]] = {
    "prose": ("text:prose",),
    "code": ("text:code",),
    "dialog": ("text:dialog",),
    "docs": ("text:docs",),
    "text of all domains": ("text:prose", "text:code", "text:dialog", "text:docs"),
    "variable tracking": ("vt",),
    "several needles": ("niah_multivalue", "niah_multiquery"),
    "frequent words": ("fwe",),
    "relay": ("relay",),
    "list": ("list",),
}
POOLED = ("text of all domains",)  # of one domain alone it would repeat that domain's table
FLOOR = 1e-9  # the least KL that counts, where the kernel's own noise was not measured
NOISE, DENSE = ("dense_kernel", 1.0), ("dense", 1.0)
WITHIN = 1 / 48  # of the score: one prompt in 48
FEW = 10  # prompts a task, of fewer no least area is told
LEAST = "at its least area"
CONTROLS = ("random_blocks", "window")
KIN = ("routesparse", "oracle", "dense", *CONTROLS)  # ours, what nobody could run, and controls: no rivals
HEADS = (
    "method",
    "setting",
    "n",
    "area",
    "KL mnat",
    "loss mnat",
    "agree %",
    "score %",
    "less dense",
    "select ms",
)

Point = tuple[str, float]  # method and setting
TaskRows = dict[tuple[int, int], dict[str, Any]]  # by (seed, index)
Rows = dict[str, TaskRows]  # by task


class Least(NamedTuple):
    """A rule's least area that keeps dense's score: above ``failing`` (0: no cheaper setting was measured), at most
    ``keeping`` (None: no setting measured keeps it)."""

    words: str
    failing: float
    keeping: float | None


class Curve(NamedTuple):
    """One setting of a method. area, kl: one value per draw of prompts, the first of all of them."""

    setting: float
    area: np.ndarray
    kl: np.ndarray


def main(argv: list[str] | None = None) -> None:
    """Print the tables, or write them to --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--base", default="routesparse")
    parser.add_argument("--no-extras", action="store_true", help="the rules as published")
    parser.add_argument("--out", type=Path, help="Markdown file")
    parser.add_argument("--note", default="", help="a paragraph of the file: what these rows do not show")
    arguments = parser.parse_args(argv)
    text = "\n".join(tables(arguments.files, arguments.base, not arguments.no_extras)) + "\n"
    if arguments.out:
        arguments.out.write_text(
            "\n".join([*introduction(arguments.files, not arguments.no_extras, arguments.note), text])
        )
    else:
        print(text, end="")


def introduction(files: list[Path], extras: bool, note: str = "") -> Iterator[str]:
    """What a page of these tables is, and where its numbers come from."""
    read = (
        "Every plan also reads the sink, the diagonal and the block before it, and has the last 128 rows dense."
        if extras
        else "Here the rivals' plans are **as published**, without the sink, the block before the diagonal and the "
        "dense last 128 rows that all plans of SELECTION.md read; ours have them, and their area counts."
    )
    options = f"{'' if extras else ' --no-extras'}` with --out{' and --note' if note else ''}"
    yield "# What attention is spent on, and what that costs: every rule on the same prompts and kernel\n"
    yield (
        "Written by `python -m routesparse.engine.lab.studies.selection.table "
        f"{' '.join(study.portable(str(path)) for path in files)}{options}; do "
        "not edit by hand. *routesparse* is the default policy, its setting the price; *routesparse_per_head* is the "
        "policy `certified`, its setting tau. Rules and constants were chosen on documents of the calibration split; "
        "reported prompts come from the test split, and their seed was drawn after the rule was frozen. "
        f"{read} In *relay* and *list* the body of the prompt has to look up what stood two thirds of it earlier; "
        "*window* is the control that must fail there. "
        "*select ms* includes compiling and other processes on the same device: it is no measurement of speed.\n"
    )
    if note:
        yield f"{note}\n"
    lines = [row for path in files for row in read_lines(path)]
    yield from dict.fromkeys(choice(row) for row in lines if "chosen" in row)
    heads = [row for row in lines if "command" in row]
    yield from dict.fromkeys(
        f"- `{h['command']}`: {h['device']}, {h['dtype']}, torch {h['versions']['torch']}, commit {h['git_commit'][:7]}"
        for h in heads
    )


def choice(row: dict[str, Any]) -> str:
    """What tuned.py chose, in a paragraph."""
    told = [f"{text} ({area:.3f}, {1e3 * kl:.3g})" for text, area, kl in row["chosen"].values()]
    return (
        "Chosen on the development prompts, for the least KL among candidates that read at most "
        f"{row['area']:g} of the area (tuned.py; where none did, what reads least), with mean area and the geometric "
        "mean over tasks of KL in mnat: "
        f"{', '.join(told)}.\n"
    )


def tables(files: list[Path], base: str, extras: bool) -> Iterator[str]:
    """The Markdown, line by line."""
    rows, failed = read_rows(files)
    sections: dict[tuple[bool, int], dict[Point, Rows]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for (method, setting, task, length, index, seed, extra), row in rows.items():
        if extra == extras or not takes_extras(method):
            sections[row["reported"], length][method, setting][task][seed, index] = row
    for (reported, length), found in sorted(sections.items()):
        kind = "reported" if reported else "development"
        for group, tasks in _groups({task for r in found.values() for task in r}).items():
            chosen = {
                p: {t: r[t] for t in tasks if t in r} for p, r in found.items() if any(t in r for t in tasks)
            }
            ran = {task for r in chosen.values() for task in r}
            if ran and not (group in POOLED and len(ran) < 2):
                only = "" if len(ran) == len(tasks) else f" ({', '.join(t for t in tasks if t in ran)} only)"
                yield f"\n## {group}{only}, {length:,} tokens ({kind})\n"
                yield from loss_table(chosen)
                yield from equal_tables(chosen, base)
        scored = {p: {t: r for t, r in rows.items() if has_scores(r)} for p, rows in found.items()}
        least = list(least_table({point: rows for point, rows in scored.items() if rows}, base))
        if least:
            yield f"\n## Least area within one prompt in 48 of dense, {length:,} tokens ({kind})\n"
            yield from least
    for key, text in failed.items():
        yield f"\nfailed: {' '.join(map(str, key))}: {text}"


def _groups(ran: set[str]) -> dict[str, tuple[str, ...]]:
    """GROUPS, and every other task that was run by itself."""
    grouped = {task for tasks in GROUPS.values() for task in tasks}
    return {**GROUPS, **{task: (task,) for task in sorted(ran - grouped)}}


def loss_table(found: dict[Point, Rows]) -> Iterator[str]:
    """One line per method and setting, methods by name, settings by area."""
    yield head(HEADS)
    dense = found.get(DENSE, {})
    for (method, setting), rows in sorted(
        found.items(), key=lambda item: (item[0][0], pooled(item[1], "area"))
    ):
        less = pooled(rows, "nats") - pooled(rows, "nats_dense")
        score = pooled(rows, "score")
        yield line(
            method,
            f"{setting:g}",
            str(sum(map(len, rows.values()))),
            f"{pooled(rows, 'area'):.3f}",
            f"{1e3 * pooled(rows, 'kl'):.3g}",
            f"{1e3 * less:+.3g}",
            f"{100 * pooled(rows, 'agree'):.2f}",
            "" if np.isnan(score) else f"{100 * score:.1f}",
            "" if np.isnan(score) else difference(rows, dense),
            f"{pooled(rows, 'select_ms'):.1f}",
        )


def difference(rows: Rows, dense: Rows) -> str:
    """Points of score less dense's on the prompts that both have; one prompt a task has no interval."""
    changes = {
        task: np.array(
            [100 * (row["score"] - dense[task][at]["score"]) for at, row in r.items() if at in dense[task]]
        )
        for task, r in rows.items()
        if task in dense
    }
    changes = {task: values for task, values in changes.items() if len(values)}
    if not changes:
        return ""
    found = curves.means(changes, curves.draws({task: len(values) for task, values in changes.items()}))
    if max(map(len, changes.values())) < 2:
        return f"{found[0]:+.1f}"
    low, high = curves.interval(found)
    return f"{found[0]:+.1f} [{low:+.1f}, {high:+.1f}]"


def has_scores(rows: TaskRows) -> bool:
    """Whether a task's prompts have right answers."""
    return all("score" in row for row in rows.values())


def least_table(found: dict[Point, Rows], base: str) -> Iterator[str]:
    """One column per task of FEW prompts or more: dense's score, the base's area and score, and the least area at which
    each rival and control keeps dense's score.

    A setting keeps it where its mean is at most WITHIN below dense's on the same prompts; "<=" where no cheaper setting
    was measured, "none" with the largest area measured where no setting does.
    """
    dense = found.get(DENSE, {})
    rivals = sorted({method for method, _ in found if not method.startswith((base, *KIN))})
    own = [point for point in found if point[0] == base]
    if not (dense and rivals and own):
        return
    # What most prompts were run by; of several such the one that was measured first.
    mine = max(own, key=lambda point: sum(map(len, found[point].values())))
    tasks = sorted(task for task, rows in found[mine].items() if task in dense and len(rows) >= FEW)
    if not tasks:
        return

    def least_of(method: str) -> list[Least]:
        return [
            _least([rows[t] for (name, _), rows in found.items() if name == method and t in rows], dense[t])
            for t in tasks
        ]

    reached = {rival: least_of(rival) for rival in rivals}
    cheapest = least_of(base) if len(own) > 1 else []
    yield (
        f"{base} at {mine[1]:g}. A rule keeps dense's score where its mean is at most {100 * WITHIN:.1f} points below; "
        f"its setting and n in brackets (of {FEW} prompts or more); *none*: not at any setting measured, of which the "
        f"largest read that much. *{LEAST}*: {base} as each rival is taken, at the cheapest of its settings that keeps "
        "this task's score, chosen on these prompts. The last lines set both against the best rival, whose least area "
        "was not measured but bracketed: at most that of the cheapest setting that keeps the score, and above that of "
        f"a cheaper one, of any rival, that does not. *not kept*: {base} itself does not keep it. A task whose score a "
        "*control* keeps, which reads without looking, tells no rule from another.\n"
    )
    yield head(("", *tasks))
    yield line("dense, %", *(f"{100 * pooled({task: dense[task]}, 'score'):.1f}" for task in tasks))
    areas = [_area(found[mine][task]) for task in tasks]
    told = zip(areas, tasks, strict=True)
    yield line(base, *(f"{area:.3f}, {difference({t: found[mine][t]}, dense)}" for area, t in told))
    if cheapest:
        yield line(f"{base}, {LEAST}", *(least.words for least in cheapest))
    for rival, cells in reached.items():
        yield line(rival, *(least.words for least in cells))
    for control in sorted({method for method, _ in found if method.startswith(CONTROLS)}):
        yield line(f"{control} (control)", *(least.words for least in least_of(control)))
    columns = list(zip(*reached.values(), strict=True))
    kept = [area if _keeps(found[mine][t], dense[t]) else None for t, area in zip(tasks, areas, strict=True)]
    yield line(f"{base} / the best rival", *map(_ratio, kept, columns))
    if cheapest:
        yield line(f"{LEAST} / the best rival", *map(_ratio, (least.keeping for least in cheapest), columns))


def _least(settings: list[TaskRows], dense: TaskRows) -> Least:
    """A rule's least area that keeps the score; settings of FEW prompts or more count."""
    failing = 0.0
    for rows in sorted((rows for rows in settings if len(rows) >= FEW), key=_area):
        area = _area(rows)
        if _keeps(rows, dense):
            setting = next(iter(rows.values()))["setting"]
            return Least(f"{'<= ' * (not failing)}{area:.3f} ({setting:g}, {len(rows)})", failing, area)
        failing = area
    return Least(f"none up to {failing:.3f}" if failing else "not run", failing, None)


def _keeps(rows: TaskRows, dense: TaskRows) -> bool:
    """Whether the mean score is at most WITHIN below dense's on the prompts that both have."""
    less = [dense[at]["score"] - row["score"] for at, row in rows.items() if at in dense]
    return bool(less) and float(np.mean(less)) <= WITHIN + 1e-9


def _ratio(area: float | None, rivals: Sequence[Least]) -> str:
    """``area`` (None: the score was not kept) over the least of the rivals' least areas, between what was measured; a
    bound where one end is not."""
    if area is None:
        return "not kept"
    run = [least for least in rivals if least.failing or least.keeping]
    kept = min((least.keeping for least in run if least.keeping is not None), default=None)
    failing = min((least.failing for least in run), default=0.0)
    if kept is None:
        return f"< {area / failing:.2f}" if failing else "not run"
    return f"{area / kept:.2f} to {area / failing:.2f}" if failing else f">= {area / kept:.2f}"


def _area(rows: TaskRows) -> float:
    return float(np.mean([row["area"] for row in rows.values()]))


def equal_tables(found: dict[Point, Rows], base: str) -> Iterator[str]:
    """Areas at equal KL and KL at equal areas; nothing where the base was not measured on all prompts."""
    whole = complete(found)
    places = {task: sorted(rows) for task, rows in next(iter(whole.values())).items()} if whole else {}
    drawn = curves.draws({task: len(at) for task, at in places.items()}, seed=1)

    def values(rows: Rows, name: str) -> np.ndarray:
        return curves.means(
            {task: np.array([rows[task][at][name] for at in ats]) for task, ats in places.items()}, drawn
        )

    floor = max(FLOOR, pooled(whole[NOISE], "kl") if NOISE in whole else 0.0)
    by_method: dict[str, list[Curve]] = defaultdict(list)
    for (method, setting), rows in whole.items():
        if method not in (DENSE[0], NOISE[0]):
            kl = np.maximum(values(rows, "kl"), floor)
            by_method[method].append(Curve(setting, values(rows, "area"), kl))
    own = sorted(by_method.pop(base, []), key=lambda point: point.area[0])
    if not own or not by_method:
        return
    columns = [f"{at.setting:g}: area {at.area[0]:.3f}, KL {1e3 * at.kl[0]:.3g}" for at in own]
    stacked = {
        method: (np.stack([at.area for at in points]), np.stack([at.kl for at in points]))
        for method, points in sorted(by_method.items())
    }
    yield f"\nArea at equal KL, as a multiple of {base}'s (noise floor {1e3 * floor:.2g} mnat):\n"
    yield head(("method", *columns))
    for method, (area, kl) in stacked.items():
        yield line(method, *(cell(curves.area_at(area, kl, at.kl), at.area) for at in own))
    yield f"\nKL at equal area, as a multiple of {base}'s:\n"
    yield head(("method", *columns))
    for method, (area, kl) in stacked.items():
        yield line(method, *(cell(curves.kl_at(area, kl, at.area), at.kl) for at in own))


def cell(found: curves.Reached, own: np.ndarray) -> str:
    """A ratio with its interval; where it is a bound, only that."""
    ratios = found.values / own
    if found.sides[0]:
        return f"{'>' if found.sides[0] > 0 else '<='} {ratios[0]:.2f}"
    low, high = curves.interval(ratios)
    share = (1 - curves.LEVEL) / 2
    below, above = (bool((found.sides[1:] == side).mean() > share) for side in (-1, 1))
    return f"{ratios[0]:.2f} [{'<=' * below}{low:.2f}, {'>' * above}{high:.2f}]"


def complete(found: dict[Point, Rows]) -> dict[Point, Rows]:
    """The settings that have every prompt that any setting but dense attention has, with these prompts."""
    wanted: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for point, rows in found.items():
        for task, r in rows.items():
            wanted[task] |= set(r) if point != DENSE else set()
    return {
        point: {task: {at: rows[task][at] for at in ats} for task, ats in wanted.items() if ats}
        for point, rows in found.items()
        if all(ats <= set(rows.get(task, ())) for task, ats in wanted.items())
    }


def pooled(rows: Rows, name: str) -> float:
    """Mean over tasks of the mean over prompts; NaN where it was not measured."""
    found = [
        np.mean([row[name] for row in r.values()])
        for r in rows.values()
        if all(name in row for row in r.values())
    ]
    return float(np.mean(found)) if found else float("nan")


def head(cells: tuple[str, ...]) -> str:
    return f"{line(*cells)}\n{'|---' * len(cells)}|"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    study.run(main)
