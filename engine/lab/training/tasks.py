"""RULER-like tasks: prompts with hidden needles, their gold answers, and the score.

After RULER (Hsieh et al. 2024, arXiv:2404.06654): needles in a haystack (single 1 to 3, multikey 1 to 3,
multivalue, multiquery), variable tracking (vt) and frequent words (fwe), on the same templates; besides, for training,
the questions about stories of stories.py. Pure Python; the haystack text is passed in. Every sample has its own
generator keyed on (seed, task, length, index), so a sample depends neither on its neighbours nor on the tokenizer's
speed of search.

    sample = fit_sample("niah_multikey_1", 4096, count_tokens=count, haystack=text, seed=0, index=3)
    prediction = model(sample.prompt + sample.answer_prefix)
    score = score_all(prediction, sample.gold)
"""

from __future__ import annotations

from collections.abc import Callable

from routesparse.engine.lab.training.niah import NIAH, make_niah
from routesparse.engine.lab.training.samples import Sample, Training, Turn, sample_rng, score_all
from routesparse.engine.lab.training.stories import FILLER, LEAST_CHAPTERS, STORY_TASKS, make_story
from routesparse.engine.lab.training.tracking import make_fwe, make_vt
from routesparse.engine.lab.training.words import WordSet

__all__ = [
    "GENERATION_TOKENS",
    "NIAH",
    "TASKS",
    "Sample",
    "Sizer",
    "Training",
    "Turn",
    "fit_sample",
    "make_sample",
    "score_all",
]

TASKS: tuple[str, ...] = (*NIAH, "vt", "fwe")
# Room for the answer that RULER reserves inside the target length, in tokens.
GENERATION_TOKENS: dict[str, int] = {**dict.fromkeys(NIAH, 128), "vt": 30, "fwe": 50}


def make_sample(
    task: str,
    units: int,
    *,
    haystack: str = "",
    seed: int,
    length: int = 0,
    index: int = 0,
    words: WordSet = "eval",
    training: Training | None = None,
) -> Sample:
    """One sample with a haystack of `units`.

    units: characters (essay tasks), lines (noise, vt), needles (needle haystacks), coded words (fwe) or chapters
    (stories). haystack: the text that essay tasks and stories hide their answers in; the others ignore it.
    """
    t = training or Training()
    rng = sample_rng(seed, task, length, index)
    if task in NIAH:
        context, turns, spans, counts = make_niah(task, rng, units, haystack, words, t)
    elif task == "vt":
        context, turns, spans, counts = make_vt(rng, units, t)
    elif task == "fwe":
        context, turns, spans, counts = make_fwe(rng, units)
    elif task in STORY_TASKS:
        context, turns, spans, counts = make_story(
            task, rng, units, haystack, words, t.questions, t.filler or FILLER, t.invented_share
        )
    else:
        raise ValueError(f"unknown task {task!r}; use one of {', '.join((*TASKS, *STORY_TASKS))}")
    sizes: dict[str, int | str] = {"seed": seed, "length": length, "index": index, "units": units}
    metadata = {**sizes, "words": words, **counts}
    return Sample(task, context, turns[0], tuple(spans), tuple(turns[1:]), metadata)


# A first guess of tokens a unit, refined by the first measured sample of each task.
_FIRST_GUESS = {"noise": 25.0, "essay": 0.27, "needle": 30.0, "vt": 25.0, "fwe": 4.0}
_LEAST_UNITS = {"essay": 200, "fwe": 60}


class Sizer:
    """Finds the haystack size that fills a target length, and remembers tokens a unit by task.

    count_tokens: text -> number of tokens, without special tokens; `special_tokens` are added to it.
    """

    def __init__(self, count_tokens: Callable[[str], int], special_tokens: int = 1, least_fill: float = 0.95):
        self.count_tokens = count_tokens
        self.special_tokens = special_tokens
        self.least_fill = least_fill
        self._rate: dict[str, float] = {}

    def tokens(self, sample: Sample) -> int:
        """Tokens of prompt, answer prefix and every further question with its answer."""
        text = sample.prompt + sample.answer_prefix
        if sample.more:
            text += sample.answer + "".join(t.question + t.answer_prefix + t.answer for t in sample.more)
        return self.count_tokens(text) + self.special_tokens

    def fit(
        self,
        task: str,
        length: int,
        *,
        haystack: str = "",
        seed: int,
        index: int = 0,
        words: WordSet = "eval",
        training: Training | None = None,
        reserve: int | None = None,
        tries: int = 5,
    ) -> Sample:
        """The fullest sample found whose tokens plus the room for the answer stay within `length`.

        reserve: tokens kept free for the answer, RULER's number for the task when None.
        Raises ValueError when even the smallest haystack does not fit.
        """
        kind = NIAH[task].haystack if task in NIAH else task
        guess, least = _FIRST_GUESS.get(kind, 0.0), _LEAST_UNITS.get(kind, 1)
        if task in STORY_TASKS:
            filler = (training or Training()).filler or FILLER
            # The rate is one filler's: three characters a token, and the chapter's own sentences.
            kind, guess, least = f"story of {filler}", filler / 3 + 40, LEAST_CHAPTERS
        room = length - (GENERATION_TOKENS.get(task, 0) if reserve is None else reserve)

        def make(units: int) -> Sample:
            return make_sample(
                task,
                units,
                haystack=haystack,
                seed=seed,
                length=length,
                index=index,
                words=words,
                training=training,
            )

        return self.fill(kind, room, make, guess=guess, least=least, tries=tries)

    def fill(
        self,
        kind: str,
        room: int,
        make: Callable[[int], Sample],
        *,
        guess: float,
        least: int = 1,
        tries: int = 5,
    ) -> Sample:
        """The fullest of up to `tries` samples of any generator that stays within `room` tokens.

        make: units -> sample, whose metadata names its units. kind: samples of one kind share the tokens a unit, of
        which `guess` is the first. Raises ValueError when even `least` units do not fit.
        """
        # tokens = fixed + rate * units: the rate is remembered, the fixed part is measured on the first try.
        rate = self._rate.get(kind, guess)
        units = max(int((room - 60) * 0.98 / rate), least)
        best: Sample | None = None
        last: tuple[int, int] | None = None
        for _ in range(tries):
            sample = make(units)
            used = self.tokens(sample)
            if used <= room and (best is None or units > int(best.metadata["units"])):
                best = sample
            if (used <= room and used >= self.least_fill * room) or (used > room and units <= least):
                break
            if last is not None and abs(units - last[0]) > 0.05 * units:
                rate = self._rate[kind] = max((used - last[1]) / (units - last[0]), 0.3 * rate)
            last = (units, used)
            # Aim a little under the target, so that the next try fits.
            units = max(int(units + (room * 0.985 - used) / rate), least)
        if best is None:
            raise ValueError(
                f"{kind} does not fit {room} tokens; the smallest haystack takes more, raise length"
            )
        return best


def fit_sample(
    task: str,
    length: int,
    *,
    count_tokens: Callable[[str], int],
    haystack: str = "",
    seed: int,
    index: int = 0,
    words: WordSet = "eval",
    training: Training | None = None,
) -> Sample:
    """`make_sample` sized so that prompt, answer prefix and the answer's room stay within `length` tokens."""
    sizer = Sizer(count_tokens)
    return sizer.fit(task, length, haystack=haystack, seed=seed, index=index, words=words, training=training)
