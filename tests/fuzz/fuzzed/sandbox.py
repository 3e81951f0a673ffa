"""What watches a case of a fuzz target: no file outside its folder, no pickle, no process, no address, and a bound on
what it takes. A process of RouteSparse's own, which bounds itself, may be started.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_BYTES = 512 << 20  # of memory that a case may take beyond what the process has
MOST_SECONDS = 10.0  # of a processor
FORBIDDEN = (
    "socket.connect",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "os.system",
    "pickle.find_class",
    "os.exec",
)


class Escape(AssertionError):
    """A parser did what no parser may do."""


class TooLongError(BaseException):
    """A case took its time. No Exception, so that no parser takes it for one of its own."""


@dataclass
class Sandbox:
    """Watches this process while a case runs. Audit hooks stay for good, so one is added and switched on and off."""

    folder: Path
    watching: bool = False
    seen: list[str] = field(default_factory=list)

    def install(self) -> None:
        """Add the hook."""
        sys.addaudithook(self._hear)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Errors: Escape for what was done inside the block, memory that a parser asked for in vain too."""
        self.seen.clear()
        self.watching = True
        try:
            with _bounded():
                yield
        except BaseException as error:
            if _ran_out(error):
                raise Escape(f"asked for more than {MOST_BYTES >> 20} MB of memory") from error
            raise
        finally:
            self.watching = False
            if self.seen:
                raise Escape("; ".join(self.seen))

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event in FORBIDDEN and not (event == "subprocess.Popen" and _is_own(arguments[1])):
            self.seen.append(f"{event} {arguments!r}"[:200])
        if event == "open" and isinstance(arguments[0], str | bytes):
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            inside = Path(os.fsdecode(path)).resolve().is_relative_to(self.folder.resolve())
            if writes and not inside and path != os.devnull:
                self.seen.append(f"wrote {path!r}")


def _is_own(command: Any) -> bool:
    return list(command[:2]) == [sys.executable, "-m"] and command[2].startswith("routesparse.engine.")


@contextmanager
def _bounded() -> Iterator[None]:
    """Inside the block memory and time of a processor end at their bounds."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    most, hard = resource.getrlimit(resource.RLIMIT_DATA)
    signal.signal(signal.SIGPROF, _out_of_time)
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + MOST_BYTES, hard))
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _out_of_time(*_: object) -> None:
    raise TooLongError(f"took more than {MOST_SECONDS:g} s of a processor")


def _ran_out(error: BaseException | None) -> bool:
    """Whether memory ended somewhere behind an error, also one that the target may raise."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None
