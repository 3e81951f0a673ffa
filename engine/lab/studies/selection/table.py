"""Tables of what the study measured: loss against area, and areas at equal loss.

    python -m routesparse.engine.lab.studies.selection.table selection*.jsonl --base routesparse

One table per group of tasks and length, development and reported prompts apart; every task that was run has one,
and a group of which not all tasks were run names those that were:
    area      the kept share of the causal area, mean over layers and heads
    KL        millinats a token from dense attention; loss: what the text costs more than by dense, likewise
    agree     first choices that are dense's; score: the tasks', with the paired difference from dense
With --at: the area at which each method reaches these KL (millinats), and how many times the base's that is.
Then, for every setting of the base method: the area at which another method reaches its KL, and the KL of another
method at its area, as multiples of the base's (above 1: the other reads or loses more). Intervals: 95 %, bootstrap
within tasks, paired, over groups of prompts that share a document. "> x" and "<= x" where the other's settings don't
bracket it. Settings that lack prompts of the group stand in the first table with their n and are left out of the other
two.

SELECTION.md and RELATED_GPU.md were written by this file at commit b6dfeee2, which tells least areas, over prompts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.lab import study
from routesparse.engine.lab.studies.selection import curves
from routesparse.engine.lab.studies.selection.methods import takes_extras
from routesparse.engine.lab.studies.selection.rows import read_rows
from routesparse.engine.stats.paired import LEVEL, Draws, interval

GROUPS: dict[str, tuple[str, ...]] = {
    "prose": ("text:prose",),
    "code": ("text:code",),
    "dialog": ("text:dialog",),
    "docs": ("text:docs",),
    "text of all domains": ("text:prose", "text:code", "text:dialog", "text:docs"),
    "variable tracking": ("vt",),
    "several needles": ("niah_multivalue", "niah_multiquery"),
    "frequent words": ("fwe",),
}  # any other task by itself
POOLED = ("text of all domains",)  # of one domain alone it would repeat that domain's table
FLOOR = 1e-9  # the least KL that counts, where the kernel's own noise was not measured
NOISE, DENSE = ("dense_kernel", 1.0), ("dense", 1.0)
POINT, PROMPT = ["method", "setting"], ["task", "seed", "index"]
HEADS = [
    *("method", "setting", "n", "area", "KL mnat", "loss mnat", "agree %", "score %", "less dense"),
    "select ms",
]


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--base", default="routesparse")
    parser.add_argument("--no-extras", action="store_true", help="the rules as published")
    parser.add_argument("--at", type=float, nargs="*", default=[], help="KL in millinats, such as 10 20")
    arguments = parser.parse_args(argv)
    for text in tables(arguments.files, arguments.base, not arguments.no_extras, arguments.at):
        print(text)


def tables(files: list[Path], base: str, extras: bool, at: Sequence[float] = ()) -> Iterator[str]:
    """The Markdown, line by line."""
    rows, failed = read_rows(files)
    found = pd.DataFrame(rows.values())
    if len(found):
        found = found[(found["extras"] == extras) | ~found["method"].map(takes_extras)].reindex(
            columns=[*found.columns, *({"score"} - {*found.columns})]
        )
        for (reported, length), part in found.groupby(["reported", "length"]):
            kind = "reported" if reported else "development"
            ran = set(part["task"])
            grouped = {task for tasks in GROUPS.values() for task in tasks}
            for group, tasks in (GROUPS | {task: (task,) for task in sorted(ran - grouped)}).items():
                mine = [task for task in tasks if task in ran]
                if not mine or (group in POOLED and len(mine) < 2):
                    continue
                only = "" if len(mine) == len(tasks) else f" ({', '.join(mine)} only)"
                yield f"\n## {group}{only}, {length:,} tokens ({kind})\n"
                chosen = part[part["task"].isin(mine)]
                yield from loss_table(chosen)
                yield from equal_tables(chosen, base, at)
    for key, text in failed.items():
        yield f"\nfailed: {' '.join(map(str, key))}: {text}"


def loss_table(found: pd.DataFrame) -> Iterator[str]:
    """One line per method and setting, methods by name, settings by area; means over tasks of those over prompts."""
    columns = ["area", "kl", "agree", "nats", "nats_dense", "score", "select_ms"]
    means = found.groupby([*POINT, "task"])[columns].mean().groupby(POINT).mean()
    counts = found.groupby(POINT).size()
    yield head(HEADS)
    for point, row in means.sort_values(["method", "area"]).iterrows():
        scored = not np.isnan(row["score"])
        yield line(
            point[0],
            f"{point[1]:g}",
            str(counts[point]),
            f"{row['area']:.3f}",
            f"{1e3 * row['kl']:.3g}",
            f"{1e3 * (row['nats'] - row['nats_dense']):+.3g}",
            f"{100 * row['agree']:.2f}",
            f"{100 * row['score']:.1f}" if scored else "",
            difference(found, point) if scored else "",
            f"{row['select_ms']:.1f}",
        )


def difference(found: pd.DataFrame, point: tuple[str, float]) -> str:
    """Points of score less dense's on the prompts that both have; one prompt a task has no interval."""
    scores = found.set_index([*POINT, *PROMPT])["score"].sort_index()
    if DENSE not in scores:
        return ""
    changes = (100 * (scores[point] - scores[DENSE])).dropna()
    by_task = {str(task): part.to_numpy() for task, part in changes.groupby(level="task")}
    if not by_task:
        return ""
    drawn = Draws({task: range(len(values)) for task, values in by_task.items()})
    found = interval(drawn.means(by_task))
    if max(map(len, by_task.values())) < 2:
        return f"{found.value:+.1f}"
    return f"{found.value:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def equal_tables(found: pd.DataFrame, base: str, at: Sequence[float] = ()) -> Iterator[str]:
    """Areas at equal KL and KL at equal areas; none where the base lacks prompts. at: millinats."""
    wide = found.pivot(index=PROMPT, columns=POINT, values=["area", "kl"]).sort_index()
    others = [point for point in wide["kl"].columns if point != DENSE]
    wide = wide[wide["kl"][others].notna().any(axis=1)]
    if wide.empty:
        return
    area, kl = (wide[name][others].dropna(axis=1) for name in ("area", "kl"))
    tasks = wide.index.get_level_values("task")
    groups = _groups(found).reindex(wide.index)
    drawn = Draws({task: list(groups[tasks == task]) for task in dict.fromkeys(tasks)}, seed=1)

    def drawn_means(values: pd.Series) -> np.ndarray:
        return drawn.means({task: values[tasks == task].to_numpy() for task in drawn.places})

    noise = kl[NOISE].groupby(level="task").mean().mean() if NOISE in kl else 0.0
    floor = max(FLOOR, noise)
    stacked = {
        method: (
            np.stack([drawn_means(area[point]) for point in kl.columns if point[0] == method]),
            np.stack(
                [np.maximum(drawn_means(kl[point]), floor) for point in kl.columns if point[0] == method]
            ),
        )
        for method in sorted({method for method, _ in kl.columns} - {NOISE[0]})
    }
    if base not in stacked or len(stacked) < 2:
        return
    if at:
        goals = [np.full(stacked[base][0].shape[1], 1e-3 * kl) for kl in at]
        mine = [curves.area_at(*stacked[base], goal) for goal in goals]
        yield f"\nArea at a KL, and as a multiple of {base}'s:\n"
        yield head(["method", *(cell for kl in at for cell in (f"KL {kl:g} mnat", "x"))])
        for method, both in stacked.items():
            reached = [curves.area_at(*both, goal) for goal in goals]
            pairs = (
                (cell(one, np.ones(1), 3), cell(one, own.values))
                for one, own in zip(reached, mine, strict=True)
            )
            yield line(method, *(text for pair in pairs for text in pair))
    order = stacked[base][0][:, 0].argsort()
    own_area, own_kl = (values[order] for values in stacked.pop(base))
    settings = np.array([setting for method, setting in kl.columns if method == base])[order]
    columns = [
        f"{setting:g}: area {at[0]:.3f}, KL {1e3 * loss[0]:.3g}"
        for setting, at, loss in zip(settings, own_area, own_kl, strict=True)
    ]
    yield f"\nArea at equal KL, as a multiple of {base}'s (noise floor {1e3 * floor:.2g} mnat):\n"
    yield head(["method", *columns])
    for method, both in stacked.items():
        yield line(
            method, *(cell(curves.area_at(*both, k), a) for a, k in zip(own_area, own_kl, strict=True))
        )
    yield f"\nKL at equal area, as a multiple of {base}'s:\n"
    yield head(["method", *columns])
    for method, both in stacked.items():
        yield line(method, *(cell(curves.kl_at(*both, a), k) for a, k in zip(own_area, own_kl, strict=True)))


