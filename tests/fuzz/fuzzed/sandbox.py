"""What watches a case of a fuzz target: no file outside its folder, no pickle, no process, no address."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        """Errors: Escape for what was done inside the block."""
        self.seen.clear()
        self.watching = True
        try:
            yield
        finally:
            self.watching = False
            if self.seen:
                raise Escape("; ".join(self.seen))

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event in FORBIDDEN:
            self.seen.append(f"{event} {arguments!r}"[:200])
        if event == "open" and isinstance(arguments[0], str | bytes):
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and not Path(os.fsdecode(path)).resolve().is_relative_to(self.folder.resolve()):
                self.seen.append(f"wrote {path!r}")
