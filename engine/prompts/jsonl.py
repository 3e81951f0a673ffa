"""Prompts in a .jsonl file, one JSON object a line, as benchmarks and chat services write them.

A prompt is the text of the fields in FIELDS that the object has, in that order, a blank line between them: a long text
stands with its question. What the field ``prompt`` already holds is not repeated, and ``answer_prefix`` ends the prompt
as it stands. Or it is a list of messages with ``role`` and ``content``, which a model's chat template renders.
Whatever of an object is left out is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routesparse.engine.errors import InputError, PromptError, shortened
from routesparse.engine.files.plain_files import few_values
from routesparse.engine.prompts.text import PromptText, clean_label, decode_prompt, read_prompt
from routesparse.engine.schema import no_field_twice

SUFFIX = ".jsonl"
IN_WORDS = "prompt or text, context or document with a question, or messages"
FIELDS = (
    *("instruction", "context", "contexts", "document", "documents", "passage", "passages"),
    *("article", "story"),
    *("content", "text", "input", "prompt", "query", "question"),
)
_ENDING = "answer_prefix"
_MESSAGES = ("messages", "conversation", "conversations", "prompt")
_MOST_NAMED = 8
Message = dict[str, str]
Chat = Callable[[Sequence[Message]], str]  # a model's chat template


@dataclass(frozen=True)
class Row:
    """A line with a prompt. told: of which fields it is made and which were left out; empty where it has one alone."""

    number: int  # of the line
    text: str
    messages: tuple[Message, ...]
    told: str

    def prompt(self, chat: Chat | None) -> str:
        """The text. chat: None where no model is there to render messages. Errors: PromptError, ModelError."""
        if not self.messages:
            return self.text
        if chat is None:
            raise PromptError(
                f"line {self.number} holds messages, which a model's chat template makes a text of, and no model is "
                'asked here; write the text under "prompt"'
            )
        return chat(self.messages)


def read_rows(text: str) -> tuple[list[Row], list[str]]:
    """Every line with a prompt, in order, and what is wrong with each other line.

    Errors: PromptError where no line has a prompt; it names the first line that is wrong.
    """
    found, wrong = [], []
    # Not splitlines: JSON allows U+2028 and its kind inside of a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = _object(line, number)
            # The first line of a file that `evaluate --stage prepare` wrote says what it holds.
            if not (number == 1 and "suite" in value and "prompt" not in value):
                found.append(_row(value, number))
        except PromptError as error:
            wrong.append(str(error))
        except RecursionError:  # what JSON's reader takes may be too deep for the search for texts
            wrong.append(f"line {number} is nested too deeply; name its text prompt")
    if not found:
        raise PromptError([*wrong, "the file has no line with a prompt; pass one JSON object a line"][0])
    return found, wrong


def read_one(path: Path, number: int | None, chat: Chat) -> tuple[PromptText, list[str]]:
    """The prompt of a text file, or of a .jsonl file the one with this number (None: the first), and what to say of it.

    Errors: PromptError, ModelError; InputError for a number that is not there.
    """
    whole = read_prompt(path)
    if path.suffix.lower() != SUFFIX:
        if number is not None:
            raise InputError(f"--number {number} is for a {SUFFIX} file, {path.name} is one; leave it out")
        return whole, []
    rows, wrong = read_rows(whole.text)
    if number is not None and number > len(rows):
        raise InputError(f"--number {number}: {path.name} holds {len(rows):,} prompts; pass one of them")
    row = rows[(number or 1) - 1]
    more = f", and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
    told = [f"left out: {wrong[0]}{more}"] if wrong else []
    told += [row.told] if row.told else []
    if number is None and len(rows) > 1:
        told.append(f"the first of {len(rows):,} prompts; --number picks another")
    return decode_prompt(row.prompt(chat).encode(), clean_label(f"{path.name} #{number or 1}")), told


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(few_values(line), object_pairs_hook=no_field_twice)
    except (ValueError, RecursionError) as error:
        why = shortened(error)
        raise PromptError(
            f"line {number} is no JSON ({why}); pass an object a line, or a .txt file"
        ) from error
    return value if isinstance(value, dict) else {}


def _row(value: dict[str, Any], number: int) -> Row:
    """Errors: PromptError naming the line."""
    body = value.get("body")
    if isinstance(body, dict) and "messages" in body:  # a line of OpenAI's batch files
        value = body
    messages: tuple[Message, ...] = ()
    texts: dict[str, str] = {}
    for name in _MESSAGES:
        if isinstance(value.get(name), list) and any(isinstance(one, dict) for one in value[name]):
            taken, messages = [name], _messages(value[name], number)
            break
    else:
        texts = {name: text for name in FIELDS if (text := _text(value.get(name))).strip()}
        whole = texts.get("prompt", "")
        texts = {name: text for name, text in texts.items() if name == "prompt" or text not in whole}
        taken = list(texts)
    if not taken:
        has = f"only {', '.join(map(clean_label, [*value][:_MOST_NAMED]))}" if value else "nothing"
        raise PromptError(
            f"line {number} has no text under {IN_WORDS}, {has}; name the prompt like this, or pass a .txt file"
        )
    text = "\n\n".join(dict.fromkeys(texts.values()))
    if texts and isinstance(value.get(_ENDING), str):
        text += value[_ENDING]
        taken.append(_ENDING)
    try:
        json.dumps([text, messages], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"line {number} escapes half a character (\\ud800 ...); write it as UTF-8"
        ) from error
    return Row(number, text, messages, _told(taken, text, value, number))


def _text(value: Any) -> str:
    """The text of a field; of a list of texts, or of lists of them, all of them."""
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text, value)))
    return value if isinstance(value, str) else ""


def _messages(values: list[Any], number: int) -> tuple[Message, ...]:
    """Errors: PromptError for what is no list of messages with a role and a text."""
    found = []
    for place, one in enumerate(values, start=1):
        role, content = (one.get("role"), one.get("content")) if isinstance(one, dict) else (None, None)
        if isinstance(content, list):  # parts of a message
            parts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in content]
            content = "\n".join(parts) if all(isinstance(part, str) for part in parts) else None
        if not isinstance(role, str) or not isinstance(content, str):
            raise PromptError(
                f'line {number}: message {place} needs "role" and "content", both texts; images, sounds and calls of '
                "tools can't be analysed"
            )
        found.append({"role": role, "content": content})
    return tuple(found)


def _told(taken: Sequence[str], text: str, value: dict[str, Any], number: int) -> str:
    rest = {name: one for name, one in value.items() if name not in taken and one}
    left = [
        clean_label(name)
        for name, one in rest.items()
        if isinstance(one, list | dict) or (isinstance(one, str) and one not in text)
    ]
    if len(taken) < 2 and not left:
        return ""
    more = f" and {len(left) - _MOST_NAMED} more" if left[_MOST_NAMED:] else ""
    names = ", ".join(left[:_MOST_NAMED]) + more
    return f"line {number}: the prompt is {' + '.join(taken)}" + (f"; left out: {names}" if left else "")


def jsonl_prompts(text: str) -> tuple[list[str], list[str]]:
    """The prompt of every line that has one, where no model is chosen that could render messages; in order, and what is
    wrong with each other line.

    Errors: PromptError where no line has a prompt; it names the first line that is wrong.
    """
    rows, wrong = read_rows(text)
    found = []
    for row in rows:
        try:
            found.append(row.prompt(None))
        except PromptError as error:
            wrong.append(str(error))
    if not found:
        raise PromptError(wrong[0])
    return found, wrong
