"""The web process's one Store, its job queue, and the look into the spool that every rerun may trigger."""

from __future__ import annotations

import threading
import time

import streamlit as st

from routesparse.engine import paths
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.store import spool
from routesparse.engine.store.duckdb_store import Store

_SPOOL_SECONDS = 1.0
_LOOK_PATIENCE_S = 5.0


class Access:
    """The store with its spool; looks into the spool at most once a second, one thread at a time."""

    def __init__(self) -> None:
        self.store = Store(paths.database())
        self.sample_problems = spool.ingest_samples(self.store).rejected
        spool.recover(self.store)
        self._look_lock = threading.Lock()
        self._queue_lock = threading.Lock()
        self._looked_at = float("-inf")
        self.waiting: list[str] = []
        self._queue: JobQueue | None = None

    @property
    def queue(self) -> JobQueue:
        """The job queue, opened when a page first needs it: a broken one leaves the stored runs readable.

        Errors: StoreError.
        """
        with self._queue_lock:
            if self._queue is None:
                self._queue = JobQueue(paths.home())
            return self._queue

    def close(self) -> None:
        """Give store and queue back."""
        self.store.close()
        if self._queue is not None:
            self._queue.close()

    def look_into_spool(self) -> None:
        """Take in new bundles, unless somebody did a moment ago.

        A look that another session has begun is waited for: the run that this page shows may be in it.
        """
        if not self._look_lock.acquire(timeout=_LOOK_PATIENCE_S):
            return
        try:
            if time.monotonic() - self._looked_at >= _SPOOL_SECONDS:
                self.waiting = spool.ingest_spool(self.store).waiting
                self._looked_at = time.monotonic()
        finally:
            self._look_lock.release()


@st.cache_resource(show_spinner=False, on_release=lambda access: access.close())
def open_access(home: str) -> Access:
    """The one Access of this process (``home`` is the cache key). Errors: StoreError."""
    return Access()


def access() -> Access:
    """The Access for the current ROUTESPARSE_HOME. Errors: StoreError."""
    return open_access(str(paths.home()))
