"""One generated prompt, its own random stream, and RULER's score of an answer to it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from routesparse.engine.errors import InputError

_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass(frozen=True)
class Sample:
    """The model reads ``prompt + answer_prefix``; ``gold`` is scored, ``answer`` is a reference completion.

    needle_spans: (start, end) characters of ``prompt`` that answer the question, in order of appearance.
    """

    context: str
    question: str
    answer_prefix: str
    gold: tuple[Any, ...]
    answer: str
    needle_spans: tuple[tuple[int, int], ...] = ()

    @property
    def prompt(self) -> str:
        """Context and question, without the beginning of the answer."""
        return self.context + self.question


def sample_rng(seed: int, task: str, length: int, index: int) -> random.Random:
    """The sample's own generator; string seeds give the same stream on every platform."""
    return random.Random(f"routesparse/{seed}/{task}/{length}/{index}")


def distinct(count: int, draw: Callable[[], str], tries: int = 0, joint: str = "") -> list[str]:
    """So many different words. tries: after so many a word, the words' number behind ``joint`` keeps them apart."""
    found: dict[str, None] = {}
    drawn = 0
    while len(found) < count:
        word, drawn = draw(), drawn + 1
        found[f"{word}{joint}{len(found)}" if tries and drawn >= tries * count else word] = None
    return list(found)


def score_all(prediction: str, gold: Sequence[str]) -> float:
    """RULER's string_match_all: the share of gold strings found in the prediction, 0 to 1.

    Substrings are compared without case; control characters of the prediction become newlines. Errors: InputError
    where ``gold`` is empty.
    """
    if not gold:
        raise InputError("gold is empty; a sample needs at least one string to find")
    text = cleaned(prediction)
    return sum(item.lower() in text for item in gold) / len(gold)


def cleaned(prediction: str) -> str:
    """A prediction as RULER compares it: stripped, control characters as newlines, lower case."""
    return _CONTROL.sub("\n", prediction.strip()).strip().lower()
