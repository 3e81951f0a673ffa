"""Stage one: every prompt of a job, in files. Needs the model's tokenizer, not its weights."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine.errors import InputError
from routesparse.engine.evaluation.runner.job import Job
from routesparse.engine.evaluation.suites.registry import find
from routesparse.engine.evaluation.suites.source import Source
from routesparse.engine.evaluation.suites.suite import Example, Request, read_rows
from routesparse.engine.models.load import load_tokenizer
from routesparse.engine.progress import Progress


@dataclass(frozen=True)
class Prepared:
    """One prompt as stored. tokens: with the special ones. sha256: of the text that the model reads."""

    length: int
    example: Example
    tokens: int
    sha256: str

    @property
    def text(self) -> str:
        return self.example.prompt + self.example.answer_prefix

    @property
    def sample_id(self) -> str:
        return f"{self.length}/{self.example.task}/{self.example.index}"


def prepare(job: Job, progress: Progress) -> int:
    """Write the prompts that are not there yet; returns how many prompts the job has.

    Errors: InputError where the folder holds prompts of another seed or tokenizer, or a prompt cannot be made.
    """
    loaded = load_tokenizer(job.model)
    source, total = Source(job.data, loaded.tokenizer), 0
    pairs = [(length, task) for length in job.lengths for task in job.tasks]
    for place, (length, task) in enumerate(pairs):
        progress("prepare", place, len(pairs))
        header = _header(job, length, task, loaded.tokenizer_hash)
        path = job.prompts(length, task)
        known = _known(path, header, job.n)
        if known is None:
            made = find(job.suite).examples(Request(task, length, job.n, job.seed), source)
            _write(path, header, [_prepared(example, length, source) for example in made])
        total += len(list(read_prepared(job, length, task)))
    progress("prepare", len(pairs), len(pairs))
    return total


def _header(job: Job, length: int, task: str, tokenizer: str) -> dict[str, Any]:
    return {
        "suite": job.suite,
        "task": task,
        "length": length,
        "n": job.n,
        "seed": job.seed,
        "tokenizer": tokenizer,
    }


def _known(path: Path, header: dict[str, Any], n: int) -> int | None:
    """How many prompts a file of the same kind has, None where it has to be made (anew, with more of them)."""
    if not path.exists():
        return None
    found = _header_of(path)
    other = [name for name in header if name != "n" and found.get(name) != header[name]]
    if other:
        raise InputError(
            f"{path} holds prompts with {other[0]} {found.get(other[0])!r}, not {header[other[0]]!r}; choose another "
            "--out"
        )
    return found["n"] if found["n"] >= n else None


def _header_of(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        return json.loads(file.readline())


def _prepared(example: Example, length: int, source: Source) -> dict[str, Any]:
    example = _asked_at_once(example, source)
    text = example.prompt + example.answer_prefix
    tokens = source.count(text) + source.special_tokens
    if tokens + example.new_tokens > length:
        raise InputError(
            f"{example.task}, prompt {example.index} takes {tokens} tokens and writes {example.new_tokens}, together "
            f"more than {length}; raise --lengths"
        )
    return dataclasses.asdict(example) | {
        "tokens": tokens,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


def _asked_at_once(example: Example, source: Source) -> Example:
    """With the space before the answer at the end of the prompt, where the tokenizer keeps it apart.

    The tokens are the same, but else the prompt's last row would predict that space alone, and decoding, which is
    dense, would look the answer up whatever the plan read: on the bundled model a window of 128 tokens found every
    needle so.
    """
    if not example.answer.startswith(" ") or source.encode(example.answer)[:1] != source.encode(" "):
        return example
    return dataclasses.replace(
        example, answer_prefix=example.answer_prefix + " ", answer=example.answer.removeprefix(" ")
    )


def _write(path: Path, header: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in (header, *rows)), "utf-8")
    partial.replace(path)


def check_prepared(job: Job) -> None:
    """Errors: InputError where prompts of the job are not prepared."""
    for length in job.lengths:
        for task in job.tasks:
            path = job.prompts(length, task)
            if not path.exists():
                raise InputError(f"{path} is not there; run the stage prepare first")
            known = _header_of(path)["n"]
            if known < job.n:
                raise InputError(
                    f"{path} was made for {known} prompts, not {job.n}; run the stage prepare first"
                )


def read_prepared(job: Job, length: int, task: str) -> Iterator[Prepared]:
    """The job's prompts of one length and task."""
    for row in read_rows(job.prompts(length, task))[1 : job.n + 1]:
        tokens, sha256 = row.pop("tokens"), row.pop("sha256")
        yield Prepared(length, Example(**row), tokens, sha256)


def all_prepared(job: Job) -> list[Prepared]:
    """Lengths outermost and tasks innermost, so that a run cut short has some of every task.

    Each round has its tasks in an order of its own, the same in every process: else processes that take prompts in
    turn would keep to a few tasks each, and a run cut short would have least of the slowest.

    Errors: InputError where prompts are not prepared.
    """
    check_prepared(job)
    found = []
    for length in job.lengths:
        by_task = [list(read_prepared(job, length, task)) for task in job.tasks]
        for index in range(max(map(len, by_task), default=0)):
            turn = [by_task[place] for place in np.random.default_rng(index).permutation(len(by_task))]
            found += [prompts[index] for prompts in turn if index < len(prompts)]
    return found