def _groups(found: pd.DataFrame) -> pd.Series:
    """By PROMPT a label that prompts share whose texts have a document in common, at one or more removes."""
    prompts = found.drop_duplicates(PROMPT).set_index(PROMPT)
    named = (
        prompts["documents"] if "documents" in prompts else pd.Series([None] * len(prompts), prompts.index)
    )
    label: dict[Any, Any] = {}
    of: dict[Any, int] = {}
    for place, (prompt, documents) in enumerate(named.items()):
        names = [(prompt[0], one) for one in documents] if isinstance(documents, list) else [prompt]
        joined = {of[name] for name in names if name in of} | {place}
        of |= dict.fromkeys([*names, *(name for name, group in of.items() if group in joined)], min(joined))
        label[prompt] = names[0]
    return pd.Series({prompt: of[name] for prompt, name in label.items()}).rename_axis(PROMPT)


def cell(found: curves.Reached, own: np.ndarray, digits: int = 2) -> str:
    """A ratio with its interval; where it is a bound, only that."""
    ratios = found.values / own
    if found.sides[0]:
        return f"{'>' if found.sides[0] > 0 else '<='} {ratios[0]:.{digits}f}"
    around, share = interval(ratios), (1 - LEVEL) / 2
    below, above = (bool((found.sides[1:] == side).mean() > share) for side in (-1, 1))
    return f"{ratios[0]:.{digits}f} [{'<=' * below}{around.low:.{digits}f}, {'>' * above}{around.high:.{digits}f}]"


def head(cells: list[str]) -> str:
    return f"{line(*cells)}\n{'|---' * len(cells)}|"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    study.run(main)
