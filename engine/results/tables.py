"""The tables of evaluations: plain cells, for HTML and Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from routesparse.engine.export import numbers
from routesparse.engine.results import wording
from routesparse.engine.results.evaluations import Evaluation, MethodRow
from routesparse.engine.stats.front import front


@dataclass(frozen=True)
class Table:
    """caption: what every number of it needs; left: columns of words, besides the first."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)


_SHOWN_LOSS = 15.0  # points or percent: what loses more would flatten a chart, and is named beside it
CONTROLS = {
    "window": "keys near the query alone: must lose",
    "random_blocks": "as many blocks as asked for, by chance: must lose",
    "dense_kernel": "our kernel on all blocks: its interval must hold 0; its worst tenth is the noise floor",
}


def main_table(found: Evaluation) -> Table:
    """Methods by length; the caption says once what is alike of all times."""
    rows: list[tuple[str, ...]] = []
    told = {wording.all_timed_elsewhere(found.at(length)) for length in found.lengths}
    alike = told.pop() if len(told) == 1 else ""
    answers = not found.is_perplexity  # a book has none that could be lost
    for length in found.lengths:
        known = found.at(length)
        ours = next((row for row in known if row.method == "routesparse"), None)
        for row, best in zip(known, on_front(known), strict=True):
            dense = row.method == "dense"
            rows.append(
                (
                    f"{length:,}",
                    row.name + wording.predicted_elsewhere(row, ours),
                    wording.prompts(row),
                    wording.score(row),
                    "reference" if dense else wording.change(row),
                    *(_lost(row) if answers else ()),
                    numbers.share(row.area),
                    "cannot be run" if is_oracle(row) else "on it" if best else "beaten",
                    numbers.millis(row.attention_ms),
                    "none" if dense else numbers.millis(row.select_ms),
                    numbers.millis(row.prefill_ms) + ("" if alike else wording.timed_elsewhere(row, ours)),
                    *((wording.good_tasks(row),) if answers else ()),
                )
            )
    heads = (
        *("tokens", "method", "n", "score" if answers else "word perplexity"),
        f"against dense, {wording.unit(found)}",
        *(("worst tenth, nats", "harmed") if answers else ()),
        *("area", "front", "attention", "deciding", "prefill"),
        *(("dense reaches 80",) if answers else ()),
    )
    return Table(f"{found.suite}. {found.source}{alike}", heads, tuple(rows), (0, 1))


def _lost(row: MethodRow) -> tuple[str, str]:
    """Of a method's answers: the worst tenth's likelihood, and how many score lower than dense's."""
    if row.method == "dense":
        return "reference", "reference"
    return wording.interval(row.worst_decile, row.few_clusters, 3), wording.harmed(row)


def task_table(found: Evaluation, length: int) -> Table:
    """Methods by task at one length: dense's score, then each method's difference, marked where it is sure."""
    rows = found.at(length)
    tasks = list(dict.fromkeys(one.task for row in rows for one in row.tasks))
    cells = []
    for row in rows:
        by_name = {one.task: one for one in row.tasks}
        cell = wording.task_score if row.method == "dense" else wording.short_change
        cells.append(
            (row.name, *(cell(by_name[task]) if task in by_name else numbers.NOT_MEASURED for task in tasks))
        )
    told = f"dense's score, then points against it. {wording.MARKED}"
    caption = f"{found.suite} at {length:,} tokens: {told} {found.source}"
    return Table(caption, ("method", *tasks), tuple(cells))


def task_intervals(found: Evaluation, row: MethodRow) -> Table:
    """One method's tasks, with all that is known of each."""
    cells = [
        (
            one.task,
            f"{one.n}",
            f"{one.dense:.1f}",
            f"{one.score:.1f}",
            wording.interval(one.difference, one.few_clusters)
            if one.difference.low < one.difference.high
            else wording.signed(one.difference.value),
            f"{one.harmed}",
        )
        for one in row.tasks
    ]
    caption = f"{row.name}, {found.suite} at {row.length:,} tokens. {found.source}"
    return Table(caption, ("task", "n", "dense", "score", "against dense, points", "harmed"), tuple(cells))


def is_oracle(row: MethodRow) -> bool:
    """Whether a method knows the attention that others have to guess: nobody could run it."""
    return row.method.startswith("oracle")


def on_front(rows: Sequence[MethodRow]) -> list[bool]:
    """Which rows no other one beats in area and in what is lost, by their estimates; oracles neither beat nor count."""
    nan = float("nan")
    areas = [nan if row.area is None or is_oracle(row) else row.area for row in rows]
    losses = [nan if row.change is None else -row.change.value for row in rows]
    return [bool(one) for one in front(areas, losses)]


def loss_ends(rows: Sequence[MethodRow]) -> tuple[float, float]:
    """Of a chart of differences: every interval but those of the controls and of what loses far more than others."""
    known = [row for row in rows if row.change is not None]
    shown = [row for row in known if row.method not in CONTROLS and not _hopeless(row)] or known
    changes = [row.change for row in shown if row.change is not None]
    low, high = min(-1.0, *(one.low for one in changes)), max(1.0, *(one.high for one in changes))
    # A control that has its place there, be it at the edge, has its whole interval there, too.
    while True:
        pad = 0.06 * (high - low)
        ends = low - pad, high + pad
        placed = [row.change for row in known if row.change and ends[0] <= row.change.value <= ends[1]]
        wider = min(low, *(one.low for one in placed)), max(high, *(one.high for one in placed))
        if wider == (low, high):
            return ends
        low, high = wider


def _hopeless(row: MethodRow) -> bool:
    return row.change is not None and row.change.value < -_SHOWN_LOSS


def beyond(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """What loses more than ``loss_ends``."""
    low, _ = loss_ends(rows)
    return [row for row in rows if row.change is not None and row.change.value < low]


def control_table(found: Evaluation) -> Table:
    """Negative controls: what must lose, and what must not, and whether it does."""
    cells = []
    for length in found.lengths:
        rows = found.at(length)
        for method, told in CONTROLS.items():
            mine = [row for row in rows if row.method == method and row.change is not None]
            cells += [(f"{length:,}", row.name, told, numbers.share(row.area), *_kept(row)) for row in mine]
            if not mine:
                cells.append((f"{length:,}", method, told, "–", "–", "not run"))
    heads = ("tokens", "control", "what it is", "area", "against dense", "as it must?")
    return Table(f"{found.suite}. {found.source}", heads, tuple(cells), (0, 1, 2, 5))


def _kept(row: MethodRow) -> tuple[str, str]:
    """The difference, and whether the control does what it must."""
    change = row.change
    assert change is not None
    shown = wording.change(row)
    if row.method == "dense_kernel":
        return shown, "yes" if change.low <= 0 <= change.high else "NO: it differs from dense"
    if change.high < 0:
        return shown, "yes"
    return shown, "NO: these tasks do not tell it from dense" if change.value >= 0 else "not resolved"
