"""Questions over numbered documents (qa), on RULER's template: the documents that hold the answer among others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from routesparse.engine.lab.training.samples import Built, Turn

_INTRO = "Answer the question based on the given documents. Only give me the answer and do not output any other words."


@dataclass(frozen=True)
class Asked:
    """A question: every accepted answer, and the documents that it needs."""

    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]


def make_qa(rng: random.Random, units: int, asked: Asked, others: Sequence[str]) -> Built:
    """units: documents, at least those that the question needs; the rest are drawn from `others`, again if too few."""
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
    turn = Turn(question, " Answer:", asked.answers, f" {asked.answers[0]}")
    return context, [turn], spans, {"documents": len(texts)}
