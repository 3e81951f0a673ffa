"""The paper's three hypotheses as five tests. These rules are fixed before the run that they judge.

    H1         conditional choice scores higher than MInference with both budgets enlarged, at equal total time, on the
               mixed set, lengths pooled
    H2 domain  what conditional choice gains over the fixed budgets grows when prompts come from another domain than
    H2 length  the fixed budgets were searched on, from another length, or from both: a difference of differences,
    H2 both    each side at equal time on its own prompts
    H3         falling back scores higher than growing all budgets alike at equal time, in the mean and in the worst
               tenth of the changes of the gold answers' log-likelihood; both must hold

Estimates and intervals are those of ``paired.py``. Holm's correction runs over the five tests at 5 %. Supported: the
interval lies above 0 and the corrected p is at most .05; rejected: below 0, likewise; else not resolved. All three
verdicts are results. Scales that make times equal are chosen on calibration prompts and frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from routesparse.engine.stats.paired import (
    LEVEL,
    Arm,
    Draws,
    Interval,
    Values,
    Verdict,
    holm,
    interval,
    matched,
)

TESTS = ("H1", "H2 domain", "H2 length", "H2 both", "H3")
Statistic = Callable[[Values], np.ndarray]


@dataclass(frozen=True)
class Contrast:
    """One set of prompts: our arm, and a rival's one or two settings that bracket our time.

    as_it_is: one setting that stands whatever time it takes. raised: the two have changed places: ``ours`` is the
    rival, ``rivals`` are our settings that bracket its time.
    """

    draws: Draws
    ours: Arm
    rivals: Sequence[Arm]
    as_it_is: bool = False
    raised: bool = False

    def gain(self, statistic: Statistic | None = None) -> np.ndarray:
        """Ours less the rival's statistic at equal time, its mean score unless another one is given: [1 + B]."""
        found = matched(self.draws, self.ours, self.rivals, statistic, as_it_is=self.as_it_is)
        return -found if self.raised else found


@dataclass(frozen=True)
class Result:
    """A test's estimates (several where all of them must hold), its p after Holm's correction, and the verdict."""

    estimates: tuple[Interval, ...]
    p: float
    verdict: Verdict


def shift_gain(plain: Contrast, shifted: Contrast) -> np.ndarray:
    """The gain under a shift less the gain without: [1 + B]; the two sets of prompts are resampled apart."""
    return shifted.gain() - plain.gain()


def fallback_gains(scores: Contrast, likelihoods: Contrast) -> tuple[np.ndarray, np.ndarray]:
    """Fallback less uniform growth: the mean score, and the mean of the worst tenth of log-likelihood changes.

    likelihoods: the same prompts and times; values are the gold answer's log-likelihood less dense's, in nats.
    """
    return scores.gain(), likelihoods.gain(likelihoods.draws.worst_means)


def verdicts(tests: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Result]:
    """Every test's result. Of a test with several estimates the largest p counts, and all must point one way."""
    found = {name: tuple(interval(draws) for draws in parts) for name, parts in tests.items()}
    adjusted = holm({name: max(part.p for part in parts) for name, parts in found.items()})
    results = {}
    for name, parts in found.items():
        said = {part.verdict for part in parts}
        sure = adjusted[name] <= 1 - LEVEL and len(said) == 1
        results[name] = Result(parts, adjusted[name], said.pop() if sure else "not resolved")
    return results
