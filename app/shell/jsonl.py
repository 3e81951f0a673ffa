"""The prompts of an uploaded .jsonl file (engine/prompts/jsonl.py), where no model is chosen that could render messages."""

from __future__ import annotations

from routesparse.engine.errors import PromptError
from routesparse.engine.prompts.jsonl import read_rows


def jsonl_prompts(text: str) -> tuple[list[str], list[str]]:
    """The prompt of every line that has one, in order, and what is wrong with each other line.

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
