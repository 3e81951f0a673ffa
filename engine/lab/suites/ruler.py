"""RULER's 13 configurations (Hsieh et al. 2024, arXiv:2404.06654), by an own generator on its templates.

Every sample has its own random stream keyed on (seed, task, length, index) and is sized to the target length with the
model's tokenizer. Where RULER's own files lie in ``<data>/benchmarks/ruler/<length>/data/<task>/validation.jsonl``,
they are read instead. What differs from RULER, for the want of text that may be shipped or with small vocabularies:

- essays are books of the prose test split in turn, and prompts that share a book are one cluster (so is every prompt on
  ``ruler/PaulGrahamEssays.json``, one text, which is read if it is there: too few for an interval);
- qa_1 reads ``ruler/squad.json``; qa_2 reads ``ruler/hotpotqa.json``, else it asks about generated documents of the
  same shape, two of which are needed (``more["source"]`` says so);
- vt may write 64 tokens in place of 30: five names of five letters take that many with a small vocabulary.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import partial

from routesparse.engine.lab.generators.counting import make_cwe
from routesparse.engine.lab.generators.needles import NIAH
from routesparse.engine.lab.generators.reading import Asked, make_qa, read_hotpot, read_squad, two_hops
from routesparse.engine.lab.generators.samples import sample_rng
from routesparse.engine.lab.generators.tasks import GENERATION_TOKENS, fit_sample
from routesparse.engine.lab.suites.measures import READING, ruler_row, score_matches
from routesparse.engine.lab.suites.source import SEED_OFFSET, Example, Request, Source, as_example, filled
from routesparse.engine.lab.suites.suite import Golds, Row, Suite, field_of, generated, read_examples

TASKS = (*NIAH, "vt", "cwe", "fwe", *READING)
NEW_TOKENS = {**GENERATION_TOKENS, "vt": 64, "cwe": 120, **dict.fromkeys(READING, 32)}
QUESTIONS = 500  # of a file, its first ones
_TOKENS_PER_PAIR = 30  # fewer than two generated documents have


def _examples(request: Request, source: Source) -> Iterator[Example]:
    own = (
        source.folder("ruler")
        / str(request.length + request.around)
        / "data"
        / request.task
        / "validation.jsonl"
    )
    if own.exists():
        return read_examples(own, request, partial(_read, request.task))
    return generated(_example)(request, source)


def _read(task: str, place: int, row: Row) -> Example:
    """RULER's own prompt; the input lacks the answer prefix, which stands beside it."""
    gold = field_of(row, "outputs", kind=Golds)
    index = field_of(row, "index", kind=int)
    return Example(
        task=task,
        index=index,
        prompt=field_of(row, "input", kind=str),
        answer_prefix=field_of({"answer_prefix": "", **row}, "answer_prefix", kind=str),
        gold=gold,
        answer=f" {gold[0] if task in READING else ', '.join(gold)}",
        new_tokens=NEW_TOKENS[task],
        cluster=f"{task}/{index}",
        more={"source": "RULER's file"},
    )


def _example(request: Request, source: Source, index: int) -> Example:
    task, length, seed = request.task, request.length, request.seed + SEED_OFFSET
    new_tokens, cluster = NEW_TOKENS[task], ""
    if task == "cwe":
        about = "wonderwords"
        sample = filled(
            source,
            request,
            new_tokens,
            lambda units: make_cwe(sample_rng(seed, task, length, index), units, length),
            guess=25.0,
            least=11,
        )
    elif task in READING:
        asked, others, about = _asked(request, source, seed, index)
        cluster = asked.documents[0][:80]
        sample = filled(
            source,
            request,
            new_tokens,
            lambda units: make_qa(sample_rng(seed, task, length, index), units, asked, others),
            guess=200.0,
            least=len(asked.documents),
        )
    else:
        # Without prose: the other tasks make their own haystacks, and ignore one that they are given.
        hidden_in_essay = task in NIAH and NIAH[task].haystack == "essay"
        haystack, about = _essay(source, index) if hidden_in_essay else ("", "generated")
        cluster = about if hidden_in_essay else ""
        size = length - new_tokens + GENERATION_TOKENS[task]
        sample = fit_sample(task, size, count_tokens=source.count, haystack=haystack, seed=seed, index=index)
    return as_example(task, sample, index, new_tokens, cluster, source=about)


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


SUITE = Suite("ruler", TASKS, score_matches, _examples, ruler_row, stops_at_gold=True)
