"""How long torch's OpenMP threads spin at a barrier while a CPU decides and attends.

By default GNU's threads (libgomp) spin for some milliseconds before they sleep. Deciding is many short parallel
operations, so where another program holds a core, the thread that shares it is waited for at each of their barriers,
by threads that hold the other cores meanwhile. The variables that shorten the spin are read when torch is loaded,
which in a user's process is before us. But libgomp spins a thousandth of that whenever its threads outnumber the cores
(``gomp_throttled_spin_count_var``). So a thread of ours has a team of its own, which sleeps as soon as it has started;
once that thread ends, all is as before. LLVM's and Intel's OpenMP take the time by a call.

Alone a short spin costs a seventh of the deciding: spins are short only after a layer whose threads waited for a core,
whichever threads of the process these are. A team of more than MOST_THREADS is not made: libgomp ends a process that
may not have so many.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

# Whoever sets one of these has chosen; the command line sets the first.
CHOSEN_BY = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
# Of a layer's time, what its threads together wait for a core: 0.00 to 0.04 alone, 0.17 to 0.55 beside a busy process.
MOST_WAITED = 0.1
MOST_THREADS = 16


class Barriers:
    """Of the layers of one session: the spins are short while the cores are others', too."""

    def __init__(self) -> None:
        self._crowded = False

    @contextmanager
    def of_layer(self, device: torch.device) -> Iterator[None]:
        """Around a layer's parallel operations."""
        if device.type != "cpu" or _changeable() is None:
            yield
            return
        begun_s, before_s = time.perf_counter(), _waited_s()
        with short_spins() if self._crowded else nullcontext():
            yield
        after_s = _waited_s()
        if before_s is not None and after_s is not None:
            # Threads that ended took their waits with them: a layer then counts less, as attention's own always do.
            self._crowded = after_s - before_s > MOST_WAITED * (time.perf_counter() - begun_s)


def _waited_s() -> float | None:
    """Seconds that this process's threads were ready to run and had no core, or None where the system does not say."""
    try:
        files = list(Path("/proc/self/task").glob("*/schedstat"))
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9 if files else None
    except OSError:  # a thread ended meanwhile
        return None


@contextmanager
def short_spins() -> Iterator[None]:
    """Inside, threads that wait for this one's parallel operations soon sleep.

    Nothing changes with one thread, without an OpenMP that we know, and where the user chose.
    """
    library = _changeable()
    if library is None:
        yield
    elif hasattr(library, "kmp_set_blocktime"):
        before_ms = library.kmp_get_blocktime()
        library.kmp_set_blocktime(0)
        try:
            yield
        finally:
            library.kmp_set_blocktime(before_ms)
    else:
        with _second_team(library):
            yield


@contextmanager
def _second_team(gomp: Any) -> Iterator[None]:
    """A parked thread whose team makes libgomp's threads one more than the cores."""
    size = max(2, gomp.omp_get_num_procs() - torch.get_num_threads() + 2)
    if size > MOST_THREADS:
        yield
        return
    started, over = threading.Event(), threading.Event()

    def hold() -> None:
        # free(NULL), which does nothing: Python code would be run by threads that Python does not know.
        try:
            gomp.GOMP_parallel(ctypes.cast(gomp.free, ctypes.c_void_p), None, size, 0)
        finally:
            started.set()
        over.wait()

    thread = threading.Thread(target=hold, name="routesparse short spins", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread is to be had: the spins stay as they are
        yield
        return
    try:
        started.wait()
        yield
    finally:
        over.set()
        thread.join()


def _changeable() -> Any:
    """The OpenMP whose spins are ours to change, or None: with one thread, and where the user chose."""
    if torch.get_num_threads() == 1 or any(name in os.environ for name in CHOSEN_BY):
        return None
    return _openmp()


@lru_cache(maxsize=1)
def _openmp() -> Any:
    """The OpenMP that torch runs on, or None: not Linux, or a torch without one of these."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "kmp_set_blocktime") or hasattr(library, "GOMP_parallel") else None
