"""Stage one: every prompt of a job, in files. Needs the model's tokenizer, not its weights."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine.crew.crews import ONE, Processes
from routesparse.engine.crew.share import failures, share
from routesparse.engine.crew.work import Piece, Work
from routesparse.engine.errors import InputError
from routesparse.engine.lab import study
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.suites.registry import find
from routesparse.engine.lab.suites.source import Example, Request, Source
from routesparse.engine.lab.suites.suite import read_rows
from routesparse.engine.models.load import load_tokenizer
from routesparse.engine.progress import Progress

_MESSAGE = "the user's message"  # whose place in a chat template is looked for
CHUNK = 4  # prompts that one of several processes makes at a time
SPARE = 8  # tokens that a prompt may take more than its suite counted


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


def prepare(job: Job, progress: Progress, processes: Processes = ONE) -> int:
    """Write the prompts that are not there yet; returns how many prompts the job has.

    processes: of this machine; on a cluster one prepares.
    Errors: InputError where the folder holds prompts of another seed or tokenizer, or a prompt cannot be made.
    """
    tokenizer = load_tokenizer(job.model).tokenizer_hash
    shared = {
        "suite": job.suite,
        "n": job.n,
        "seed": job.seed,
        "tokenizer": tokenizer,
        "chat": job.chat or None,
    }
    headers = {
        (length, task): {**shared, "task": task, "length": length}
        for length in job.lengths
        for task in job.tasks
    }
    missing = [pair for pair, header in headers.items() if _is_missing(job.prompts(*pair), header)]
    _check_there(job, missing)
    several = processes.ray is None and (processes.count or 1) > 1
    chunk = CHUNK if several else job.n
    # The longest first: the last ones to end should be short.
    lots = [
        [
            Piece(
                f"{task} at {length} tokens, from prompt {first} on",
                (length, task, first, min(first + chunk, job.n)),
            )
        ]
        for length, task in sorted(missing, reverse=True)
        for first in range(0, job.n, chunk)
    ]
    made: dict[tuple[int, str], dict[int, list[dict[str, Any]]]] = defaultdict(dict)
    done = 0

    def keep(piece: Piece, rows: list[dict[str, Any]]) -> None:
        nonlocal done
        length, task, first, _ = piece.given
        made[length, task][first] = rows
        done += 1
        progress("prepare", done, len(lots))
        if len(made[length, task]) == -(-job.n // chunk):
            parts = made.pop((length, task))
            _write(
                job.prompts(length, task),
                headers[length, task],
                [row for _, part in sorted(parts.items()) for row in part],
            )

    if several and lots:
        crew, count = processes.crew(functools.partial(_opened, job))
        outcome = share(Work("prepare", functools.partial(_opened, job), lots, keep), crew, count, study.note)
        if outcome.failed:
            raise InputError(failures(outcome, "prompts"))
    elif lots:
        make = _opened(job, 0)
        for (piece,) in lots:
            keep(piece, make(piece.given))
    progress("prepare", len(lots), len(lots))
    return sum(len(list(read_prepared(job, *pair))) for pair in headers)


def _is_missing(path: Path, header: dict[str, Any]) -> bool:
    """Whether a file has to be made (anew, with more prompts). Errors: InputError where it holds others."""
    found = _known(path)
    if not found["n"]:
        return True
    other = next((name for name in header if name != "n" and found.get(name) != header[name]), None)
    if other is not None:
        raise InputError(
            f"{path} holds prompts with {other} {found.get(other)!r}, not {header[other]!r}; choose another --out"
        )
    return found["n"] < header["n"]


def _check_there(job: Job, missing: Sequence[tuple[int, str]]) -> None:
    """Make the last prompt of each task, so that files that are missing or too short are named before the work.

    Errors: InputError.
    """
    source, template = _source(job)
    for task, length in {task: length for length, task in sorted(missing, reverse=True)}.items():
        examples = find(job.suite).examples
        asked = Request(task, length - template.tokens, job.n, job.seed, around=template.tokens)
        if next(iter(examples(dataclasses.replace(asked, first=job.n - 1), source)), None) is None:
            there = sum(1 for _ in examples(asked, source))
            raise InputError(
                f"{job.suite} has {there} prompts of {task} in {job.data}, not {job.n}; pass --n {there}"
                if there
                else f"{job.suite} has no prompt of {task} in {job.data}; pass another --data, or other --tasks"
            )


def _opened(job: Job, place: int) -> Callable[[tuple[int, str, int, int]], list[dict[str, Any]]]:
    """A process's own tokenizer and texts: makes the prompts of one length and task from the first up to another."""
    source, template = _source(job)

    def prepared(request: Request) -> Iterator[dict[str, Any]]:
        return (_prepared(template.around(one), source) for one in find(job.suite).examples(request, source))

    def make(wanted: tuple[int, str, int, int]) -> list[dict[str, Any]]:
        length, task, first, end = wanted
        request, rows = Request(task, length - template.tokens, end, job.seed, first, template.tokens), []
        for index, row in enumerate(prepared(request), first):
            # The suite counts neither the answer's space nor what texts take more where they meet a template. Such a
            # prompt alone is made shorter, so that all others stay those that were evaluated.
            if row["tokens"] + row["new_tokens"] > length:
                shorter = dataclasses.replace(
                    request,
                    length=request.length - SPARE,
                    around=request.around + SPARE,
                    first=index,
                    n=index + 1,
                )
                row = next(prepared(shorter), row)
            rows.append(_fitting(row, length))
        return rows

    return make


