"""What was read from the store, kept until the store changes: nearly every page asks for the list of all runs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class KeptReads:
    """The last results by key, of one generation of the store. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._generation = -1
        self._results: OrderedDict[Hashable, Any] = OrderedDict()

    def of(self, generation: int, key: Hashable, read: Callable[[], Any]) -> Any:
        """What ``read`` returned for this key at this generation, shared by all who ask: not to be changed.

        ``generation`` was looked up before the call. It grows after its change is committed, so that a result is at
        least as new as its number says.
        """
        with self._lock:
            if generation > self._generation:
                self._generation = generation
                self._results.clear()
            if generation == self._generation and key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
        found = read()
        with self._lock:
            if generation == self._generation:
                self._results[key] = found
                while len(self._results) > self._most:
                    self._results.popitem(last=False)
        return found
