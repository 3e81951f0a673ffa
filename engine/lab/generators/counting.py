"""RULER's tasks that count or follow: variable tracking (vt), frequent words (fwe) and common words (cwe).

vt    a chain of assignments hidden in order among noise lines, a worked example in front
fwe   coded words whose counts fall as rank^-2; rank 1 is dots, the answer is ranks 2 to 4
cwe   in a numbered list ten words come thirty times, all others three times, a worked example in front; below 4,096
      tokens RULER makes it easier: six times against once. Words are wonderwords' nouns, adjectives and verbs; a list
      longer than that goes on with made-up words
"""

from __future__ import annotations

import random
from functools import cache

from routesparse.engine.lab.generators.needles import NOISE
from routesparse.engine.lab.generators.samples import Sample, distinct
from routesparse.engine.lab.generators.words import invented

HOPS = 4
COMMON = 10
SHORT_TOKENS = 4_096
_VT_INTRO = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
_CWE_INTRO = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
_CWE_QUESTION = "\nQuestion: What are the 10 most common words in the above list?"
_CWE_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
_ZETA_2 = 1.6449340668482264


def _chain(rng: random.Random, lines: int, letters: int) -> tuple[list[str], list[int], list[str], str]:
    """Noise lines with a chain in them: the lines, which of them are the chain's, its names and its number."""
    names = distinct(HOPS + 1, lambda: "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=letters)))
    (number,) = rng.sample(range(10_000, 99_999), 1)
    pieces, marked = [NOISE] * lines, []
    for hop, place in enumerate(sorted(rng.randint(0, lines) for _ in names)):
        source = f"VAR {names[hop - 1]} " if hop else number
        pieces.insert(place + hop, f"VAR {names[hop]} = {source}")
        marked.append(place + hop)
    return pieces, marked, names, str(number)


def _vt_question(number: str) -> tuple[str, str]:
    question = f"\nQuestion: Find all variables that are assigned the value {number} in the text above."
    prefix = (
        f" Answer: According to the chain(s) of variable assignment in the text above, {HOPS + 1} variables "
        f"are assgined the value {number}, they are: "
    )
    return question, prefix


def make_vt(rng: random.Random, units: int) -> Sample:
    """units: lines of noise."""
    shown, _, names, number = _chain(rng, 8, 3)
    example = "\n".join(shown) + "".join(_vt_question(number)) + " ".join(names)
    intro = f"{_VT_INTRO}{example}\n\n{_VT_INTRO}"
    pieces, marked, names, number = _chain(rng, units, 5)
    spans, at = [], len(intro)
    for place, piece in enumerate(pieces):
        if place in marked:
            spans.append((at, at + len(piece)))
        at += len(piece) + 1
    return Sample(
        intro + "\n".join(pieces), *_vt_question(number), tuple(names), " ".join(names), tuple(spans)
    )


def make_fwe(rng: random.Random, units: int) -> Sample:
    """units: coded words."""
    words = distinct(max(units // 20, 8), lambda: "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6)))
    vocabulary = ["...", *words[1:]]
    text: list[str] = []
    for rank, word in enumerate(vocabulary, start=1):
        text += [word] * int(units / (rank * rank * _ZETA_2))
    rng.shuffle(text)
    gold = tuple(vocabulary[1:4])
    return Sample(
        "Read the following coded text and track the frequency of each coded word. "
        f"Find the three most frequently appeared coded words. {' '.join(text)}",
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
        "What are the three most frequently appeared words in the above coded text?",
        " Answer: According to the coded text above, the three most frequently appeared words are:",
        gold,
        f" {', '.join(gold)}.",
    )


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


def _listed(rng: random.Random, words: list[str], often: int, seldom: int) -> str:
    """The first COMMON words ``often`` times, the others ``seldom`` times, shuffled and numbered."""
    items = words[:COMMON] * often + words[COMMON:] * seldom
    rng.shuffle(items)
    return _numbered(items)


def _numbered(words: list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


def make_cwe(rng: random.Random, units: int, length: int = 0) -> Sample:
    """units: distinct words. length: the target in tokens, which decides how often words come."""
    short = 0 < length < SHORT_TOKENS
    shown = _draw(rng, 20 if short else 40)
    example = _listed(rng, shown, *((3, 1) if short else (10, 3)))
    words = _draw(rng, max(units, COMMON + 1))
    text = _listed(rng, words, *((6, 1) if short else (30, 3)))
    gold = words[:COMMON]
    context = (
        f"{_CWE_INTRO}{example}{_CWE_QUESTION}{_CWE_PREFIX} {_numbered(shown[:COMMON])}\n\n{_CWE_INTRO}{text}"
    )
    return Sample(context, _CWE_QUESTION, _CWE_PREFIX, tuple(gold), f" {_numbered(gold)}")
