"""Prompts with gold answers, from JSON lines: what ``routesparse tune --target answer=...`` measures.

One question a line: "prompt", the text that the model reads; "answer", what it should go on with; "document", what
questions share that are not independent (each its own where it is missing). The files that ``routesparse evaluate
--stage prepare`` leaves under prompts/ are read too: their first line is a header, "answer_prefix" ends the prompt, and
"cluster" is the document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from routesparse.engine.calibrate.prompts import Window
from routesparse.engine.errors import CalibrationError, shortened
from routesparse.engine.files import plain_files
from routesparse.engine.schema import Holds, Text, checked, from_json, in_file

SUFFIX = ".jsonl"
_MOST_BYTES = 1 << 28


Words = Annotated[str, Holds(len, "a text")]


@in_file(more=True)
@dataclass(frozen=True)
class Question:
    """One line of a file."""

    prompt: Words
    answer: Words
    document: Text | None = None
    cluster: Text | None = None
    answer_prefix: str | None = None


def are_questions(paths: Sequence[Path]) -> bool:
    """Whether these are files of questions. Errors: CalibrationError for some beside texts, which are another claim."""
    found = [path.suffix == SUFFIX for path in paths]
    if any(found) and not all(found):
        raise CalibrationError(
            f"{SUFFIX} files of questions and texts can't be measured together; pass one kind of --prompts"
        )
    return any(found)


def read_questions(path: Path, domain: str, tokenizer: Any) -> list[Window]:
    """The questions of a file, in its order. Errors: CalibrationError, which names the line."""
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    found = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            value = from_json(line)
            if number == 1 and isinstance(value, dict) and "prompt" not in value and "suite" in value:
                continue
            question = checked(Question, value)
            text = question.prompt + (question.answer_prefix or "")
            asked, answer = (
                tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]
                for part in (text, question.answer)
            )
            if not asked or not answer:
                raise ValueError("the prompt or the answer has no token")
        except ValueError as error:
            raise CalibrationError(
                f'line {number} of {shortened(path)}: {error}; write {{"prompt": "...", "answer": "..."}} a line'
            ) from None
        digest = hashlib.sha256(text.encode()).hexdigest()
        document = question.document or question.cluster or digest[:16]
        found.append(Window(domain, document, digest, 0, (*begin, *asked), tuple(answer)))
    if not found:
        raise CalibrationError(f"{shortened(path)} holds no question; pass a file with one a line")
    return found


def _lines(path: Path) -> list[str]:
    try:
        text = plain_files.read_bounded(path, _MOST_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"{shortened(path)} can't be read ({getattr(error, 'strerror', None) or error}); pass another --prompts"
        ) from None
    return [line for line in text.split("\n") if line.strip()]
