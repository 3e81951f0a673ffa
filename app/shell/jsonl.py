"""The prompts of an uploaded .jsonl file: one JSON object a line, its text under one of a few names."""

from __future__ import annotations

import json

from routesparse.engine.errors import PromptError

JSONL_FIELDS = ("prompt", "text", "input", "context")


def jsonl_prompts(text: str) -> tuple[list[str], list[str]]:
    """The prompt of every line that is an object with a text field (prompt, text, input or context), in order, and what
    is wrong with each other line.

    Errors: PromptError where no line has a prompt; it names the first line that is wrong.
    """
    found, wrong = [], []
    # Not splitlines: JSON allows U+2028 and its kind inside of a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(_line_prompt(line, number))
        except PromptError as error:
            wrong.append(str(error))
    if not found:
        raise PromptError(
            wrong[0] if wrong else "the file has no line with a prompt; pass one JSON object a line"
        )
    return found, wrong


def _line_prompt(line: str, number: int) -> str:
    """Errors: PromptError naming the line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"line {number} is no JSON; pass one object a line, or a .txt file") from error
    texts = [value[name] for name in JSONL_FIELDS if isinstance(value, dict) and name in value]
    if not texts or not isinstance(texts[0], str):
        raise PromptError(
            f"line {number} has no text under {', '.join(JSONL_FIELDS)}; name the prompt like this, "
            "or pass a .txt file"
        )
    try:
        texts[0].encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"line {number} escapes half a character (\\ud800 to \\udfff); write it as UTF-8"
        ) from error
    return texts[0]
