"""A child process that answers questions within bounds, so that no file of others can stop or fill the one that asks.

A question may take so much memory, so many seconds of a processor and some times as many by the clock; past a bound the
child ends and the asker gets NoAnswerError. The child starts with the first question, is kept for the next ones, and
ends with its parent: its input does. Limits that a system does not enforce (memory on macOS, any on Windows) do not
hold there.

A message is whether another one follows, how many bytes it has, and these. A question is JSON, then its content; an
answer is any number of parts, then what went wrong, which is empty where nothing did.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from routesparse.engine.errors import RouteSparseError

if sys.platform != "win32":
    import resource

_CLOCK_S, _CLOCK = 60.0, 3  # by the clock, and for one second of a processor: others want it too
_HEAD = struct.Struct("<?Q")
# One thread, few arenas, the system's allocator: others reserve memory that they never use.
_LEAN = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "TOKENIZERS_PARALLELISM": "false"}
_LEAN |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class NoAnswerError(Exception):
    """What the child says is wrong, or the bound that it met."""


class BoundedProcess:
    """A process that runs a module which calls ``serve``; ``lock`` is held while one thread talks to it."""

    def __init__(self, module: str, cannot_start: type[RouteSparseError]) -> None:
        self._module, self._cannot_start = module, cannot_start
        self._process: subprocess.Popen[bytes] | None = None
        self.lock = threading.RLock()
        atexit.register(self.end)
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self._leave)

    def ask(self, question: list[Any], content: bytes, *, seconds: float, memory_bytes: int) -> list[bytes]:
        """The parts of its answer. Errors: NoAnswerError; ``cannot_start`` where no process can be started."""
        with self.lock:
            if self._process is None or self._process.poll() is not None:
                self._process = self._started()
            source, sink = self._process.stdout, self._process.stdin
            assert source is not None and sink is not None
            try:
                _send(sink, json.dumps([seconds, memory_bytes, *question]).encode(), more=True)
                _send(sink, content)
                *parts, wrong = _messages(source)
            except BaseException as error:
                code = self.end()  # the rest of its answer would be taken for that to the next question
                if not isinstance(error, EOFError | BrokenPipeError):
                    raise
                late = sys.platform != "win32" and -code in (signal.SIGXCPU, signal.SIGALRM)
                bound = f"{seconds:.0f} s" if late else f"{memory_bytes >> 20:,} MB, or broke"
                raise NoAnswerError(f"took more than {bound}") from None
        if wrong:
            raise NoAnswerError(wrong.decode())
        return parts

    def end(self) -> int:
        """Let the process go, if there is one; its exit code, which is its own where it has ended by itself."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        process.communicate()
        return process.returncode

    def _started(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [sys.executable, "-m", self._module],
                env=os.environ | _LEAN,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pipesize=1 << 20,  # where the system lets a pipe hold more than usual
                start_new_session=True,  # Ctrl-C is meant for this process alone
            )
        except OSError as error:
            raise self._cannot_start(
                f"no process can be started to read files within bounds ({error.strerror}); free memory and retry"
            ) from error

    def _leave(self) -> None:
        """In a fork: the child, its pipes, what is not yet written into them, and the lock are another process's."""
        process: Any = self._process
        self._process, self.lock = None, threading.RLock()
        if process is not None:
            process.returncode = 0
            process.stdin.raw.close()
            process.stdout.raw.close()


def serve(answer: Callable[..., Iterable[Any]], told: Callable[[BaseException], str]) -> None:
    """Answer until the parent ends. answer: the parts, to a content and a question's values; told: an error's words."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints
    with contextlib.suppress(EOFError):
        while True:
            messages = _messages(sys.stdin.buffer)
            seconds, memory_bytes, *question = json.loads(next(messages))
            limit(seconds, memory_bytes)
            (content,) = messages
            wrong = ""
            try:
                for part in answer(content, *question):
                    _send(sink, part, more=True)
            # The boundary of the process, where a panic of Rust code is no Exception.
            except BaseException as error:  # noqa: BLE001
                wrong = told(error)
            _send(sink, wrong.encode(errors="replace"))
            if sys.platform != "win32":
                signal.alarm(0)


def limit(seconds: float, memory_bytes: int | None = None) -> None:
    """End this process past so much of a processor from now on; memory: of data, as libraries map far more."""
    if sys.platform == "win32":
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = math.ceil(used.ru_utime + used.ru_stime + seconds)
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, until)]
    if memory_bytes is not None:
        limits.append((resource.RLIMIT_DATA, memory_bytes))
    for kind, most in limits:
        _, hard = resource.getrlimit(kind)
        with contextlib.suppress(ValueError, OSError):  # of a system that can't
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    signal.setitimer(signal.ITIMER_REAL, _CLOCK_S + _CLOCK * seconds)


def _send(sink: IO[bytes], content: Any, *, more: bool = False) -> None:
    sink.write(_HEAD.pack(more, len(content)))
    sink.write(content)
    sink.flush()


def _messages(source: IO[bytes]) -> Iterator[bytes]:
    """The next messages, with the last of them. Errors: EOFError where the other process has ended."""
    more = True
    while more:
        head = source.read(_HEAD.size)
        more, size = _HEAD.unpack(head) if len(head) == _HEAD.size else (False, 1)
        content = source.read(size)
        if len(content) < size:
            raise EOFError
        yield content
