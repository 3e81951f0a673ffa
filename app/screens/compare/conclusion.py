"""What a comparison comes to, in a sentence for each side: routing, what is read, the next token, verdict and time.

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

ALIKE = 0.005  # a smaller relative difference of what is read is called none
_SAME = (
    *(
        "prompt_sha256",
        "model_revision",
        "device",
        "dtype",
        "git_commit",
        "policy",
        "price",
        "tau",
        "tau_layer",
    ),
    *("gate_threshold", "budget", "calibration", "probe_mode", "segments", "routed"),
)


def sentence(sides: Sides, other: Side, verdicts: Mapping[str, Verdict]) -> str:
    """One side against the baseline, to stand behind the side's name. verdicts: of stored runs, by run id.

    It calls the two "it", or "this run", and "the baseline": a name that lists settings would fill a line each time.
    """
    base = sides.baseline
    if not sides.same_prompt(other):
        return (
            f"its prompt is not the baseline’s. It keeps {_kept_words(other)}, the baseline {_kept_words(base)}; the "
            "prompt may be the reason as much as a setting, so no ratio is given."
        )
    pairs = comparison.pair(base.choices, other.choices)
    if pairs.empty:
        return "it and the baseline have no unit that was routed in both."
    if not sides.same_segments(other):
        told = f"it {_reads(base, other)}; the segments differ, so units can’t be paired"
        return f"{told}. {_answer(base, other)}.{_verdict(base, other, verdicts)}"
    changed = int(pairs["changed"].sum())
    units = numbers.several(len(pairs), "unit")
    if changed == 0:
        told = f"same routing, all {units} choose the same candidate as in the baseline{_only(base, other)}"
    else:
        told = f"it {_reads(base, other)}; {changed:,} of {units} choose another candidate"
    if sides.replayed:
        return f"{told}. Nothing was run, so what this does to the answer is not known."
    return f"{told}. {_answer(base, other)}.{_verdict(base, other, verdicts)}"


def kept(side: Side) -> float | None:
    """The kept share of a run as every page means it; of a replay, which has no tail, the mean over unit bodies."""
    if side.calibration is None:
        return side.run.density
    return float(side.choices["density"].mean()) if len(side.choices) else None


def repeats(stored: pd.DataFrame, run: RunRow) -> np.ndarray:
    """Prefill milliseconds of all stored runs like this one, itself included. stored: rows of queries.runs."""
    same = pd.Series(True, stored.index)
    for name in _SAME:
        value = getattr(run, name)
        same &= stored[name].isna() if numbers.is_missing(value) else stored[name] == value
    return stored.loc[same, "total_ms"].to_numpy(float)


def time_against(stored: pd.DataFrame, base: RunRow, other: RunRow) -> str:
    """A run's prefill against the baseline's, in words. stored: rows of queries.runs, these two among them.

    Two runs with the same settings would share their repeats: what lies between them is the noise itself.
    """
    if all(_same(getattr(base, name), getattr(other, name)) for name in _SAME):
        times = repeats(stored, base)
        told = _signed(other.total_ms - base.total_ms)
        return f"{told}; same settings: this is noise, {numbers.millis(np.ptp(times))} over {len(times)} runs"
    return time_words(repeats(stored, base), repeats(stored, other))


def time_words(base: np.ndarray, other: np.ndarray) -> str:
    """Prefill against the baseline's, with what is known of the noise. base, other: milliseconds of repeats."""
    difference = float(np.median(other) - np.median(base))
    told = _signed(difference)
    if max(len(base), len(other)) < 2:
        return f"{told}; one run, noise not measured"
    if len(other) < 2:
        several = f"the median of {len(base)} runs with the baseline’s settings"
        return f"{told} against {several}; this side ran once, noise not measured"
    if len(base) < 2:
        several = f"median of {len(other)} runs with these settings"
        return f"{several}: {told}; the baseline ran once, noise not measured"
    noise = float(max(np.ptp(base), np.ptp(other)))
    told = f"medians of {len(other)} and {len(base)} runs: {told}"
    noise_words = f"the noise of {numbers.millis(noise)}"
    if abs(difference) <= noise:
        return f"{told}, within {noise_words}"
    faster = numbers.times(float(np.median(base) / np.median(other)))
    return f"{told}, {faster} as fast; beyond {noise_words}"


def _same(one: object, other: object) -> bool:
    return one == other or (numbers.is_missing(one) and numbers.is_missing(other))


def _signed(difference_ms: float) -> str:
    return f"{'+' if difference_ms >= 0 else '−'}{numbers.millis(abs(difference_ms))}"


def _kept_words(side: Side) -> str:
    return f"{numbers.share(kept(side))} of the causal area"


def _reads(base: Side, other: Side) -> str:
    before, after = kept(base), kept(other)
    would = "would read" if other.calibration is not None else "reads"
    if before is None or after is None or not before:
        return f"{would} another part than the baseline"
    relative = after / before - 1
    if abs(relative) < ALIKE:
        return f"{would} as much as the baseline"
    return f"{would} {100 * abs(relative):.0f} % {'less' if relative < 0 else 'more'} than the baseline"


def _only(base: Side, other: Side) -> str:
    """Which settings differ where the routing does not; of calibrations what the router takes from them."""
    one, two = base.calibration, other.calibration
    if one is not None and two is not None:
        deltas = [found.delta(base.run.tokens, base.run.confidence) for found in (one, two)]
        if (one.gate_threshold, one.alpha, one.stamp) == (two.gate_threshold, two.alpha, two.stamp):
            if not np.isfinite(deltas).all():
                return "; one of them has no δ for this length"
            shown = " and ".join(f"{delta:.4f}" for delta in deltas)
            return f"; only δ differs, by {abs(deltas[0] - deltas[1]):.4f} ({shown})"
    table = comparison.settings_table({side.key: side.settings for side in (base, other)})
    names = [str(name).replace("_", " ") for name in table.loc[~table["equal"], "setting"]]
    if not names:
        return ", with the same settings"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"; what differs: {', '.join(names[:3])}{more}"


def _answer(base: Side, other: Side) -> str:
    """The next token against dense's, and how far the odds moved."""
    agreed = [("the baseline", base.run.top1_agreement), ("this run", other.run.top1_agreement)]
    known = [(name, found) for name, found in agreed if found is not None]
    if not known:
        return "The next token was not compared with dense’s"
    right = [name for name, found in known if found == 1]
    if len(known) < 2:
        found = "dense’s" if right else "another one"
        told = f"The next token was compared with dense’s in {known[0][0]} alone, where it is {found}"
    elif len(right) == 2:
        told = "The next token is dense’s in both"
    elif right:
        told = f"The next token is dense’s in {right[0]} alone"
    else:
        told = "The next token is dense’s in neither"
    before, after = base.run.kl_nats, other.run.kl_nats
    if before is None or after is None:
        return told
    shown = f"{numbers.small(before)} nats in the baseline and {numbers.small(after)} in this run"
    return f"{told}, at a KL of {shown}"


def _verdict(base: Side, other: Side, verdicts: Mapping[str, Verdict]) -> str:
    """Where a verdict is worse, or both are red: a run that is bad never looks fine."""
    one, two = verdicts.get(base.run.run_id), verdicts.get(other.run.run_id)
    if one is None or two is None:
        return ""
    if one.level == two.level:
        return " Both verdicts are red." if one.level == "red" else ""
    this = LEVELS.index(two.level) < LEVELS.index(one.level)
    worse, name = (two, "This run") if this else (one, "The baseline")
    return f" {name} has the worse verdict, {worse.level}: {worse.sentence}."
