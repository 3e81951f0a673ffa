"""Training batches: plain text and generated tasks, made by worker processes, one queue a length.

A batch is (ids [rows, length + 1] uint16, classes [rows, length + 1] uint8); the class of a token says how its
prediction is weighted: IGNORE, TEXT (plain text), CONTEXT (a task's haystack and question) or ANSWER.
"""

from __future__ import annotations

import bisect
import multiprocessing
import queue
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from routesparse.engine.lab.training.corpus import Document
from routesparse.engine.lab.training.stories import STORY_TASKS
from routesparse.engine.lab.training.tasks import NIAH, Sample, Sizer, Training
from routesparse.engine.lab.training.tokenizer import BOS_ID, EOS_ID

IGNORE, TEXT, CONTEXT, ANSWER = range(4)

# How often each task is drawn: what the first recipe learnt last is drawn most.
TASK_WEIGHTS: dict[str, float] = {
    "niah_single_1": 5,
    "niah_single_2": 5,
    "niah_single_3": 8,
    "niah_multikey_1": 8,
    "niah_multikey_2": 14,
    "niah_multikey_3": 14,
    "niah_multivalue": 15,
    "niah_multiquery": 12,
    "vt": 16,
    "fwe": 3,
}
# story_before is not learnt in minutes; a larger share of it took the others' time.
STORY_WEIGHTS: dict[str, float] = {
    "story_retrieval": 4,
    "story_before": 1,
    "story_chain": 5,
    "story_filtering": 4,
}


@dataclass(frozen=True)
class Phase:
    """Until `end` (share of the run), draw context lengths by weight; `text` is the share of plain-text rows."""

    end: float
    lengths: dict[int, float]
    text: float


PHASES: tuple[Phase, ...] = (
    Phase(0.20, {1024: 1.0}, 0.40),
    Phase(0.42, {1024: 0.15, 4096: 0.85}, 0.35),
    Phase(0.58, {4096: 0.3, 16384: 0.6, 32768: 0.1}, 0.30),
    Phase(0.80, {4096: 0.12, 16384: 0.25, 32768: 0.43, 65536: 0.2}, 0.25),
    Phase(1.00, {4096: 0.12, 16384: 0.22, 32768: 0.26, 65536: 0.4}, 0.25),
)
# For a model that answers questions at all lengths already, and minutes instead of half an hour.
STORY_PHASES: tuple[Phase, ...] = (
    Phase(0.25, {1024: 1.0}, 0.1),
    Phase(0.50, {1024: 0.3, 4096: 0.7}, 0.1),
    Phase(0.75, {4096: 0.4, 16384: 0.6}, 0.1),
    Phase(1.00, {4096: 0.2, 16384: 0.3, 32768: 0.3, 65536: 0.2}, 0.1),
)
# For a model that knows stories of short contexts. One of story_filtering has a single question, of story_retrieval up
# to 64, and every token of an answer weighs the same.
LONG_STORY_WEIGHTS: dict[str, float] = {"story_retrieval": 2, "story_chain": 1, "story_filtering": 12}
LONG_STORY_PHASES: tuple[Phase, ...] = (
    Phase(0.35, {4096: 0.1, 16384: 0.6, 32768: 0.3}, 0.1),
    Phase(1.00, {4096: 0.1, 16384: 0.3, 32768: 0.4, 65536: 0.2}, 0.1),
)
# What can be trained on: the tasks by how often each is drawn, and the context lengths.
RECIPES: dict[str, tuple[Mapping[str, float], Sequence[Phase]]] = {
    "ruler": (TASK_WEIGHTS, PHASES),
    "stories": (STORY_WEIGHTS, STORY_PHASES),
    "long-stories": (LONG_STORY_WEIGHTS, LONG_STORY_PHASES),
}


def phase_at(progress: float, phases: Sequence[Phase] = PHASES) -> Phase:
    """The phase of a progress in [0, 1]."""
    ends = [phase.end for phase in phases]
    return phases[min(bisect.bisect_right(ends, progress), len(phases) - 1)]


def length_at(step: int, progress: float, phases: Sequence[Phase] = PHASES) -> int:
    """The context length of a step: the same draw on every rank."""
    lengths = phase_at(progress, phases).lengths
    return random.Random(f"length/{step}").choices(list(lengths), list(lengths.values()))[0]


