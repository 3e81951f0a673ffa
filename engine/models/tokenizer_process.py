"""A model's tokenizer in a process of its own, so that no file of a model can stop or fill the one that asks.

A question may take SECONDS of a processor, FILE_S_PER_MB more for a tokenizer that is read and TEXT_S_PER_MB for a
million characters, and MEMORY_BYTES and CHARACTER_BYTES more a character. Past a bound the process ends, the asker gets
a ModelError, and the same question is not asked again until a file has changed. The process is started with the first
question, takes 30 MB with the bundled model (0.4 GB where it needs transformers), and ends with the one that asks.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from routesparse.engine.errors import ModelError, PromptError, shortened
from routesparse.engine.plain_files import state_of

SECONDS, FILE_S_PER_MB, TEXT_S_PER_MB = 5.0, 1.0, 15.0  # measured, for the two: 0.2 and 3
MEMORY_BYTES, CHARACTER_BYTES = 1 << 30, 256  # measured: 0.3 GB and 110
_WAITING_S, _WAITING = 60.0, 3  # by the clock, and for one second of a processor: others want it too
_MOST_FAILURES = 256
_SERVER = "routesparse.engine.models.tokenizer_server"
# One thread and few arenas: others reserve memory that they never use.
_LEAN = {
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
}


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
    with _child.lock:
        why = _failed.get(key)
        if why is None:
            try:
                asked = [str(folder), what, [text, *values], seconds, memory]
                fine, found = _child.ask(asked, _WAITING_S + _WAITING * seconds)
                if fine:
                    return found
                why = found
            except (OSError, ValueError, EOFError) as error:
                out_of_time = isinstance(error, TimeoutError) or _child.end() == -signal.SIGXCPU
                bound = f"{seconds:.0f} s" if out_of_time else f"{memory >> 20:,} MB, or broke"
                why = f"{len(text):,} characters took more than {bound}"
            if len(_failed) >= _MOST_FAILURES:
                _failed.clear()
            _failed[key] = why
    if why == "ValueError: not readable JSON":
        raise ModelError(f"{folder.name}/tokenizer.json is not readable JSON; download the model again")
    why = " ".join(shortened(why).split()).rstrip(".")
    raise ModelError(f"model {folder.name!r} cannot be loaded: its tokenizer fails ({why}); check its files")


class _Child:
    """The process; ``lock`` is held by who talks to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, question: list[Any], wait_s: float) -> Any:
        """Its answer. Errors: OSError, EOFError, ValueError where there is none in time."""
        # A fork of the process that started it must not talk into its pipes.
        if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
            self._process, self._owner = _started(), os.getpid()
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None and sink is not None
        sink.write(json.dumps(question).encode() + b"\n")
        sink.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            if not selector.select(wait_s):
                self.end()
                raise TimeoutError
        answer = source.readline()
        if not answer:
            raise EOFError
        return json.loads(answer)

    def end(self) -> int:
        """End the process; its exit code."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)  # where it has ended by itself, its own code
        process.kill()
        with contextlib.suppress(OSError):  # of what was not yet written
            process.communicate()
        return process.returncode


_child = _Child()
_failed: dict[object, str] = {}
atexit.register(_child.end)


def _started() -> subprocess.Popen[bytes]:
    try:
        # In a session of its own: Ctrl-C is meant for this process alone.
        return subprocess.Popen(
            [sys.executable, "-m", _SERVER],
            env=os.environ | _LEAN,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise ModelError(
            f"no process can be started for the tokenizer ({error.strerror}); free memory and retry"
        ) from error
