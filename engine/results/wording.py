"""Numbers of evaluations in words, the same on the page, in the report and in the Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from routesparse.engine.export import numbers
from routesparse.engine.results.evaluations import Estimate, Evaluation, MethodRow, TaskRow

FEW = "few clusters"
SUITES = {
    "ruler": "RULER's tasks, facts hidden in long texts that must be found, followed, counted or read about",
    "stories": "generated stories with questions of one and several steps",
    "pg19": "books, whose next words are predicted",
    "infinitebench": "InfiniteBench's tasks on prompts of a hundred thousand tokens and more",
    "longbench": "LongBench's tasks on documents",
}
LOSING = ("window", "random_blocks")
_HOW = (
    "Against dense: mean over tasks of the paired difference on the same prompts, with its 95 % bootstrap interval "
    "over clusters; where fewer than 10 prompts differ, how many do, and Newcombe's interval if scores are 0 or 1. "
    "Where n is smaller than dense's, the score is of fewer prompts, and the difference alone compares. "
    "(at ...): predicted by that commit's code, ours by another one's. "
)
_HOW_ANSWERS = (
    "Worst tenth: mean change of the gold answer's log-likelihood over the tenth of the prompts that lose most. "
    "Harmed: prompts that score lower than dense; even where none of n prompts lost, up to 3/n of all may. "
)


GOOD = 80.0  # of dense, from which on a task says something about sparse attention
MARKED = "* its 95 % interval does not hold 0. † dense is below 80: says nothing about sparse attention."


def interval(found: Estimate | None, few: bool = False, digits: int = 1) -> str:
    """ "−1.2 [−3.0, +0.5]"; marked where few clusters stand behind it."""
    if found is None:
        return numbers.NOT_MEASURED
    value, low, high = (signed(part, digits) for part in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]{f' ({FEW})' if few else ''}"


def change(row: MethodRow) -> str:
    """The difference to dense with its interval; where hardly any prompt differs, a bootstrap would look too sure."""
    if row.change is None or not row.few_discordant or row.harmed is None or row.gained is None:
        return interval(row.change, row.few_clusters)
    shown = f"{signed(row.change.value)}, {row.harmed} harmed, {row.gained} gained"
    if row.change.low < row.change.high:
        shown += f" [{signed(row.change.low)}, {signed(row.change.high)}]"
    return shown + (f" ({FEW})" if row.few_clusters else "")


def short_change(row: TaskRow) -> str:
    """A task's difference for a narrow cell; see MARKED."""
    sure = not row.few_clusters and not row.difference.low <= 0 <= row.difference.high
    return signed(row.difference.value) + ("*" if sure else "")


def task_score(row: TaskRow) -> str:
    """Dense's score of a task; see MARKED."""
    return f"{row.dense:.1f}" + ("†" if row.dense < GOOD else "")


def harmed(row: MethodRow) -> str:
    """The share of harmed prompts."""
    return numbers.share(None if row.harmed is None else row.harmed / row.n)


def signed(value: float, digits: int = 1) -> str:
    """With its sign; what rounds to nothing has none."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return f"{0:.{digits}f}" if float(f"{value:.{digits}f}") == 0 else text


def score(row: MethodRow) -> str:
    """Points, or the word perplexity."""
    if row.score is None:
        return numbers.NOT_MEASURED
    return f"{row.score:.3f}" if row.ratio is not None else f"{row.score:.1f}"


def good_tasks(row: MethodRow) -> str:
    """In how many tasks dense reaches 80: the others say nothing about sparse attention."""
    if row.good_tasks is None or not row.tasks:
        return numbers.NOT_MEASURED
    return f"{len(row.good_tasks)} of {len(row.tasks)}"


def predicted_elsewhere(row: MethodRow, ours: MethodRow | None) -> str:
    """Which commits' code predicted, where it is none of those that predicted our row beside it."""
    if ours is None or not row.predicted_by or set(row.predicted_by) & set(ours.predicted_by):
        return ""
    return f" (at {', '.join(commit[:7] for commit in row.predicted_by)})"


def timed_elsewhere(row: MethodRow, ours: MethodRow | None = None) -> str:
    """Which commits' code was timed, where it is not what predicted, or none of those that our row was timed at."""
    if row.prefill_ms is None or not row.timed_by:
        return ""
    beside = ours is None or not ours.timed_by or set(ours.timed_by) & set(row.timed_by)
    if row.timed_by == row.predicted_by and beside:
        return ""
    return f" (timed at {', '.join(commit[:7] for commit in row.timed_by)})"


def how(found: Evaluation) -> str:
    """How to read the main table."""
    answers = "" if found.is_perplexity else _HOW_ANSWERS
    return (
        f"{_HOW}{answers}Area: share of the causal area read. Front: no other method reads and loses less, by the "
        "estimates alone. Times are medians."
    )


def all_timed_elsewhere(rows: Sequence[MethodRow]) -> str:
    """Which commits' code all rows were timed at, where each would say the same; "" elsewhere."""
    ours = next((row for row in rows if row.method == "routesparse"), None)
    told = {timed_elsewhere(row, ours) for row in rows if row.prefill_ms is not None}
    text = next(iter(told), "") if len(told) == 1 else ""
    return f"; all prefills {text.strip(' ()')}" if text else ""


def unit(found: Evaluation) -> str:
    """Of a difference to dense, with what its sign means where that is not plain."""
    return "% less perplexity; below 0 is worse" if found.is_perplexity else "points"


def prompts(row: MethodRow) -> str:
    """n, and how many independent clusters it is."""
    return f"{row.n}" if row.clusters in (None, row.n) else f"{row.n} in {row.clusters}"


def about(found: Evaluation) -> str:
    """What the suite asks, where it is one of ours."""
    told = SUITES.get(found.suite)
    if told and found.suite == "pg19" and "validation" in (found.command or ""):
        told += "; on those of the split validation constants such as the default price were chosen"
    return f"{found.suite}: {told}." if told else f"{found.suite}:"


def telling(found: Evaluation, length: int) -> str | None:
    """In how many tasks a control surely loses; None where no control ran. The others prove nothing."""
    rows = [row for row in found.at(length) if row.method in LOSING and row.tasks]
    if not rows:
        return None
    dense = next((row for row in found.at(length) if row.method == "dense"), None)
    if dense is not None and dense.good_tasks == ():
        return "Dense reaches 80 in no task: this says nothing about sparse attention."
    tasks = {one.task for row in rows for one in row.tasks}
    lost = sorted({one.task for row in rows for one in row.tasks if one.difference.high < 0})
    if len(lost) == len(tasks):
        return f"Controls that must lose do so in all {len(tasks)} tasks."
    named = f" ({', '.join(lost)})" if lost else ""
    return (
        f"Controls that must lose do so in {len(lost)} of {len(tasks)} tasks{named}; the others do not tell sparse "
        "from dense attention (every plan's last rows and decoding are dense, which can look a lone needle up)."
    )
