"""What a comparison comes to, in a sentence for each side: what is read, what is lost, its shape, verdict and time.

Ratios stand only between runs of one prompt. A time differs from run to run: its ratio needs repeats of both sides
(stored runs of the same prompt with the same settings on the same device) and a difference beyond their spread.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from routesparse.app.screens.compare.selection import Side, Sides
from routesparse.app.ui import numbers
from routesparse.engine.rows import RunRow
from routesparse.engine.stats import comparison
from routesparse.engine.verdict import LEVELS, Verdict

_SAME = (
    "prompt_sha256 model_revision device dtype git_commit policy price tau tau_layer gate_threshold "
    "budget calibration probe_mode segments routed"
)


def sentence(sides: Sides, other: Side, verdicts: Mapping[str, Verdict]) -> str:
    """One side against the baseline, to stand behind the side's name. verdicts: of stored runs, by run id.

    It calls the two "it", or "this run", and "the baseline": a name that lists settings would fill a line each time.
    """
    base = sides.baseline
    judged = _verdict(verdicts.get(base.run.run_id), verdicts.get(other.run.run_id))
    if not sides.same_prompt(other):
        return (
            f"it keeps {_kept(other)} of the causal area, the baseline {_kept(base)}. {_lost(base.run, other.run)}. "
            f"Its prompt is not the baseline’s and may be the reason, so no ratio is given.{judged}"
        )
    pairs = comparison.pair(base.choices, other.choices)
    if pairs.empty:
        return "it and the baseline have no unit that was routed in both."
    read = f"it {_reads(base, other)}"
    if not sides.same_segments(other):
        shape = "Its segments differ, so units can’t be paired."
    elif pairs["changed"].any():
        shape = _shape(pairs)
    else:
        units = numbers.several(len(pairs), "unit")
        read = f"same routing, all {units} read as in the baseline{_only(base, other)}"
        shape = ""
    return f"{read}. {_lost(base.run, other.run)}. {shape}".rstrip() + judged


def repeats(stored: pd.DataFrame, run: RunRow) -> np.ndarray:
    """Prefill milliseconds of all stored runs like this one, itself included. stored: rows of queries.runs."""
    same = pd.Series(True, stored.index)
    for name in _SAME.split():
        value = getattr(run, name)
        same &= stored[name].isna() if numbers.is_missing(value) else stored[name] == value
    return stored.loc[same, "total_ms"].to_numpy(float)


def time_against(stored: pd.DataFrame, base: RunRow, other: RunRow) -> str:
    """A run's prefill against the baseline's, in words. stored: rows of queries.runs, these two among them.

    Two runs with the same settings would share their repeats: what lies between them is the noise itself.
    """
    if all(_same(getattr(base, name), getattr(other, name)) for name in _SAME.split()):
        times = repeats(stored, base)
        told = _signed(other.total_ms - base.total_ms)
        return f"{told}; same settings: this is noise, {numbers.millis(np.ptp(times))} over {len(times)} runs"
    return time_words(repeats(stored, base), repeats(stored, other))


def time_words(base: np.ndarray, other: np.ndarray) -> str:
    """Prefill against the baseline's, with what is known of the noise. base, other: milliseconds of repeats."""
    difference = float(np.median(other) - np.median(base))
    told = _signed(difference)
    if len(base) < 2 and len(other) < 2:
        return f"{told}; one run, noise not measured"
    if min(len(base), len(other)) < 2:
        once = "this side" if len(other) < 2 else "the baseline"
        return f"{told}, medians of {len(other)} and {len(base)} runs; {once} ran once, noise not measured"
    noise = float(max(np.ptp(base), np.ptp(other)))
    told = f"medians of {len(other)} and {len(base)} runs: {told}"
    if abs(difference) <= noise:
        return f"{told}, within the noise of {numbers.millis(noise)}"
    faster = numbers.times(float(np.median(base) / np.median(other)))
    return f"{told}, {faster} as fast; beyond the noise of {numbers.millis(noise)}"


def _same(one: object, other: object) -> bool:
    return one == other or (numbers.is_missing(one) and numbers.is_missing(other))


def _signed(difference_ms: float) -> str:
    return f"{'+' if difference_ms >= 0 else '−'}{numbers.millis(abs(difference_ms))}"


def _kept(side: Side) -> str:
    return numbers.share(side.run.density)


def _reads(base: Side, other: Side) -> str:
    before, after = base.run.density, other.run.density
    if not before or after is None:
        return f"reads {_kept(other)} of the causal area, the baseline {_kept(base)}"
    relative = after / before - 1
    if abs(relative) < comparison.ALIKE:
        return f"reads as much as the baseline, {_kept(other)} of the causal area"
    more = f"{100 * abs(relative):.0f} % {'less' if relative < 0 else 'more'}"
    return f"reads {more} than the baseline, {_kept(other)} of the causal area and not {_kept(base)}"


def _shape(pairs: pd.DataFrame) -> str:
    """How units read otherwise. A budget's name says nothing: it may be longer in another version."""
    family = int((pairs["pattern_a"] != pairs["pattern_b"]).sum())
    amount = int(pairs["changed"].sum()) - family
    of = numbers.several(len(pairs), "unit")
    parts = [f"{family:,} read by another family"] if family else []
    parts += [f"{amount:,} more or less by the same one"] if amount else []
    return f"Of {of} {' and '.join(parts)}."


def _only(base: Side, other: Side) -> str:
    """Which settings differ where the routing does not."""
    table = comparison.settings_table({side.key: side.settings for side in (base, other)})
    names = [str(name).replace("_", " ") for name in table.loc[~table["equal"], "setting"]]
    if not names:
        return ", with the same settings"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"; what differs: {', '.join(names[:3])}{more}"


def _lost(base: RunRow, other: RunRow) -> str:
    """The next token against dense's, the predicted loss, how far the odds moved, and the error of what was audited."""
    names = {"the baseline": base.top1_agreement, "this run": other.top1_agreement}
    known = {name: found == 1 for name, found in names.items() if found is not None}
    right = [name for name, agreed in known.items() if agreed]
    if not known:
        told = "The next token was not compared with dense’s"
    elif len(known) == 1:
        (name,) = known
        found = "dense’s" if right else "another"
        told = f"The next token was compared with dense’s in {name} alone, where it is {found}"
    else:
        told = f"The next token is dense’s in {('neither', f'{right[0]} alone' if right else '', 'both')[len(right)]}"
    for what, one, two in (
        ("a predicted loss", base.loss_nats, other.loss_nats),
        ("a KL", base.kl_nats, other.kl_nats),
        ("a mean output error", base.mean_error, other.mean_error),
    ):
        if one is not None and two is not None:
            unit = "" if what == "a mean output error" else " nats"
            told += f", at {what} of {numbers.small(two)}{unit} (baseline {numbers.small(one)})"
    return told


def _verdict(one: Verdict | None, two: Verdict | None) -> str:
    """Where a verdict is worse, or both are red: a run that is bad never looks fine. one: of the baseline."""
    if one is None or two is None:
        return ""
    if one.level == two.level:
        return " Both verdicts are red." if one.level == "red" else ""
    this = LEVELS.index(two.level) < LEVELS.index(one.level)
    worse, name = (two, "This run") if this else (one, "The baseline")
    return f" {name} has the worse verdict, {worse.level}: {worse.sentence}."
