"""Stress tests of what routing might overlook. Predictions are rows in RULER's format.

stress_domains    four unrelated domains one after another, a needle in each, all four asked
stress_edges      a needle that begins one token before, at, or one token behind an edge of a block or a segment
stress_repeated   a needle in one word that is repeated without end, its depth swept
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache

from routesparse.engine.errors import InputError
from routesparse.engine.lab.studies.selection.tasks import stretch
from routesparse.engine.lab.suites.generated import as_example, filled, indices, ruler_row
from routesparse.engine.lab.suites.infinitebench_make import GOLDEN
from routesparse.engine.lab.suites.ruler_score import score_matches
from routesparse.engine.lab.suites.source import SEED_OFFSET, Source
from routesparse.engine.lab.suites.suite import Example, Request, Row, Suite, TaskScore
from routesparse.engine.lab.training.corpus import read_folder
from routesparse.engine.lab.training.niah import needle_sentence
from routesparse.engine.lab.training.samples import Sample, Turn, sample_rng
from routesparse.engine.lab.training.tasks import make_sample
from routesparse.engine.lab.training.words import key_words

TASKS = ("stress_domains", "stress_edges", "stress_repeated")
DOMAINS = ("prose", "code", "dialog", "docs")
EDGES = (64, 128, 16_384)  # KV block, query block, segment
SHIFTS = (-1, 0, 1)
REPEATED = ("the", "yes", "0", "and so on", "...", "blue")
NEW_TOKENS = 64
_INTRO = (
    "A special magic number is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the number afterwards.\n"
)


def score(task: str, rows: Sequence[Row]) -> TaskScore:
    """Errors: InputError for an unknown task."""
    SUITE.check(task)
    return score_matches(rows)


def examples(request: Request, source: Source) -> Iterator[Example]:
    """Errors: InputError for an unknown task, missing text, or a length that is too short."""
    SUITE.check(request.task)
    make = {"stress_domains": _domains, "stress_edges": _edges, "stress_repeated": _repeated}[request.task]
    for index in indices(request):
        rng = sample_rng(request.seed + SEED_OFFSET, request.task, request.length, index)
        sample, about = make(request, source, rng, index)
        yield as_example(sample, index, NEW_TOKENS, f"{request.task}/{index}", **about)


@lru_cache(maxsize=2)
def _texts(data) -> dict[str, str]:
    """The test split of each domain as one text."""
    found = {
        domain: "\n\n".join(document.text for document in read_folder(data / domain / "test", domain))
        for domain in DOMAINS
    }
    empty = [domain for domain, text in found.items() if not text]
    if empty:
        raise InputError(f"{data} holds no test documents of {', '.join(empty)}; pass another --data")
    return found


def _domains(
    request: Request, source: Source, rng: random.Random, index: int
) -> tuple[Sample, dict[str, object]]:
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

    sample = filled(source, request, NEW_TOKENS, make, guess=0.35, least=200)
    return _named(sample, "stress_domains"), {"domains": order}


def _named(sample: Sample, task: str) -> Sample:
    return Sample(task, sample.context, sample.first, sample.needle_spans, (), sample.metadata)


def _needle(rng: random.Random) -> tuple[str, Turn]:
    """One needle and its question, worded as RULER's."""
    key, value = key_words(rng, "eval"), str(rng.randint(1_000_000, 9_999_999))
    said = f"special magic number for {key} mentioned in the provided text"
    turn = Turn(f"\nWhat is the {said}?", f" The {said} is", (value,), f" {value}.")
    return needle_sentence("numbers", key, value), turn


def _edges(
    request: Request, source: Source, rng: random.Random, index: int
) -> tuple[Sample, dict[str, object]]:
    needle, turn = _needle(rng)
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
    fixed = source.count(needle + turn.question + turn.answer_prefix) + 8
    room = request.length - NEW_TOKENS - target - fixed
    behind = source.decode(source.encode(rest[: 8 * room])[:room])
    context = f"{before}\n{needle}\n{behind}"
    start = len(before) + 1
    sample = Sample("stress_edges", context, turn, ((start, start + len(needle)),), (), {"units": target})
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


def _repeated(
    request: Request, source: Source, rng: random.Random, index: int
) -> tuple[Sample, dict[str, object]]:
    needle, turn = _needle(rng)
    word, depth = REPEATED[index % len(REPEATED)], index * GOLDEN % 1

    def make(units: int) -> Sample:
        words = [word] * units
        words.insert(int(depth * units), needle)
        context = _INTRO + " ".join(words)
        start = context.index(needle)
        return Sample("stress_repeated", context, turn, ((start, start + len(needle)),), (), {"units": units})

    sample = filled(source, request, NEW_TOKENS, make, guess=1.5, least=20)
    return sample, {"repeated": word, "depth": round(depth, 3)}


SUITE = Suite("stress", TASKS, score, examples, ruler_row, stops_at_gold=True)
