"""How long torch's OpenMP threads spin at a barrier while a CPU decides and attends.

By default GNU's threads (libgomp) spin for some milliseconds before they sleep. Deciding is many short parallel
operations, so where another program holds a core, the thread that shares it is waited for at each of their barriers,
by threads that hold the other cores meanwhile. The variables that shorten the spin are read when torch is loaded,
which in a user's process is before us. But libgomp spins a thousandth of that whenever its threads outnumber the cores
(``gomp_throttled_spin_count_var``). So a thread of ours has a team of its own, which sleeps as soon as it has started;
once that thread ends, all is as before. LLVM's and Intel's OpenMP take the time by a call.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

# Whoever sets one of these has chosen; the command line sets the first.
CHOSEN_BY = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


@contextmanager
def short_spins(device: torch.device) -> Iterator[None]:
    """Inside, threads that wait for this one's parallel operations on a CPU soon sleep.

    Nothing changes on another device, with one thread, without an OpenMP that we know, and where the user chose.
    """
    library = _openmp() if device.type == "cpu" and torch.get_num_threads() > 1 else None
    if library is None or any(name in os.environ for name in CHOSEN_BY):
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
    started, over = threading.Event(), threading.Event()

    def hold() -> None:
        # free(NULL), which does nothing: Python code would be run by threads that Python does not know.
        gomp.GOMP_parallel(ctypes.cast(gomp.free, ctypes.c_void_p), None, size, 0)
        started.set()
        over.wait()

    thread = threading.Thread(target=hold, name="routesparse short spins", daemon=True)
    thread.start()
    try:
        started.wait()
        yield
    finally:
        over.set()
        thread.join()


@lru_cache(maxsize=1)
def _openmp() -> Any:
    """The OpenMP that torch runs on, or None: not Linux, or a torch without one of these."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "kmp_set_blocktime") or hasattr(library, "GOMP_parallel") else None
