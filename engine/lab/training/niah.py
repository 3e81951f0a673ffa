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

from routesparse.engine.lab.training.samples import Built, Training, Turn
from routesparse.engine.lab.training.words import WordSet, key_words

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


def _value(rng: random.Random, kind: str, part: WordSet, invented_share: float) -> str:
    if kind == "numbers":
        return str(rng.randint(1_000_000, 9_999_999))
    if kind == "uuids":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    if kind == "words":
        return key_words(rng, part, invented_share)
    raise ValueError(f"unknown kind {kind!r}; use numbers, uuids or words")


def _distinct(rng: random.Random, kind: str, count: int, part: WordSet, invented_share: float) -> list[str]:
    found: dict[str, None] = {}
    tries = 0
    while len(found) < count:
        word = _value(rng, kind, part, invented_share)
        tries += 1
        # Far beyond the number of distinct pairs, a third word keeps keys unique.
        found[word if tries < 20 * count else f"{word}-{len(found)}"] = None
    return list(found)


def needle_sentence(kind: str, key: str, value: str) -> str:
    """RULER's needle: one of the special magic {kind} for {key} is {value}."""
    return f"One of the special magic {kind} for {key} is: {value}."


def _niah_texts(kind: str, keys: Sequence[str], values: Sequence[str]) -> tuple[str, Turn]:
    """The instruction and the question for `keys`, singular when one key has one value."""
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
    prefix = f" The special magic {noun} for {query} mentioned in the provided text {verb}"
    return intro, Turn(question, prefix, tuple(values), " " + ", ".join(values) + ".")


def _join(
    intro: str, pieces: list[str], separator: str, marked: dict[int, int]
) -> tuple[str, dict[int, tuple]]:
    """Join pieces behind the intro; return the text and the character span of every marked piece."""
    spans: dict[int, tuple[int, int]] = {}
    position = len(intro)
    for index, piece in enumerate(pieces):
        if index in marked:
            spans[marked[index]] = (position, position + len(piece))
        position += len(piece) + len(separator)
    return intro + separator.join(pieces), spans


def _place(
    rng: random.Random, hay: list[str], needles: list[str], spread: bool
) -> tuple[list[str], dict[int, int]]:
    """Insert needles in random order of place; return pieces and {piece index: needle index}.

    `spread`: depths without replacement from 40 even percentages (RULER's essays); otherwise anywhere.
    """
    count = len(needles)
    if spread and count <= 40:
        depths = rng.sample(range(40), count)
        places = [round(len(hay) * depth / 39) for depth in depths]
    else:
        places = [rng.randint(0, len(hay)) for _ in needles]
    order = sorted(range(count), key=lambda i: (places[i], i))
    pieces: list[str] = []
    marked: dict[int, int] = {}
    done = 0
    for needle in order:
        pieces += hay[done : places[needle]]
        done = places[needle]
        marked[len(pieces)] = needle
        pieces.append(needles[needle])
    return pieces + hay[done:], marked


def _essay(rng: random.Random, haystack: str, characters: int) -> list[str]:
    """Sentences of a random stretch of the haystack of about `characters`, white space collapsed, wrapping."""
    if not haystack.strip():
        raise ValueError("the haystack is empty; pass some text, for instance a public-domain book")
    start = rng.randrange(len(haystack))
    start = haystack.find(" ", start) + 1
    text = haystack[start : start + characters]
    while len(text) < characters:
        text += " " + haystack[: characters - len(text)]
    return _SENTENCE_END.split(" ".join(text.split()))


def make_niah(task: str, rng: random.Random, units: int, haystack: str, part: WordSet, t: Training) -> Built:
    """One of RULER's needle tasks; units: pieces of haystack (needles, lines of noise or characters of an essay)."""
    spec = NIAH[task]
    per_key = t.values or spec.values
    queries = t.queries or spec.queries
    asked = t.questions * queries
    keys_hidden = max(t.needles or spec.keys, asked)
    if spec.haystack == "needle":
        keys_hidden = max(units, asked)
    keys = _distinct(rng, spec.key, keys_hidden, part, t.invented_share)
    values = [[_value(rng, spec.value, part, 0) for _ in range(per_key)] for _ in keys]
    flat = [(k, v) for k in range(len(keys)) for v in range(per_key)]
    needles = [needle_sentence(spec.value, keys[k], values[k][v]) for k, v in flat]
    if spec.haystack == "needle":
        order = rng.sample(range(len(needles)), len(needles))
        pieces, separator = [needles[i] for i in order], "\n"
        marked = {place: needle for place, needle in enumerate(order)}
    elif spec.haystack == "noise":
        pieces, marked = _place(rng, [NOISE] * units, needles, spread=False)
        separator = "\n"
    else:
        pieces, marked = _place(rng, _essay(rng, haystack, units), needles, spread=True)
        separator = " "
    ranks = {needle: place for place, needle in marked.items()}
    chosen = rng.sample(range(len(keys)), asked)
    turns = []
    for start in range(0, asked, queries):
        group = chosen[start : start + queries]
        # A key's values are named in order of appearance; several keys in the order of the question.
        gold = []
        for k in group:
            ordered = sorted(range(k * per_key, (k + 1) * per_key), key=ranks.__getitem__)
            gold += [values[k][needle - k * per_key] for needle in ordered]
        turns.append(_niah_texts(spec.value, [keys[k] for k in group], gold))
    context, spans = _join(turns[0][0], pieces, separator, marked)
    first = set(chosen[:queries])
    asked_spans = sorted(spans[i] for i, (k, _) in enumerate(flat) if k in first)
    return context, [turn for _, turn in turns], asked_spans, {"needles": len(needles), "keys": len(keys)}
