"""A model's tokenizer in a process of its own, so that no file of a model can stop or fill the one that asks.

A question may take SECONDS of a processor, FILE_S_PER_MB more for a tokenizer that is read and TEXT_S_PER_MB for a
million characters, and MEMORY_BYTES and CHARACTER_BYTES more a character. Past a bound the process ends, the asker gets
a ModelError. How many tokens a text has, and a question that failed, is not asked again until a file has changed. The
process (bounded_process.py) takes 30 MB with the bundled model, 0.4 GB where it needs transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from routesparse.engine.errors import ModelError, PromptError, shortened
from routesparse.engine.files.bounded_process import BoundedProcess, NoAnswerError
from routesparse.engine.files.plain_files import state_of

SECONDS, FILE_S_PER_MB, TEXT_S_PER_MB = 5.0, 1.0, 15.0  # measured, for the two: 0.2 and 3
MEMORY_BYTES, CHARACTER_BYTES = 1 << 30, 256  # measured: 0.3 GB and 110
_MOST_KNOWN = 256

_process = BoundedProcess("routesparse.engine.models.tokenizer_server", ModelError)
_known: dict[object, tuple[bool, Any]] = {}  # whether a question was answered, and what or why not


def largest_id(folder: Path) -> int:
    """The largest token id of a tokenizer.json that can be used. Errors: ModelError."""
    return int(_ask(folder, "check", "a 1ä漢\n")[2])


def count(folder: Path, text: str) -> tuple[int, int, int]:
    """A text's tokens, by itself and with the model's first token; the largest id of any text. Errors: ModelError."""
    alone, whole, largest = _ask(folder, "count", text)
    return int(alone), int(whole), int(largest)


def part(folder: Path, text: str, tokens: int, side: str) -> str:
    """The first or last so many tokens of a text, as ``Tokens.part`` cuts. Errors: ModelError."""
    return str(_ask(folder, "part", text, tokens, side))


def chat(folder: Path, messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt that the model's chat template makes of messages. Errors: PromptError, ModelError."""
    rendered, found = _ask(folder, "chat", json.dumps(messages))
    if not rendered:
        raise PromptError(
            f"model {folder.name!r} can't render messages: {found}; choose a model with a chat template that takes "
            'them, or write the text under "prompt"'
        )
    return str(found)


def _ask(folder: Path, what: str, text: str, *values: object) -> Any:
    """Errors: ModelError for whatever the tokenizer does but answer."""
    states = [state_of(folder / name) for name in ("tokenizer.json", "tokenizer_config.json")]
    key = (folder, what, hash(text), *values, *states)
    size = 0 if states[0] is None else states[0][1]
    seconds = SECONDS + FILE_S_PER_MB * size / 1e6 + TEXT_S_PER_MB * len(text) / 1e6
    memory = MEMORY_BYTES + CHARACTER_BYTES * len(text)
    with _process.lock:
        known = _known.get(key)
        if known is None:
            asked, content = [str(folder), what, *values], text.encode("utf-8", "surrogatepass")
            try:
                (found,) = _process.ask(asked, content, seconds=seconds, memory_bytes=memory)
                known = True, json.loads(found)
            except NoAnswerError as error:
                known = False, str(error)
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            if what == "count" or not known[0]:  # other answers hold texts
                _known[key] = known
    answered, why = known
    if answered:
        return why
    if why == "ValueError: not readable JSON":
        raise ModelError(f"{folder.name}/tokenizer.json is not readable JSON; download the model again")
    why = " ".join(shortened(why).split()).rstrip(".")
    raise ModelError(f"model {folder.name!r} cannot be loaded: its tokenizer fails ({why}); check its files")
