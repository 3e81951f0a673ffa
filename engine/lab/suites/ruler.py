"""RULER's 13 configurations (Hsieh et al. 2024, arXiv:2404.06654), by an own generator on its templates.

Every sample has its own random stream keyed on (seed, task, length, index) and is sized to the target length with the
model's tokenizer. Where RULER's own files lie in ``<data>/benchmarks/ruler/<length>/data/<task>/validation.jsonl``,
they are read instead. What differs from RULER, for the want of text that may be shipped or with small vocabularies:

- essays are books of the prose test split (or ``ruler/PaulGrahamEssays.json`` if it is there);
- qa_1 reads ``ruler/squad.json``; qa_2 reads ``ruler/hotpotqa.json``, else it asks about generated documents of the
  same shape, two of which are needed (``more["source"]`` says so);
- vt may write 64 tokens in place of 30: five names of five letters take that many with a small vocabulary.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from routesparse.engine.errors import InputError
from routesparse.engine.lab.suites.generated import as_example, as_sample, filled, indices, ruler_row
from routesparse.engine.lab.suites.ruler_score import score_matches, score_parts
from routesparse.engine.lab.suites.source import SEED_OFFSET, Source
from routesparse.engine.lab.suites.suite import (
    Example,
    Golds,
    Request,
    Row,
    Suite,
    TaskScore,
    field_of,
    named_row,
    read_rows,
)
from routesparse.engine.lab.training.common_words import make_cwe
from routesparse.engine.lab.training.reading import Asked, make_qa
from routesparse.engine.lab.training.samples import Sample, sample_rng
from routesparse.engine.lab.training.tasks import GENERATION_TOKENS, NIAH, fit_sample
from routesparse.engine.lab.training.words import ADJECTIVES, NOUNS, invented

READING = ("qa_1", "qa_2")
TASKS = (*NIAH, "vt", "cwe", "fwe", *READING)
NEW_TOKENS = {**GENERATION_TOKENS, "vt": 64, "cwe": 120, **dict.fromkeys(READING, 32)}
QUESTIONS = 500  # of a file, its first ones
_TOKENS_PER_PAIR = 30  # fewer than two generated documents have


def score(task: str, rows: Sequence[Row]) -> TaskScore:
    """Errors: InputError for an unknown task."""
    SUITE.check(task)
    return score_parts(rows) if task in READING else score_matches(rows)


def examples(request: Request, source: Source) -> Iterator[Example]:
    """Errors: InputError for an unknown task, a missing file, or a length that is too short."""
    SUITE.check(request.task)
    own = source.folder("ruler") / str(request.length) / "data" / request.task / "validation.jsonl"
    if own.exists():
        yield from _read(own, request)
        return
    for index in indices(request):
        sample, cluster, about = _sample(request, source, index)
        yield as_example(sample, index, NEW_TOKENS[request.task], cluster, source=about)


def _read(path: Path, request: Request) -> Iterator[Example]:
    """RULER's own prompts; the input lacks the answer prefix, which stands beside it."""
    for number, row in enumerate(read_rows(path)[request.first : request.n], request.first + 1):
        with named_row(number):
            index, prompt = field_of(row, "index", kind=int), field_of(row, "input", kind=str)
            prefix = field_of({"answer_prefix": "", **row}, "answer_prefix", kind=str)
            gold = field_of(row, "outputs", kind=Golds)
        joined = gold[0] if request.task in READING else ", ".join(gold)
        yield Example(
            task=request.task,
            index=index,
            prompt=prompt,
            answer_prefix=prefix,
            gold=gold,
            answer=f" {joined}",
            new_tokens=NEW_TOKENS[request.task],
            cluster=f"{request.task}/{index}",
            more={"source": "RULER's file"},
        )


