"""Stress tests of what routing might overlook. Predictions are rows in RULER's format.

stress_domains    four unrelated domains one after another, a needle in each, all four asked
stress_edges      a needle that begins one token before, at, or one token behind an edge of a block or a segment
stress_repeated   a needle in one word that is repeated without end, its depth swept
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators.infinitebench import GOLDEN
from routesparse.engine.lab.generators.needles import needle_sentence
from routesparse.engine.lab.generators.samples import Sample, sample_rng
from routesparse.engine.lab.generators.tasks import make_sample
from routesparse.engine.lab.generators.texts import read_folder
from routesparse.engine.lab.generators.words import key_words
from routesparse.engine.lab.studies.selection.tasks import stretch
from routesparse.engine.lab.suites.measures import ruler_row, score_matches
from routesparse.engine.lab.suites.source import SEED_OFFSET, Example, Request, Source, as_example, filled
from routesparse.engine.lab.suites.suite import Suite, generated

DOMAINS = ("prose", "code", "dialog", "docs")
EDGES = (64, 128, 16_384)  # KV block, query block, segment
SHIFTS = (-1, 0, 1)
REPEATED = ("the", "yes", "0", "and so on", "...", "blue")
NEW_TOKENS = 64
Made = tuple[Sample, dict[str, Any]]  # and what is told about it
_INTRO = (
    "A special magic number is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the number afterwards.\n"
)


@lru_cache(maxsize=2)
def _texts(data: Path) -> dict[str, str]:
    """The test split of each domain as one text."""
    found = {
        domain: "\n\n".join(document.text for document in read_folder(data / domain / "test"))
        for domain in DOMAINS
    }
    empty = [domain for domain, text in found.items() if not text]
    if empty:
        raise InputError(f"{data} holds no test documents of {', '.join(empty)}; pass another --data")
    return found


def _domains(request: Request, source: Source, rng: random.Random, index: int) -> Made:
    texts = _texts(source.data)
    order = rng.sample(DOMAINS, len(DOMAINS))
    starts = {domain: rng.random() for domain in order}

    def make(units: int) -> Sample:
        part = units // len(order)
        pieces = []
        for domain in order:
            start = int(starts[domain] * max(len(texts[domain]) - part, 1))
            pieces.append(texts[domain][start : start + part])
        return make_sample(
            "niah_multiquery",
            units,
            haystack=" ".join(pieces),
            seed=request.seed + 2 * SEED_OFFSET,  # other needles than RULER's prompts of the same seed
            length=request.length,
            index=index,
        )

    return filled(source, request, NEW_TOKENS, make, guess=0.35, least=200), {"domains": order}


def _needle(rng: random.Random) -> tuple[str, Sample]:
    """One needle and its question, worded as RULER's; the context is to come."""
    key, value = key_words(rng), str(rng.randint(1_000_000, 9_999_999))
    said = f"special magic number for {key} mentioned in the provided text"
    asked = Sample("", f"\nWhat is the {said}?", f" The {said} is", (value,), f" {value}.")
    return needle_sentence("numbers", key, value), asked


def _hidden(asked: Sample, context: str, start: int, needle: str) -> Sample:
    return replace(asked, context=context, needle_spans=((start, start + len(needle)),))


def _edges(request: Request, source: Source, rng: random.Random, index: int) -> Made:
    needle, asked = _needle(rng)
    shift = SHIFTS[index % len(SHIFTS)]
    fitting = [edge for edge in EDGES if 2 * edge <= request.length]
    if not fitting:
        raise InputError(f"{request.length} tokens hold no edge of a block; raise --lengths")
    edge = fitting[index // len(SHIFTS) % len(fitting)]
    prose = stretch(" ".join(source.prose(index).text.split()), rng.random(), 8 * request.length)
    edges = list(range(edge, int(0.75 * request.length), edge))
    rng.shuffle(edges)
    cuts = ((at + shift, _prefix_of(source, _INTRO + prose, at + shift)) for at in edges)
    found = next(((target, before) for target, before in cuts if before), None)
    if found is None:
        raise InputError(f"no needle can begin {shift:+} tokens from an edge of {edge}; pass another --seed")
    target, before = found
    rest = prose[len(before) - len(_INTRO) :]
    fixed = source.count(needle + asked.question + asked.answer_prefix) + 8
    room = request.length - NEW_TOKENS - target - fixed
    behind = source.decode(source.encode(rest[: 8 * room])[:room])
    sample = _hidden(asked, f"{before}\n{needle}\n{behind}", len(before) + 1, needle)
    return sample, {"edge": edge, "shift": shift, "begins_at": target}


def _prefix_of(source: Source, text: str, target: int) -> str | None:
    """The longest cut of the text that, with a line's end and the special tokens, has ``target`` tokens.

    A cut can change how its end is tokenized, so cuts are tried one after another. None where no cut fits.
    """
    wanted = target - source.special_tokens
    ids = source.encode(text[: 8 * target])
    cut = len(source.decode(ids[:wanted]))
    # Only tokens behind a space well before the cut are counted anew for each try.
    anchor = max(text.rfind(" ", 0, max(cut - 1_024, 0)), 0)
    before = source.count(text[:anchor])
    for length in range(min(cut + 32, len(text)), max(cut - 256, len(_INTRO)), -1):
        if before + source.count(text[anchor:length] + "\n") == wanted == source.count(text[:length] + "\n"):
            return text[:length]
    return None


def _repeated(request: Request, source: Source, rng: random.Random, index: int) -> Made:
    needle, asked = _needle(rng)
    word, depth = REPEATED[index % len(REPEATED)], index * GOLDEN % 1

    def make(units: int) -> Sample:
        words = [word] * units
        words.insert(int(depth * units), needle)
        context = _INTRO + " ".join(words)
        return _hidden(asked, context, context.index(needle), needle)

    sample = filled(source, request, NEW_TOKENS, make, guess=1.5, least=20)
    return sample, {"repeated": word, "depth": round(depth, 3)}


_MAKERS = {"stress_domains": _domains, "stress_edges": _edges, "stress_repeated": _repeated}
TASKS = tuple(_MAKERS)


def _example(request: Request, source: Source, index: int) -> Example:
    rng = sample_rng(request.seed + SEED_OFFSET, request.task, request.length, index)
    sample, about = _MAKERS[request.task](request, source, rng, index)
    return as_example(request.task, sample, index, NEW_TOKENS, **about)


SUITE = Suite("stress", TASKS, score_matches, generated(_example), ruler_row, stops_at_gold=True)
