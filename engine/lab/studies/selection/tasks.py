"""Two tasks whose *body* looks things up: a rule that serves only the last rows well fails them.

    relay     facts near the start, "The magic number for amber-otter is 1234567."; far behind them the prose states
              each fact once more, one here and one there, in another order
    list      a list of such sentences near the start; far behind it the same list once more, in the same order

Between a fact and its return lie about two thirds of the prompt in prose, and more prose follows the last return, so
that no look-up lies in the last rows, which many rules serve densely. A prompt's score is the share of looked-up
tokens (``asked``), the digits of every number that returns, that are the model's first choice. Names are not asked:
which of them comes next in the list the bundled model does not foresee with dense attention either.

Deterministic in (seed, task, length, index); the prose is passed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators.samples import sample_rng
from routesparse.engine.lab.generators.words import key_words

BODY_TASKS = ("relay", "list")
FACTS = 12
ENTRIES = 24
EARLY = (0.02, 0.10)  # where facts stand, as shares of the prompt's prose
LATE = (0.76, 0.92)  # where they return
INTRO = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the numbers afterwards.\n"
)

Offsets = Callable[[str], list[tuple[int, int]]]  # a text's tokens as character spans


@dataclass(frozen=True)
class Insert:
    """A text for the prose: where, as a share of it, and the character spans of it that are looked up."""

    share: float
    text: str
    asked: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class BodyText:
    """A prompt's text, longer than the prompt in tokens, and the character spans that are looked up."""

    text: str
    asked: tuple[tuple[int, int], ...]

    def asked_tokens(self, offsets: list[tuple[int, int]]) -> list[int]:
        """Indices of the tokens that lie in a span."""
        spans = iter(self.asked)
        start, end = next(spans)
        found: list[int] = []
        for index, (first, last) in enumerate(offsets):
            while first >= end:
                start, end = next(spans, (len(self.text), len(self.text) + 1))
            if first >= start and first < last <= end:
                found.append(index)
        return found


def make_body(task: str, length: int, *, offsets: Offsets, haystack: str, seed: int, index: int) -> BodyText:
    """The text of one prompt of ``length`` tokens. Errors: InputError for an unknown task, no prose, no room."""
    rng = sample_rng(seed, task, length, index)
    prose = stretch(haystack, rng.random(), 8 * length)
    if task not in BODY_TASKS:
        raise InputError(f"unknown task {task!r}; use one of {', '.join(BODY_TASKS)}")
    inserts = _relay(rng) if task == "relay" else _list(rng)
    room = length - len(offsets(INTRO + "".join(insert.text for insert in inserts)))
    if room < length // 2:
        raise InputError(f"{task} leaves {room} of {length} tokens to prose; use a longer prompt")
    return _inserted(prose, offsets(prose)[room - 1][1], inserts)


def stretch(text: str, start: float, characters: int) -> str:
    """``characters`` of a text that begins anew where it ends, from the share ``start`` of it on."""
    if not text.strip():
        raise InputError("the text is empty; pass some prose, for instance a public-domain book")
    place = int(start * len(text))
    rounds = -(-(place + characters) // len(text))
    return (text * rounds)[place : place + characters]


def _facts(rng: random.Random, count: int) -> dict[str, str]:
    facts: dict[str, str] = {}
    while len(facts) < count:
        facts[key_words(rng)] = str(rng.randint(1_000_000, 9_999_999))
    return facts


def sentence(name: str, number: str) -> str:
    """A fact as it is stated, the first time and again."""
    return f"The magic number for {name} is {number}."


def _relay(rng: random.Random) -> list[Insert]:
    facts = _facts(rng, FACTS)
    names = list(facts)
    again = rng.sample(names, len(names))
    inserts = []
    for order, (low, high), asks in ((names, EARLY, False), (again, LATE, True)):
        for place, name in enumerate(order):
            share = low + (high - low) * (place + rng.random()) / len(order)
            text = f" {sentence(name, facts[name])}"
            number_at = text.index(facts[name])
            span = (number_at, number_at + len(facts[name]))
            inserts.append(Insert(share, text, (span,) if asks else ()))
    return inserts


def _list(rng: random.Random) -> list[Insert]:
    listed = "\n"
    spans: list[tuple[int, int]] = []
    for name, number in _facts(rng, ENTRIES).items():
        line = f"{sentence(name, number)}\n"
        number_at = len(listed) + line.index(number)
        spans.append((number_at, number_at + len(number)))
        listed += line
    return [Insert(EARLY[0], listed), Insert(sum(LATE) / 2, listed, tuple(spans))]


def _inserted(prose: str, reach: int, inserts: list[Insert]) -> BodyText:
    """The prose with texts inserted at the first spaces behind their places among its first ``reach`` characters."""
    text, done = INTRO, 0
    asked: list[tuple[int, int]] = []
    for insert in inserts:
        cut = max(done, prose.find(" ", int(insert.share * reach)))
        text += prose[done:cut]
        asked += [(len(text) + start, len(text) + end) for start, end in insert.asked]
        text, done = text + insert.text, cut
    return BodyText(text + prose[done:], tuple(asked))
