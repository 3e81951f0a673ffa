"""Where prompts come from: a folder of texts and benchmark files, and a tokenizer that sizes and cuts them.

<data>/benchmarks/<suite>/...    files in the suites' own formats
<data>/prose/test/*.txt          haystacks: text that no model of ours was trained on

None of it ships. The sample prompts in data/samples do not stand in: they are one book, hence one cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators.samples import Sample
from routesparse.engine.lab.generators.tasks import fill
from routesparse.engine.lab.generators.texts import Document, read_folder

# Added to the user's seed: disjoint from the seeds of training and of the selection study.
SEED_OFFSET = 191_000


@dataclass(frozen=True)
class Example:
    """One prompt of a task. The model reads ``prompt + answer_prefix`` and writes at most ``new_tokens``.

    gold: what the suite's scorer compares with, in the suite's own format. answer: a reference completion, whose
    log-likelihood is measured; empty where the suite has none. cluster: what prompts share that are not independent,
    such as their document. more: further fields of the suite's prediction rows.
    """

    task: str
    index: int
    prompt: str
    answer_prefix: str
    gold: Any
    answer: str
    new_tokens: int
    cluster: str
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """The prompts of one task, ``first`` up to n: at most ``length`` tokens each with the answer's room.

    A prompt does not depend on ``first`` or n, so that several processes can make one task's. around: tokens of a chat
    template, which the length does not hold.
    """

    task: str
    length: int
    n: int
    seed: int
    first: int = 0
    around: int = 0


class Source:
    """data: the folder above. tokenizer: a fast tokenizer, called as transformers' are."""

    def __init__(self, data: Path, tokenizer: Any) -> None:
        self.data, self.tokenizer = data, tokenizer

    def count(self, text: str) -> int:
        """Tokens of a text, without special ones."""
        return len(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special ones."""
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    @property
    def special_tokens(self) -> int:
        """Tokens in front of every prompt."""
        return int(self.tokenizer.bos_token_id is not None)

    def folder(self, suite: str) -> Path:
        """Where a suite's files lie."""
        return self.data / "benchmarks" / suite

    def file(self, suite: str, *patterns: str) -> Path | None:
        """The first file of a suite's folder that matches a pattern, in the patterns' order; None for none."""
        root = self.folder(suite)
        return next((path for pattern in patterns for path in sorted(root.glob(pattern))), None)

    def needed_file(self, suite: str, *patterns: str) -> Path:
        """Errors: InputError where no file matches; it names where the file is looked for."""
        found = self.file(suite, *patterns)
        if found is None:
            raise InputError(
                f"{suite} needs {' or '.join(str(self.folder(suite) / pattern) for pattern in patterns)}, which is not "
                "there; download it from the benchmark's own home, or choose other --tasks"
            )
        return found

    @cached_property
    def documents(self) -> list[Document]:
        """Prose of the test split. Errors: InputError where there is none."""
        found = list(read_folder(self.data / "prose" / "test"))
        if not found:
            raise InputError(
                f"{self.data / 'prose' / 'test'} holds no *.txt; put some books there, each a UTF-8 text (prompts of "
                "one book are one cluster, so that one alone gives no interval), or pass another --data"
            )
        return found

    def prose(self, index: int) -> Document:
        """The haystack of a sample: documents in turn."""
        return self.documents[index % len(self.documents)]

    def cut_middle(self, text: str, room: int) -> tuple[str, bool]:
        """The text if it fits ``room`` tokens, else its first and last half of them; and whether it was cut."""
        ids = self.encode(text)
        if len(ids) <= room:
            return text, False
        # Decoded halves may encode to a token more where they meet.
        half = (room - 2) // 2
        return self.decode(ids[:half]) + self.decode(ids[-half:]), True

    def cut_end(self, text: str, room: int) -> tuple[str, bool]:
        """The text if it fits, else its first ``room`` tokens; and whether it was cut."""
        ids = self.encode(text)
        return (text, False) if len(ids) <= room else (self.decode(ids[: room - 1]), True)

    def room(self, request: Request, new_tokens: int, *fixed: str, spare: int) -> int:
        """Tokens that a prompt leaves to its document, beside the answer and the fixed texts.

        spare: for what texts take more where they meet. Errors: InputError where next to none are left.
        """
        taken = new_tokens + self.special_tokens + sum(map(self.count, fixed)) + spare
        if request.length - taken < 64:
            raise InputError(
                f"{request.length:,} tokens are too few for {request.task}, which writes {new_tokens:,}; raise "
                "--lengths"
            )
        return request.length - taken


def filled(
    source: Source,
    request: Request,
    new_tokens: int,
    make: Callable[[int], Sample],
    guess: float,
    least: int = 1,
) -> Sample:
    """The fullest sample whose prompt and answer stay within the request's length.

    make, guess, least: see ``fill``. Errors: InputError where even the smallest sample does not fit.
    """
    room, special = request.length - new_tokens, source.special_tokens
    return fill(request.task, room, make, source.count, guess=guess, least=least, special_tokens=special)


def as_example(
    task: str, sample: Sample, index: int, new_tokens: int, cluster: str = "", **more: Any
) -> Example:
    """A sample as a prompt of a suite whose gold is a list of strings."""
    return Example(
        task=task,
        index=index,
        prompt=sample.prompt,
        answer_prefix=sample.answer_prefix,
        gold=list(sample.gold),
        answer=sample.answer,
        new_tokens=new_tokens,
        cluster=cluster or f"{task}/{index}",
        more={"evidence": [list(span) for span in sample.needle_spans], **more},
    )