@dataclass(frozen=True)
class _Template:
    """What a model's chat template puts around a user's message that it is to answer. tokens: of both together."""

    before: str = ""
    behind: str = ""
    tokens: int = 0

    def around(self, example: Example) -> Example:
        """The prompt as the user's message; the answer begins with its prefix."""
        spans, shift = example.more.get("evidence", ()), len(self.before)
        more = example.more | ({"evidence": [[a + shift, b + shift] for a, b in spans]} if spans else {})
        return dataclasses.replace(example, prompt=self.before + example.prompt + self.behind, more=more)


def _source(job: Job) -> tuple[Source, _Template]:
    """Texts and tokenizer of a job, and its template. Errors: InputError for a model without a chat template."""
    tokenizer = load_tokenizer(job.model).tokenizer
    source = Source(job.data, tokenizer)
    if not job.chat:
        return source, _Template()
    if not tokenizer.chat_template:
        raise InputError(f"{Path(job.model).name} has no chat template; leave out --chat")
    message = [{"role": "user", "content": _MESSAGE}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    before, _, behind = text.partition(_MESSAGE)
    # The begin token stands before every prompt already.
    before = before.removeprefix(tokenizer.bos_token or "")
    return source, _Template(before, behind, source.count(before) + source.count(behind))


def _known(path: Path) -> dict[str, Any]:
    """A file's header: what its prompts are of, and how many there are; n is 0 where there is no file."""
    if not path.exists():
        return {"n": 0}
    with path.open(encoding="utf-8") as file:
        return json.loads(file.readline())


def _prepared(example: Example, source: Source) -> dict[str, Any]:
    example = _asked_at_once(example, source)
    text = example.prompt + example.answer_prefix
    return dataclasses.asdict(example) | {
        "tokens": source.count(text) + source.special_tokens,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


def _fitting(row: dict[str, Any], length: int) -> dict[str, Any]:
    """The row. Errors: InputError where prompt and answer take more than the length."""
    if row["tokens"] + row["new_tokens"] > length:
        raise InputError(
            f"{row['task']}, prompt {row['index']} takes {row['tokens']} tokens and writes {row['new_tokens']}, "
            f"together more than {length}; raise --lengths"
        )
    return row


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
            known = _known(path)["n"]
            if known < job.n:
                raise InputError(f"{path} holds {known} prompts, not {job.n}; run the stage prepare first")


def read_prepared(job: Job, length: int, task: str) -> Iterator[Prepared]:
    """The job's prompts of one length and task."""
    for row in read_rows(job.prompts(length, task))[1 : job.n + 1]:
        tokens, sha256 = row.pop("tokens"), row.pop("sha256")
        yield Prepared(length, Example(**row), tokens, sha256)


def all_prepared(job: Job) -> list[Prepared]:
    """A prompt of every task and length, then the next ones, so that a run cut short has as many of each.

    Each round has its own order, the same in every process: else processes that take prompts in turn would keep to a
    few tasks each, and a run cut short would have least of the slowest.

    Errors: InputError where prompts are not prepared.
    """
    check_prepared(job)
    found = []
    cells = [list(read_prepared(job, length, task)) for length in job.lengths for task in job.tasks]
    for index in range(max(map(len, cells), default=0)):
        turn = [cells[place] for place in np.random.default_rng(index).permutation(len(cells))]
        found += [prompts[index] for prompts in turn if index < len(prompts)]
    return found
