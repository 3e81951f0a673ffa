"""The study's prompts: windows of text and RULER's tasks.

Development (seed DEVELOPMENT_SEED): rules and their constants may be chosen on these prompts, of documents of the
calibration split (docs have none). Every other seed is reported, on documents of the test split.
A task's haystack is prose, or of DOMAIN where it is named ``TASK:DOMAIN``. Prompts that stress a router:
    text:prose+code   half a window of one domain, then half of another
    text:prose*0.3    a window in which 30 % of the tokens, drawn at random, are its most frequent one
    edge              a fact whose number begins at a multiple of EDGE tokens, one before or one behind, and its return
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from routesparse.engine.calibrate.beside_dense import Text
from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators.needles import NIAH
from routesparse.engine.lab.generators.samples import sample_rng
from routesparse.engine.lab.generators.tasks import TASKS, fit_sample
from routesparse.engine.lab.generators.texts import Document, read_folder
from routesparse.engine.lab.generators.words import key_words

DEVELOPMENT_SEED = 0
SEED_OFFSET = 91_000  # evaluation seeds are disjoint from training's
DOMAINS = ("prose", "code", "dialog", "docs")
TEXT = "text:"
DEFAULT_TASKS = (
    *(TEXT + domain for domain in DOMAINS),
    *("vt", "niah_multivalue", "niah_multiquery", "fwe"),
)
EDGE = 4_096  # tokens of the segments of a CPU, and a multiple of all blocks
STRESS_TASKS = ("edge",)
CHARACTERS_PER_TOKEN = 8  # more than any text has
GOLDEN = 0.618033988749895  # windows at multiples of it, modulo 1, lie far apart whatever their number


@dataclass(frozen=True)
class Item:
    """What names a prompt: with the data folder it makes the same one again."""

    task: str
    length: int
    index: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task}/{self.length}/{self.index}/{self.seed}"


@dataclass(frozen=True)
class Prompt(Text):
    """asked: of a text all positions but the first. gold: the strings that an answer is scored by."""

    gold: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def is_text(self) -> bool:
        return self.name.startswith(TEXT)


def items(tasks: list[str], lengths: list[int], prompts: int, windows: int, seed: int) -> list[Item]:
    """Every prompt, lengths outermost and tasks innermost, so that a run cut short has some of every task."""
    counts = {task: windows if task.startswith(TEXT) else prompts for task in tasks}
    return [
        Item(task, length, index, seed)
        for length in lengths
        for index in range(max(counts.values(), default=0))
        for task, count in counts.items()
        if index < count
    ]


class Prompts:
    """Makes prompts of one data folder; documents are read when they are first needed."""

    def __init__(self, data: Path, tokenizer: Any, seed: int) -> None:
        self._data, self._tokenizer, self._seed = data, tokenizer, seed
        self._sources: dict[str, Source] = {}

    def make(self, item: Item) -> Prompt:
        """Errors: InputError for an unknown task or domain; ValueError where it does not fit its length."""
        if item.task.startswith(TEXT):
            return self._text(item)
        task, _, domain = item.task.partition(":")
        if task not in (*TASKS, *STRESS_TASKS):
            known = ", ".join((*DEFAULT_TASKS, *STRESS_TASKS, *TASKS))
            raise InputError(f"unknown task {item.task!r}; use some of {known}")
        source = self._source(domain or "prose")
        document = source.documents[item.index % len(source.documents)]
        essay = task in STRESS_TASKS or (task in NIAH and NIAH[task].haystack == "essay")
        # A haystack that is made up has no document: its prompt stands for itself.
        about = {**source.about, "documents": [document.name if essay else item.name]}
        if task in STRESS_TASKS:
            return self._edge(item, document.text, about)
        sample = fit_sample(
            task,
            item.length,
            count_tokens=lambda text: len(self._encode(text)[0]),
            haystack=document.text,
            seed=item.seed + SEED_OFFSET,
            index=item.index,
        )
        ids, answer = (
            self._encode(text)[0] for text in (sample.prompt + sample.answer_prefix, sample.answer)
        )
        return Prompt(item.name, item.seed, self._begun(ids), [], answer, sample.gold, about)

    def _text(self, item: Item) -> Prompt:
        """Windows of a split's documents one after another, without end; of each domain as many tokens."""
        told, _, share = item.task.removeprefix(TEXT).partition("*")
        sources = [self._source(domain) for domain in told.split("+")]
        first = sample_rng(item.seed + SEED_OFFSET, item.task, item.length, 0).random()
        start, room = (first + item.index * GOLDEN) % 1, item.length - len(self._begun([]))
        ids: list[int] = []
        names: list[str] = []
        for left, source in zip(range(len(sources), 0, -1), sources, strict=True):
            take = (room - len(ids)) // left
            found, spans = self._encode(stretch(source.text, start, CHARACTERS_PER_TOKEN * take))
            ids += found[:take]
            names += source.within(int(start * len(source.text)), spans[min(take, len(spans)) - 1][1])
        if share:
            common, rng = Counter(ids).most_common(1)[0][0], sample_rng(item.seed, item.task, item.length, 1)
            ids = [common if rng.random() < float(share) else one for one in ids]
        ids = self._begun(ids)
        about = {**sources[0].about, "documents": names}
        return Prompt(item.name, item.seed, ids, list(range(1, len(ids))), [], (), about)

    def _edge(self, item: Item, haystack: str, about: dict[str, Any]) -> Prompt:
        """Errors: InputError for a prompt without an edge in its first two thirds."""
        rng = sample_rng(item.seed + SEED_OFFSET, item.task, item.length, item.index)
        if (edges := (2 * item.length // 3) // EDGE) < 1:
            raise InputError(f"edge needs prompts of {3 * EDGE // 2:,} tokens or more; pass a longer length")
        number = str(rng.randint(1_000_000, 9_999_999))
        text = f" The magic number for {key_words(rng)} is {number}."
        fact, spans = self._encode(text)
        first = text.index(number)
        digits = [at for at, (start, end) in enumerate(spans) if start < first + len(number) and end > first]
        prose = self._encode(stretch(haystack, rng.random(), CHARACTERS_PER_TOKEN * item.length))[0]
        at = EDGE * rng.randint(1, edges) + item.index % 3 - 1 - digits[0]
        again = item.length - item.length // 20 - len(fact)
        ids = (self._begun(prose)[:at] + fact + prose[at:])[:again] + fact
        ids += prose[again : again + item.length - len(ids)]
        return Prompt(item.name, item.seed, ids, [again + place for place in digits], [], (), about)

    def _encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return encoded["input_ids"], encoded["offset_mapping"]

    def _begun(self, ids: list[int]) -> list[int]:
        begin = self._tokenizer.bos_token_id
        return ids if begin is None else [begin, *ids]

    def _source(self, domain: str) -> Source:
        if domain not in self._sources:
            self._sources[domain] = Source(*documents(self._data, domain, self._seed))
        return self._sources[domain]


@dataclass(frozen=True)
class Source:
    """The documents of one domain that a seed's prompts are made of."""

    split: str
    documents: list[Document]

    @cached_property
    def text(self) -> str:
        return "\n\n".join(document.text for document in self.documents)

    @property
    def about(self) -> dict[str, Any]:
        return {"split": self.split}

    def within(self, start: int, characters: int) -> list[str]:
        """Names of the documents that a stretch of the text touches."""
        names, begin, size = [], 0, len(self.text)
        for document in self.documents:
            end = begin + len(document.text)
            if any(start < end + turn and begin + turn < start + characters for turn in (0, size)):
                names.append(document.name)
            begin = end + 2
        return names


def stretch(text: str, start: float, characters: int) -> str:
    """``characters`` of a text that begins anew where it ends, from the share ``start`` of it on."""
    if not text.strip():
        raise InputError("the text is empty; pass some prose, for instance a public-domain book")
    place = int(start * len(text))
    rounds = -(-(place + characters) // len(text))
    return (text * rounds)[place : place + characters]


def documents(data: Path, domain: str, seed: int) -> tuple[str, list[Document]]:
    """The split of a seed's prompts, and its documents. Errors: InputError where the folder holds none."""
    split = "calibration" if seed == DEVELOPMENT_SEED else "test"
    found = list(read_folder(data / domain / split))
    if not found:
        raise InputError(f"{data} holds no {split} documents of {domain!r}; pass another --data or --tasks")
    return split, found
