"""Words of the generated tasks: adjectives, nouns and names that the bundled model was not trained on (words.toml)."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

_WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
ADJECTIVES, NOUNS, PEOPLE = (tuple(_WORDS[kind].split()) for kind in ("adjectives", "nouns", "people"))
ONSETS, VOWELS = _WORDS["onsets"].split(), _WORDS["vowels"].split()
_CODAS = ("", "", "n", "r", "l", "s", "t", "m", "ck", "nd", "st", "ng")


def invented(rng: random.Random) -> str:
    """A made-up word of two or three syllables."""
    return "".join(
        rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((2, 2, 3)))
    )


def key_words(rng: random.Random) -> str:
    """An ``adjective-noun`` key."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"
