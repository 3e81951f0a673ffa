"""Common words (cwe), on RULER's template: in a numbered list ten words come thirty times, all others three times.

A worked example stands in front. Below 4,096 tokens RULER makes the task easier: six times against once. Words are
wonderwords' nouns, adjectives and verbs; a list longer than that goes on with made-up words.
"""

from __future__ import annotations

import random
from functools import cache

from routesparse.engine.lab.training.samples import Built, Turn
from routesparse.engine.lab.training.words import invented

COMMON = 10
SHORT_TOKENS = 4_096
_INTRO = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
_QUESTION = "\nQuestion: What are the 10 most common words in the above list?"
_PREFIX = " Answer: The top 10 words that appear most often in the list are:"


@cache
def _dictionary() -> tuple[str, ...]:
    from wonderwords import RandomWord

    words = RandomWord().filter(include_categories=["noun", "adjective", "verb"])
    return tuple(sorted({word for word in words if word.isascii() and word.isalpha() and word.islower()}))


def _draw(rng: random.Random, count: int) -> list[str]:
    known = _dictionary()
    found = dict.fromkeys(rng.sample(known, min(count, len(known))))
    while len(found) < count:
        found[invented(rng) + invented(rng)] = None
    return list(found)


def _numbered(rng: random.Random, words: list[str], often: int, seldom: int) -> str:
    """The first COMMON words `often` times, the others `seldom` times, shuffled and numbered."""
    items = words[:COMMON] * often + words[COMMON:] * seldom
    rng.shuffle(items)
    return " ".join(f"{number}. {word}" for number, word in enumerate(items, 1))


def make_cwe(rng: random.Random, units: int, length: int = 0) -> Built:
    """units: distinct words. length: the target in tokens, which decides how often words come."""
    short = 0 < length < SHORT_TOKENS
    shown = _draw(rng, 20 if short else 40)
    example = _numbered(rng, shown, *((3, 1) if short else (10, 3)))
    answer = " ".join(f"{place}. {word}" for place, word in enumerate(shown[:COMMON], 1))
    words = _draw(rng, max(units, COMMON + 1))
    text = _numbered(rng, words, *((6, 1) if short else (30, 3)))
    gold = tuple(words[:COMMON])
    said = " " + " ".join(f"{place}. {word}" for place, word in enumerate(gold, 1))
    context = f"{_INTRO}{example}{_QUESTION}{_PREFIX} {answer}\n\n{_INTRO}{text}"
    return context, [Turn(_QUESTION, _PREFIX, gold, said)], [], {"distinct_words": len(words)}