def _sample(request: Request, source: Source, index: int) -> tuple[Sample, str, str]:
    """The sample, what it shares with others, and where its text comes from."""
    task, length, seed = request.task, request.length, request.seed + SEED_OFFSET
    if task == "cwe":
        made = filled(
            source,
            request,
            NEW_TOKENS[task],
            lambda units: as_sample(
                task, make_cwe(sample_rng(seed, task, length, index), units, length), units
            ),
            guess=25.0,
            least=11,
        )
        return made, f"cwe/{index}", "wonderwords"
    if task in READING:
        asked, others, about = _asked(request, source, seed, index)
        made = filled(
            source,
            request,
            NEW_TOKENS[task],
            lambda units: as_sample(
                task, make_qa(sample_rng(seed, task, length, index), units, asked, others), units
            ),
            guess=200.0,
            least=len(asked.documents),
        )
        return made, asked.documents[0][:80], about
    # Without prose: the other tasks make their own haystacks, and ignore one that they are given.
    hidden_in_essay = task in NIAH and NIAH[task].haystack == "essay"
    haystack, about = _essay(source, index) if hidden_in_essay else ("", "generated")
    try:
        made = fit_sample(
            task,
            length - NEW_TOKENS[task] + GENERATION_TOKENS[task],
            count_tokens=source.count,
            haystack=haystack,
            seed=seed,
            index=index,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    return made, f"{task}/{index}", about


def _essay(source: Source, index: int) -> tuple[str, str]:
    path = source.file("ruler", "PaulGrahamEssays.json")
    if path is None:
        document = source.prose(index)
        return document.text, document.name
    return json.loads(path.read_text("utf-8"))["text"], path.stem


def _asked(request: Request, source: Source, seed: int, index: int) -> tuple[Asked, Sequence[str], str]:
    """A question, the documents it can be hidden among, and their file."""
    if request.task == "qa_1":
        path = source.needed_file("ruler", "squad.json")
        questions, others = read_squad(path)
    else:
        found = source.file("ruler", "hotpotqa.json")
        if found is None:
            rng = random.Random(f"two hops/{seed}/{request.length}/{index}")
            return *two_hops(rng, request.length // _TOKENS_PER_PAIR), "generated"
        path, (questions, others) = found, read_hotpot(found)
    return questions[index % min(len(questions), QUESTIONS)], others, path.name


@lru_cache(maxsize=2)
def read_squad(path: Path) -> tuple[list[Asked], tuple[str, ...]]:
    """The answerable questions of a SQuAD file, v1 or v2, and all its paragraphs."""
    paragraphs = [p for article in _json(path)["data"] for p in article["paragraphs"]]
    questions = [
        Asked(
            qa["question"], tuple(dict.fromkeys(answer["text"] for answer in qa["answers"])), (p["context"],)
        )
        for p in paragraphs
        for qa in p["qas"]
        if not qa.get("is_impossible")
    ]
    return questions, tuple(dict.fromkeys(p["context"] for p in paragraphs))


@lru_cache(maxsize=2)
def read_hotpot(path: Path) -> tuple[list[Asked], tuple[str, ...]]:
    """The questions of a HotpotQA distractor file, each with its own ten paragraphs, and all paragraphs."""
    questions = [
        Asked(
            row["question"],
            (row["answer"],),
            tuple(f"{title}\n{''.join(sentences)}" for title, sentences in row["context"]),
        )
        for row in _json(path)
    ]
    return questions, tuple(dict.fromkeys(text for asked in questions for text in asked.documents))


def _json(path: Path):
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}; put the original file there") from error


def two_hops(rng: random.Random, pairs: int) -> tuple[Asked, tuple[str, ...]]:
    """Two documents of many lead to the answer: a person's birthplace, and the river that the place lies on."""
    names: dict[str, None] = {}
    while len(names) < 3 * pairs:
        names[invented(rng).capitalize() + rng.choice(("", "a", "o"))] = None
    drawn = iter(names)
    people, places = [], []
    for _ in range(pairs):
        person, place, river = (
            f"{next(drawn)} {rng.choice(NOUNS['eval']).capitalize()}",
            next(drawn),
            next(drawn),
        )
        trade, word = (
            rng.choice(("painter", "engineer", "composer", "botanist")),
            rng.choice(ADJECTIVES["eval"]),
        )
        people.append(
            f"{person}\n{person} was a {word} {trade}, born in {place} in {rng.randint(1810, 1930)}."
        )
        places.append(
            f"{place}\n{place} is a {rng.choice(ADJECTIVES['eval'])} town on the river {river}, with "
            f"{rng.randint(900, 90_000)} inhabitants."
        )
    person, river = people[0].split("\n")[0], places[0].split("the river ")[1].split(",")[0]
    asked = Asked(
        f"On which river lies the town in which {person} was born?", (river,), (people[0], places[0])
    )
    return asked, (*people, *places)


SUITE = Suite("ruler", TASKS, score, examples, ruler_row, stops_at_gold=True)