class Corpus:
    """The training text, as tokens for plain-text rows and as characters for haystacks."""

    def __init__(self, documents: list[Document], tokens: np.ndarray):
        self.tokens = tokens
        self.bytes_by_document = {f"{d.domain}/{d.name}": len(d.text.encode()) for d in documents}
        self.haystacks = [d.text for d in documents if d.domain == "prose" and len(d.text) > 20_000]
        if not self.haystacks:
            raise ValueError("no prose document of 20,000 characters to hide needles in; add prose/train")

    @classmethod
    def build(cls, documents: list[Document], tokenizer: Tokenizer, cache: Path | None) -> Corpus:
        """Tokenise all documents, each between a begin and an end token; reuse `cache` when it exists."""
        if cache is not None and cache.exists():
            return cls(documents, np.load(cache, mmap_mode="r"))
        parts = []
        for start in range(0, len(documents), 64):
            for encoding in tokenizer.encode_batch([d.text for d in documents[start : start + 64]]):
                parts.append(np.array([BOS_ID, *encoding.ids, EOS_ID], dtype=np.uint16))
        tokens = np.concatenate(parts)
        if cache is not None:
            np.save(cache, tokens)
        return cls(documents, tokens)


def training_options(rng: random.Random, task: str, length: int) -> Training:
    """Counts around the task's own, and as many questions a context as a third of the length allows."""
    most = max(length // 160, 1)
    questions = min(rng.choice((1, 2, 4, 8, 16, 32) if length <= 4096 else (1, 4, 16, 32, 64)), most)
    if task in STORY_TASKS:
        # The least story has ten chapters, which fit a short context only with little prose in each.
        short = (30, 30) if task == "story_chain" else (30, 70)  # a chain's further sentences need room
        filler = rng.choice(short if length <= 1024 else (60, 150, 500))
        return Training(
            questions=min(questions, length // 256), filler=filler, invented_share=rng.choice((0.0, 0.5, 1.0))
        )
    invented = 0.3 if rng.random() < 0.5 else 0.0
    if task == "vt":
        chains = min(rng.choice((1, 1, 1, 2, 4, 8, 16)), max(length // 512, 1))
        hops = rng.choice((4, 4, 2, 3, 5, 6)) if length > 1024 else rng.choice((4, 2, 3))
        return Training(questions=min(questions, chains), chains=chains, hops=hops)
    if task == "fwe":
        return Training()
    if task == "niah_multivalue":
        values = rng.choice((4, 4, 4, 2, 3, 5, 6))
        questions = max(questions // 4, 1)
        return Training(questions=questions, values=values, needles=questions, invented_share=invented)
    if task == "niah_multiquery":
        queries = rng.choice((4, 4, 4, 2, 3, 5, 6))
        questions = max(questions // 4, 1)
        return Training(
            questions=questions, queries=queries, needles=questions * queries, invented_share=invented
        )
    if task == "niah_multikey_3" or NIAH[task].value == "uuids":
        questions = max(min(questions, length // 400), 1)
    needles = max(questions, min(rng.choice((0, 4, 8, 16, 64)), length // 64))
    return Training(questions=questions, needles=needles, invented_share=invented)


def encode_sample(tokenizer: Tokenizer, sample: Sample) -> tuple[list[int], list[int]]:
    """Token ids with their classes: begin, prompt, prefix, answer, further turns, end."""
    ids, classes = [BOS_ID], [IGNORE]
    segments = [(sample.prompt + sample.answer_prefix, CONTEXT), (sample.answer, ANSWER)]
    for turn in sample.more:
        segments += [(turn.question + turn.answer_prefix, CONTEXT), (turn.answer, ANSWER)]
    for text, kind in segments:
        part = tokenizer.encode(text).ids
        ids += part
        classes += [kind] * len(part)
    return [*ids, EOS_ID], [*classes, ANSWER]


class RowMaker:
    """Rows of one process: text rows cut from the token stream, task rows from the generators, drawn by `weights`."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        seed: int,
        worker: int,
        weights: Mapping[str, float] = TASK_WEIGHTS,
    ):
        self.corpus, self.tokenizer, self.seed, self.weights = corpus, tokenizer, seed, weights
        self.rng = random.Random(f"rows/{seed}/{worker}")
        self.index = worker * 10_000_000
        self.sizer = Sizer(lambda text: len(tokenizer.encode(text).ids), special_tokens=2, least_fill=0.85)
        self.skipped = 0

    def text(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """A stretch of the corpus and its row's kinds, [length + 1] each: the last token is only predicted."""
        start = self.rng.randrange(max(len(self.corpus.tokens) - length - 1, 1))
        ids = np.resize(np.asarray(self.corpus.tokens[start : start + length + 1]), length + 1)
        return ids, np.full(length + 1, TEXT, dtype=np.uint8)

    def task(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """A task row; the rest of the row after the sample is ignored. Falls back to text when none fits."""
        task = self.rng.choices(list(self.weights), list(self.weights.values()))[0]
        options = training_options(self.rng, task, length)
        haystack = self.rng.choice(self.corpus.haystacks)
        self.index += 1
        try:
            sample = self.sizer.fit(
                task, length, haystack=haystack, seed=self.seed, index=self.index, words="train",
                training=options, reserve=64, tries=3,
            )  # fmt: skip
        except ValueError:
            # The smallest haystack with this many questions is longer than the row.
            self.skipped += 1
            return self.text(length)
        encoded, kinds = encode_sample(self.tokenizer, sample)
        ids = np.full(length + 1, EOS_ID, dtype=np.uint16)
        classes = np.full(length + 1, IGNORE, dtype=np.uint8)
        count = min(len(encoded), length + 1)
        ids[:count], classes[:count] = encoded[:count], kinds[:count]
        return ids, classes

    def batch(self, length: int, rows: int, text_share: float) -> tuple[np.ndarray, np.ndarray]:
        """`rows` rows of `length + 1` tokens."""
        made = [
            self.text(length) if self.rng.random() < text_share else self.task(length) for _ in range(rows)
        ]
        return np.stack([ids for ids, _ in made]), np.stack([classes for _, classes in made])


def _work(maker: RowMaker, queues: dict[int, Any], progress: Any, stop: Any, tokens: int, phases) -> None:
    while not stop.is_set():
        # A little ahead of time, so that the first batches of a phase are ready.
        phase = phase_at(progress.value + 0.01, phases)
        open_lengths = [n for n in phase.lengths if not queues[n].full()]
        if not open_lengths:
            time.sleep(0.003)
            continue
        length = min(open_lengths, key=lambda n: (queues[n].qsize() + maker.rng.random()) / phase.lengths[n])
        made = maker.batch(length, max(tokens // length, 1), phase.text)
        while not stop.is_set():
            try:
                queues[length].put(made, timeout=0.2)
                break
            except queue.Full:
                continue


class BatchSource:
    """Worker processes that fill one queue a length; `get` waits for the next batch of a length."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        *,
        tokens: int,
        workers: int,
        seed: int,
        rank: int = 0,
        weights: Mapping[str, float] = TASK_WEIGHTS,
        phases: Sequence[Phase] = PHASES,
        depth: int = 24,
    ):
        context = multiprocessing.get_context("fork")
        lengths = sorted({length for phase in phases for length in phase.lengths})
        self.corpus = corpus
        self.queues = {length: context.Queue(depth) for length in lengths}
        self.progress = context.Value("d", 0.0)
        self._stop = context.Event()
        self.waited_s = 0.0
        self._processes = []
        for worker in range(workers):
            maker = RowMaker(corpus, tokenizer, seed, rank * 1000 + worker, weights)
            arguments = (maker, self.queues, self.progress, self._stop, tokens, phases)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)

    def get(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The next batch of rows of this length. Errors: queue.Empty when the workers give none for two minutes."""
        start = time.perf_counter()
        made = self.queues[length].get(timeout=120)
        self.waited_s += time.perf_counter() - start
        return made

    def close(self) -> None:
        """Stop the workers; unread batches are thrown away."""
        self._stop.set()
        for made in self.queues.values():
            made.cancel_join_thread()
        for process in self._processes:
            process.terminate()
            process.join(timeout=5)
