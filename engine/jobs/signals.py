"""Asking a worker to stop, also while its main thread is inside one long operation of the model.

Python runs signal handlers only between bytecodes of the main thread. A signal also writes a byte into a pipe at
once (signal.set_wakeup_fd), and the heartbeat thread waits on that pipe: it can put the job back into the queue
before the main thread notices anything. When the main thread has not come to its end GRACE_S seconds after the signal,
``leaving_in_time`` ends the process: a job always begins anew, so what that thread was computing is of no use.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE_S = 4.0  # `make run` kills after five


class Flag:
    """An event that several flags can be waited for at once, and that a signal can set."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        for end in (self.reader, self.writer):
            os.set_blocking(end, False)

    def set(self) -> None:
        """Set it for good; the byte in the pipe is never read."""
        if not self.is_set():
            os.write(self.writer, b"\0")

    def is_set(self) -> bool:
        """Whether it is set, at once."""
        return wait_any((self,), 0.0)

    def close(self) -> None:
        """Give both ends back."""
        os.close(self.reader)
        os.close(self.writer)


def wait_any(flags: tuple[Flag, ...], timeout_s: float | None) -> bool:
    """Sleep until one of the flags is set, at most timeout_s seconds (None: for ever); whether one is."""
    poll = select.poll()
    for flag in flags:
        poll.register(flag.reader, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000.0))


@contextmanager
def stopped_by_signals(stop: Flag) -> Iterator[None]:
    """SIGTERM and SIGINT set the flag inside the block; a second one ends the process at once.

    Outside the main thread, where Python allows no handlers, only the flag itself stops the worker.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    previous = signal.set_wakeup_fd(stop.writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def leaving_in_time(stop: Flag, grace_s: float, last_words: Callable[[], object]) -> Iterator[None]:
    """End this process with exit code 0 if the block is still running grace_s seconds after the flag was set.

    What the block was doing is cut off as by kill -9. last_words: called before.
    """
    over = Flag()

    def watch() -> None:
        wait_any((stop, over), None)
        if not wait_any((over,), grace_s):
            last_words()
            os._exit(0)

    thread = threading.Thread(target=watch, name="leave", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        over.close()
