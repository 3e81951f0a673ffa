"""Questions over numbered documents (qa), on RULER's template: the documents that hold the answer among others.

Questions come from a SQuAD or a HotpotQA file, or are made up: two documents of many lead to the answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators.samples import Sample, distinct
from routesparse.engine.lab.generators.words import ADJECTIVES, NOUNS, invented

_INTRO = "Answer the question based on the given documents. Only give me the answer and do not output any other words."


@dataclass(frozen=True)
class Asked:
    """A question: every accepted answer, and the documents that it needs."""

    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]


def make_qa(rng: random.Random, units: int, asked: Asked, others: Sequence[str]) -> Sample:
    """units: documents, at least those that the question needs; others are drawn from ``others``, again if too few."""
    needed = set(asked.documents)
    pool = [text for text in others if text not in needed]
    texts = list(asked.documents)
    while pool and len(texts) < units:
        texts += rng.sample(pool, min(len(pool), units - len(texts)))
    rng.shuffle(texts)
    context = f"{_INTRO}\n\nThe following are given documents.\n\n"
    spans = []
    for number, text in enumerate(texts, 1):
        context += f"Document {number}:\n"
        if text in needed:
            spans.append((len(context), len(context) + len(text)))
            needed.discard(text)
        context += f"{text}\n\n"
    question = f"{_INTRO}\n\nQuestion: {asked.question}"
    return Sample(context, question, " Answer:", asked.answers, f" {asked.answers[0]}", tuple(spans))


@lru_cache(maxsize=2)
def read_squad(path: Path) -> tuple[list[Asked], tuple[str, ...]]:
    """The answerable questions of a SQuAD file, v1 or v2, and all its paragraphs."""
    paragraphs = [p for article in _json(path)["data"] for p in article["paragraphs"]]
    questions = [
        Asked(qa["question"], tuple(dict.fromkeys(one["text"] for one in qa["answers"])), (p["context"],))
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


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}; put the original file there") from error


def two_hops(rng: random.Random, pairs: int) -> tuple[Asked, tuple[str, ...]]:
    """Two documents of many lead to the answer: a person's birthplace, and the river that the place lies on."""
    names = distinct(3 * pairs, lambda: invented(rng).capitalize() + rng.choice(("", "a", "o")))
    people, places = [], []
    for first, place, river in zip(names[::3], names[1::3], names[2::3], strict=True):
        person = f"{first} {rng.choice(NOUNS).capitalize()}"
        trade = rng.choice(("painter", "engineer", "composer", "botanist"))
        word = rng.choice(ADJECTIVES)
        people.append(
            f"{person}\n{person} was a {word} {trade}, born in {place} in {rng.randint(1810, 1930)}."
        )
        places.append(
            f"{place}\n{place} is a {rng.choice(ADJECTIVES)} town on the river {river}, with "
            f"{rng.randint(900, 90_000)} inhabitants."
        )
    person, river = people[0].split("\n")[0], names[2]
    question = f"On which river lies the town in which {person} was born?"
    return Asked(question, (river,), (people[0], places[0])), (*people, *places)
