"""RULER's tasks (Hsieh et al. 2024, arXiv:2404.06654) by name, and how a sample gets the size of its length.

Every sample has its own generator keyed on (seed, task, length, index), so that it depends neither on its neighbours
nor on the tokenizer's speed of search.

    sample = fit_sample("niah_multikey_1", 4096, count_tokens=count, haystack=text, seed=0, index=3)
    prediction = model(sample.prompt + sample.answer_prefix)
    score = score_all(prediction, sample.gold)
"""

from __future__ import annotations

from collections.abc import Callable

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators.counting import make_fwe, make_vt
from routesparse.engine.lab.generators.needles import NIAH, make_niah
from routesparse.engine.lab.generators.samples import Sample, sample_rng

TASKS: tuple[str, ...] = (*NIAH, "vt", "fwe")
# Room for the answer that RULER reserves inside the target length, in tokens.
GENERATION_TOKENS: dict[str, int] = {**dict.fromkeys(NIAH, 128), "vt": 30, "fwe": 50}
# By the kind of haystack: a first guess of tokens a unit, and the least units.
_SIZES = {
    **{"noise": (25.0, 1), "essay": (0.27, 200), "needle": (30.0, 1)},
    **{"vt": (25.0, 1), "fwe": (4.0, 60)},
}
_LEAST_FILL = 0.95
_TRIES = 5


def make_sample(
    task: str, units: int, *, haystack: str = "", seed: int, length: int = 0, index: int = 0
) -> Sample:
    """One sample with a haystack of ``units``.

    units: characters (essay tasks), lines (noise, vt), needles (needle haystacks) or coded words (fwe). haystack: the
    text that essay tasks hide their answers in; the others ignore it.
    """
    rng = sample_rng(seed, task, length, index)
    if task == "vt":
        return make_vt(rng, units)
    if task == "fwe":
        return make_fwe(rng, units)
    if task not in NIAH:
        raise InputError(f"unknown task {task!r}; use one of {', '.join(TASKS)}")
    return make_niah(task, rng, units, haystack)


def fill(
    task: str,
    room: int,
    make: Callable[[int], Sample],
    count_tokens: Callable[[str], int],
    *,
    guess: float,
    least: int = 1,
    special_tokens: int = 1,
) -> Sample:
    """The fullest of a few samples of a generator that stays within ``room`` tokens.

    make: units -> sample. count_tokens: of a text, without special tokens. guess: tokens a unit. Errors: InputError
    where even ``least`` units do not fit.
    """
    # tokens = fixed + rate * units: the fixed part is measured on the first try.
    rate = guess
    units = max(int((room - 60) * 0.98 / rate), least)
    best: tuple[int, Sample] | None = None
    last: tuple[int, int] | None = None
    for _ in range(_TRIES):
        sample = make(units)
        used = count_tokens(sample.prompt + sample.answer_prefix) + special_tokens
        if used <= room and (best is None or units > best[0]):
            best = units, sample
        if _LEAST_FILL * room <= used <= room or (used > room and units <= least):
            break
        if last is not None and abs(units - last[0]) > 0.05 * units:
            rate = max((used - last[1]) / (units - last[0]), 0.3 * rate)
        last = units, used
        # Aim a little under the target, so that the next try fits.
        units = max(int(units + (room * 0.985 - used) / rate), least)
    if best is None:
        raise InputError(f"{task} does not fit {room} tokens; the smallest haystack takes more, raise length")
    return best[1]


def fit_sample(
    task: str,
    length: int,
    *,
    count_tokens: Callable[[str], int],
    haystack: str = "",
    seed: int,
    index: int = 0,
) -> Sample:
    """``make_sample`` sized so that prompt, answer prefix and the answer's room stay within ``length`` tokens."""
    kind = NIAH[task].haystack if task in NIAH else task
    guess, least = _SIZES.get(kind, (1.0, 1))
    return fill(
        kind,
        length - GENERATION_TOKENS.get(task, 0),
        lambda units: make_sample(task, units, haystack=haystack, seed=seed, length=length, index=index),
        count_tokens,
        guess=guess,
        least=least,
    )
