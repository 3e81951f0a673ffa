"""What was read from an unchanged store, or made of it, kept: a page asks for the same several times, and so do its
readers.

A result is good for one generation of the store (duckdb_store.py): every change of a row begins the next one, and
all results of the one before are dropped. Kept are the results used last, MOST_BYTES of them at most.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd

MOST_BYTES = 32 << 20
MOST_RESULT_BYTES = 4 << 20  # a prompt or a large table would push everything else out
_VALUE_BYTES = 64  # of a Python value that is neither text nor bytes, about


class _Asked:
    """A question that a thread is reading the result of."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.found: tuple[()] | tuple[Any] = ()  # empty where the read failed


class ReadCache:
    """Results by what was asked. Thread-safe; nobody may change what it hands out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = -1
        self._kept: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._asking: dict[tuple[int, Hashable], _Asked] = {}
        self.bytes = 0

    def read(self, generation: int, asked: Hashable, read: Callable[[], Any]) -> Any:
        """The result kept for this question and generation, else what ``read`` returns, which is then kept.

        generation: the store's before the question was put, so that a change meanwhile makes nothing stale. Who asks
        what another thread is just reading takes its result: after every new run all readers ask the same. ``read`` may
        ask other questions, but not this one.
        """
        with self._lock:
            if generation > self._generation:
                self._kept.clear()
                self._generation, self.bytes = generation, 0
            if generation == self._generation and asked in self._kept:
                self._kept.move_to_end(asked)
                return self._kept[asked][1]
            other = self._asking.get((generation, asked))
            mine = self._asking.setdefault((generation, asked), _Asked())
        if other is not None:
            other.over.wait()
            return other.found[0] if other.found else read()
        try:
            found = read()
            mine.found = (found,)
            mine.over.set()
            self._keep(generation, asked, found)
            return found
        finally:
            mine.over.set()
            with self._lock:
                del self._asking[generation, asked]

    def _keep(self, generation: int, asked: Hashable, found: Any) -> None:
        # The question counts, too: it may hold the text of an address, and its answer nothing.
        size = _size(found) + _size(asked)
        with self._lock:
            if size <= MOST_RESULT_BYTES and generation == self._generation and asked not in self._kept:
                self._kept[asked] = size, found
                self.bytes += size
                while self.bytes > MOST_BYTES:
                    self.bytes -= self._kept.popitem(last=False)[1][0]


def _size(found: Any) -> int:
    """About how many bytes a result takes: a DataFrame, rows as tuples, or what a page made of them."""
    if isinstance(found, str | bytes):
        return sys.getsizeof(found)  # a dash among the words makes two bytes of each character
    if isinstance(found, pd.DataFrame):
        return int(found.memory_usage(deep=True).sum())
    if isinstance(found, pd.Series):
        return int(found.memory_usage(deep=True))
    if isinstance(found, np.ndarray):
        return _VALUE_BYTES + found.nbytes
    if isinstance(found, Mapping):
        return _VALUE_BYTES + sum(_size(name) + _size(value) for name, value in found.items())
    if isinstance(found, Iterable):
        return _VALUE_BYTES + sum(map(_size, found))
    if is_dataclass(found) and not isinstance(found, type):
        return _VALUE_BYTES + sum(_size(getattr(found, field.name)) for field in fields(found))
    return _VALUE_BYTES
