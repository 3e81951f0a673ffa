"""What a task generator makes: questions, samples, options; the sample's own random stream; the score."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass(frozen=True)
class Turn:
    """A question with its unfinished answer, the strings that must appear, and a full reference answer."""

    question: str
    answer_prefix: str
    gold: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Sample:
    """One prompt. The model reads `prompt + answer_prefix`; `answer` is a reference completion, `gold` is scored.

    needle_spans: (start, end) characters of the asked needles in `prompt`, in order of appearance.
    more: further questions on the same context (training only), asked after the first answer.
    metadata: seed, length (target tokens, 0 when not sized), index, units, and the task's own counts.
    """

    task: str
    context: str
    first: Turn
    needle_spans: tuple[tuple[int, int], ...]
    more: tuple[Turn, ...] = ()
    metadata: dict[str, int | str] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """Context and question, without the beginning of the answer."""
        return self.context + self.first.question

    @property
    def answer_prefix(self) -> str:
        """How the answer begins; the model reads it behind the prompt."""
        return self.first.answer_prefix

    @property
    def gold(self) -> tuple[str, ...]:
        """The strings that an answer must have."""
        return self.first.gold

    @property
    def answer(self) -> str:
        """A full reference answer."""
        return self.first.answer


@dataclass(frozen=True)
class Training:
    """Options that only training uses: more needles, more questions a context, made-up keys, other counts.

    questions: how many questions one context is asked; needles: hidden keys (0 keeps the task's own);
    values: values a key (0 keeps); queries: keys a question (0 keeps); chains, hops: of vt (0 keeps);
    filler: characters of prose in a chapter of a story (0 keeps).
    """

    questions: int = 1
    needles: int = 0
    values: int = 0
    queries: int = 0
    chains: int = 0
    hops: int = 0
    invented_share: float = 0.0
    filler: int = 0


# What a builder returns: context, questions, character spans of the asked needles, counts for the metadata.
Built = tuple[str, list[Turn], list[tuple[int, int]], dict[str, int]]


def sample_rng(seed: int, task: str, length: int, index: int) -> random.Random:
    """The sample's own generator; string seeds give the same stream on every platform."""
    return random.Random(f"routesparse/{seed}/{task}/{length}/{index}")


def score_all(prediction: str, gold: Sequence[str]) -> float:
    """RULER's string_match_all with partial credit: the share of gold strings found in the prediction, 0 to 1.

    Both sides are compared case-insensitively as substrings; control characters of the prediction become
    newlines and the ends are stripped. Order, duplicates and extra text do not matter. A task's score is the
    mean over its samples times 100. Raises ValueError when `gold` is empty.
    """
    if not gold:
        raise ValueError("gold is empty; a sample needs at least one string to find")
    text = cleaned(prediction)
    return sum(item.lower() in text for item in gold) / len(gold)


def cleaned(prediction: str) -> str:
    """A prediction as RULER compares it: stripped, control characters as newlines, lower case."""
    return _CONTROL.sub("\n", prediction.strip()).strip().lower()
