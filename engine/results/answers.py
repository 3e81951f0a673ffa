"""What an evaluation answers at one length, by the questions that anybody asks: lost, saved, better, not tested."""

from __future__ import annotations

from routesparse.engine.export import numbers
from routesparse.engine.results import wording
from routesparse.engine.results.evaluations import OURS, Estimate, Evaluation, MethodRow
from routesparse.engine.results.tables import CONTROLS, is_oracle

MARGIN = 1.0  # points, or percent of perplexity: what a loss is held against


def ours(found: Evaluation, length: int) -> MethodRow | None:
    """RouteSparse's row: at its default price where that ran, else at the lowest."""
    rows = [row for row in found.at(length) if row.method == "routesparse" and row.change is not None]
    return min(rows, key=lambda row: (row.name != OURS, row.setting), default=None)


def answers(found: Evaluation, length: int) -> list[tuple[str, str]]:
    """Questions and answers, each with what it rests on."""
    row = ours(found, length)
    if row is None:
        return [("Is it better?", f"{found.suite} has no result of RouteSparse at {length:,} tokens.")]
    dense = next((one for one in found.at(length) if one.method == "dense"), None)
    return [
        (f"Is anything lost at {length:,} tokens?", _lost(found, row, dense)),
        ("What is saved?", _saved(found, row, dense)),
        ("Is it better than other methods?", _rivals(found, row, length)),
        ("What was not tested?", _untested(found, row, length)),
    ]


def _lost(found: Evaluation, row: MethodRow, dense: MethodRow | None) -> str:
    change = row.change
    assert change is not None
    held = (
        ""
        if dense is None or dense.score is None
        else f" where full (dense) attention has {wording.score(dense)}"
    )
    what = "a perplexity a word of" if found.is_perplexity else "a mean score of"
    tasks = "" if not row.tasks else f" of {numbers.several(len(row.tasks), 'task')}"
    clusters = "" if row.clusters in (None, row.n) else f" in {row.clusters} clusters"
    few = f", {wording.FEW} in some task" if row.few_clusters else ""
    spread = "" if change.low == change.high else f", 95 % interval {_between(found, change)}"
    verdict = _verdict(change, f"{MARGIN:g} {'%' if found.is_perplexity else 'point'}")
    if row.tasks and row.good_tasks == ():
        verdict = f"It can't be told here: dense attention itself reaches {wording.GOOD:g} in no task."
    return (
        f"{verdict} RouteSparse ({row.name}) has {what} "
        f"{wording.score(row)}{held}: {_told(found, change.value)}{spread}; "
        f"n = {row.n} prompts{tasks}{clusters}{few}."
    )


def _told(found: Evaluation, change: float) -> str:
    """A difference in words: points of 100, or the rise of perplexity."""
    if found.is_perplexity:
        return f"perplexity {wording.signed(-change)} %"
    return f"{wording.signed(change)} points of 100"


def _between(found: Evaluation, change: Estimate) -> str:
    low, high = (-change.high, -change.low) if found.is_perplexity else (change.low, change.high)
    return f"{wording.signed(low)} to {wording.signed(high)}"


def _verdict(change: Estimate, several: str) -> str:
    if change.low == change.high:
        return "None was seen, but so few prompts differ that there is no interval."
    if change.high < -MARGIN:
        return f"Yes, more than {several}."
    if change.high < 0:
        return f"Yes, but less than {several}." if change.low >= -MARGIN else "Yes."
    if change.low >= -MARGIN:
        return (
            f"Nothing is shown to be lost; the interval, which takes tasks without a difference as sure, ends above a "
            f"loss of {several}."
        )
    return f"Not resolved: a loss of more than {several} is not ruled out."


def _saved(found: Evaluation, row: MethodRow, dense: MethodRow | None) -> str:
    text = f"It reads {numbers.share(row.area)} of the attention that dense computes."
    if dense is None or not dense.prefill_ms or not row.prefill_ms:
        return f"{text} Times: not measured."
    if (found.processes or 1) > 1 and not found.timed_alone:
        return f"{text} Times were taken of several processes at once and compare nothing."
    return (
        f"{text} A prefill takes {numbers.millis(row.prefill_ms)} in place of {numbers.millis(dense.prefill_ms)} "
        f"({numbers.times(dense.prefill_ms / row.prefill_ms)}), medians on "
        f"{', '.join(found.devices) or 'a device that is not recorded'}."
    )


def rivals(found: Evaluation, length: int) -> list[tuple[str, float, Estimate]]:
    """Name, area and difference of other people's methods: neither ours, nor dense, a control or an oracle."""
    return [
        (row.name, row.area, row.change)
        for row in found.at(length)
        if row.change is not None
        and row.area is not None
        and row.method != "dense"
        and row.method not in CONTROLS
        and not row.method.startswith("routesparse")
        and not is_oracle(row)
    ]


def _rivals(found: Evaluation, row: MethodRow, length: int) -> str:
    others = rivals(found, length)
    if not others or row.area is None or row.change is None:
        return "Not measured: no other method ran at this length."
    if row.tasks and row.good_tasks == ():
        return "It can't be told here, for the same reason."
    names = ", ".join(dict.fromkeys(name.partition("=")[0] for name, _, _ in others))
    ran = f"{numbers.several(len(others), 'setting')} that ran ({names})"
    ahead = [name for name, area, change in others if area <= row.area and change.value >= row.change.value]
    if ahead:
        return f"By the estimates, not than {', '.join(ahead)}: no more is read and no more is lost there. Of {ran}."
    name, area, change = max(others, key=lambda one: one[2].value)
    spread = "" if change.low == change.high else f" [{_between(found, change)}]"
    return (
        f"By the estimates, no other method reads as little and loses as little, of {ran}. The one that loses least, "
        f"{name}, is at {_told(found, change.value)}{spread} and reads {numbers.share(area)}."
    )


def _untested(found: Evaluation, row: MethodRow, length: int) -> str:
    devices = ", ".join(found.devices) or "the device that it ran on"
    parts = [f"Any model but {found.model}, any device but {devices}, other kinds of prompts."]
    if row.tasks and row.good_tasks is not None and (weak := len(row.tasks) - len(row.good_tasks)):
        which = ", ".join(one.task for one in row.tasks if one.task not in row.good_tasks)
        parts.append(
            f"{numbers.several(weak, 'task')} ({which}): dense itself scores below 80, which says nothing."
        )
    return " ".join([*parts, wording.telling(found, length) or ""]).rstrip()
