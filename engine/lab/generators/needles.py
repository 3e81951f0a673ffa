"""Needles in a haystack: RULER's eight niah tasks, on its templates.

Haystacks: one line of noise repeated, sentences of a text, or nothing but other needles. Depths of up to 40 needles in
a text are drawn without replacement from 40 even percentages.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators.samples import Sample, distinct
from routesparse.engine.lab.generators.words import key_words

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Needles:
    """What a needle task hides and asks: the haystack kind, key and value kinds, and how many of each."""

    haystack: str
    key: str
    value: str
    keys: int = 1
    values: int = 1
    queries: int = 1


NIAH: dict[str, Needles] = {
    "niah_single_1": Needles("noise", "words", "numbers"),
    "niah_single_2": Needles("essay", "words", "numbers"),
    "niah_single_3": Needles("essay", "words", "uuids"),
    "niah_multikey_1": Needles("essay", "words", "numbers", keys=4),
    "niah_multikey_2": Needles("needle", "words", "numbers"),
    "niah_multikey_3": Needles("needle", "uuids", "uuids"),
    "niah_multivalue": Needles("essay", "words", "numbers", values=4),
    "niah_multiquery": Needles("essay", "words", "numbers", keys=4, queries=4),
}
_DRAWN = {
    "numbers": lambda rng: str(rng.randint(1_000_000, 9_999_999)),
    "uuids": lambda rng: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
    "words": key_words,
}


def _texts(kind: str, keys: Sequence[str], values: Sequence[str]) -> tuple[str, str, str]:
    """Instruction, question and beginning of the answer, singular when one key has one value."""
    many = len(keys) > 1 or len(values) > 1
    query = keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + ", and " + keys[-1]
    noun, verb = (kind, "are") if many else (kind[:-1], "is")
    opening = f"Some special magic {kind} are" if many else f"A special magic {noun} is"
    intro = (
        f"{opening} hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about the {noun} afterwards.\n"
    )
    wording = "What are all the" if many else "What is the"
    question = f"\n{wording} special magic {noun} for {query} mentioned in the provided text?"
    return intro, question, f" The special magic {noun} for {query} mentioned in the provided text {verb}"


def _place(
    rng: random.Random, hay: list[str], needles: list[str], spread: bool
) -> tuple[list[str], dict[int, int]]:
    """Insert needles in random order of place; return pieces and {piece index: needle index}.

    spread: depths without replacement from 40 even percentages (RULER's essays); otherwise anywhere.
    """
    count = len(needles)
    if spread and count <= 40:
        places = [round(len(hay) * depth / 39) for depth in rng.sample(range(40), count)]
    else:
        places = [rng.randint(0, len(hay)) for _ in needles]
    pieces: list[str] = []
    marked: dict[int, int] = {}
    done = 0
    for needle in sorted(range(count), key=lambda i: (places[i], i)):
        pieces += hay[done : places[needle]]
        done = places[needle]
        marked[len(pieces)] = needle
        pieces.append(needles[needle])
    return pieces + hay[done:], marked


def _essay(rng: random.Random, haystack: str, characters: int) -> list[str]:
    """Sentences of a random stretch of the haystack of about ``characters``, white space collapsed, wrapping."""
    if not haystack.strip():
        raise InputError("the haystack is empty; pass some text, for instance a public-domain book")
    start = rng.randrange(len(haystack))
    start = haystack.find(" ", start) + 1
    text = haystack[start : start + characters]
    while len(text) < characters:
        text += " " + haystack[: characters - len(text)]
    return _SENTENCE_END.split(" ".join(text.split()))


def make_niah(task: str, rng: random.Random, units: int, haystack: str) -> Sample:
    """One of RULER's needle tasks; units: pieces of haystack (needles, lines of noise or characters of an essay)."""
    spec = NIAH[task]
    of_needles = spec.haystack == "needle"
    key, value = _DRAWN[spec.key], _DRAWN[spec.value]
    # Far beyond the number of distinct pairs, a third word keeps keys unique.
    keys = distinct(max(units, 1) if of_needles else spec.keys, lambda: key(rng), 20, "-")
    hidden = [(k, value(rng)) for k in range(len(keys)) for _ in range(spec.values)]
    needles = [f"One of the special magic {spec.value} for {keys[k]} is: {text}." for k, text in hidden]
    if of_needles:
        order = rng.sample(range(len(needles)), len(needles))
        pieces, marked = [needles[i] for i in order], dict(enumerate(order))
    elif spec.haystack == "noise":
        pieces, marked = _place(rng, [NOISE] * units, needles, spread=False)
    else:
        pieces, marked = _place(rng, _essay(rng, haystack, units), needles, spread=True)
    asked = rng.sample(range(len(keys)), spec.queries)
    # A key's values are named in order of appearance; several keys in the order of the question.
    gold = tuple(hidden[n][1] for k in asked for n in marked.values() if hidden[n][0] == k)
    intro, question, prefix = _texts(spec.value, [keys[k] for k in asked], gold)
    separator = " " if spec.haystack == "essay" else "\n"
    spans, at = [], len(intro)
    for place, piece in enumerate(pieces):
        if place in marked and hidden[marked[place]][0] in asked:
            spans.append((at, at + len(piece)))
        at += len(piece) + len(separator)
    context = intro + separator.join(pieces)
    return Sample(context, question, prefix, gold, f" {', '.join(gold)}.", tuple(spans))
