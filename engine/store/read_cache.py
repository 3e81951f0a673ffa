"""What was read from an unchanged store, kept: a page asks for the same rows several times, and so do its readers.

A result is good for one generation of the store (duckdb_store.py): every change of a row begins the next one, and
all results of the one before are dropped. Kept are the results used last, MOST_BYTES of them at most.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pandas as pd

MOST_BYTES = 32 << 20
MOST_RESULT_BYTES = 4 << 20  # a prompt or a large table would push everything else out
_VALUE_BYTES = 64  # of a Python value, about; text and bytes are counted on top


class ReadCache:
    """Results by what was asked. Thread-safe; nobody may change what it hands out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = -1
        self._kept: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self.bytes = 0

    def read(self, generation: int, asked: Hashable, read: Callable[[], Any]) -> Any:
        """The result kept for this question and generation, else what ``read`` returns, which is then kept.

        generation: the store's before the question was put, so that a change meanwhile makes nothing stale.
        """
        with self._lock:
            if generation > self._generation:
                self._kept.clear()
                self._generation, self.bytes = generation, 0
            if generation == self._generation and asked in self._kept:
                self._kept.move_to_end(asked)
                return self._kept[asked][1]
        found = read()
        # The question counts, too: it may hold the text of an address, and its answer nothing.
        size = _size(found) + _value_size(asked)
        with self._lock:
            if size <= MOST_RESULT_BYTES and generation == self._generation and asked not in self._kept:
                self._kept[asked] = size, found
                self.bytes += size
                while self.bytes > MOST_BYTES:
                    self.bytes -= self._kept.popitem(last=False)[1][0]
        return found


def _size(found: Any) -> int:
    """About how many bytes a DataFrame, or rows as tuples, take."""
    if isinstance(found, pd.DataFrame):
        return int(found.memory_usage(deep=True).sum())
    return sum(_value_size(value) for row in found for value in row)


def _value_size(value: Any) -> int:
    if isinstance(value, str | bytes):
        return _VALUE_BYTES + len(value)
    if isinstance(value, Iterable):
        return _VALUE_BYTES + sum(map(_value_size, value))
    return _VALUE_BYTES
