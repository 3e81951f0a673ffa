"""The web process's one Store, its job queue, and the look into the spool that every rerun may trigger.

Pages get both as the owner of their session sees them (identity.py).
"""

from __future__ import annotations

import threading
import time

import streamlit as st

from routesparse.app.shell import identity
from routesparse.engine import paths
from routesparse.engine.errors import StoreError
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.store import spool
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.owner_view import OwnerView

_SPOOL_SECONDS = 1.0
_LOOK_PATIENCE_S = 5.0


class Access:
    """The store with its spool; looks into the spool at most once a second, one thread at a time."""

    def __init__(self) -> None:
        self._store = Store(paths.database())
        self._samples = spool.ingest_samples(self._store)
        spool.recover(self._store)
        self._look_lock = threading.Lock()
        self._queue_lock = threading.Lock()
        self._looked_at = float("-inf")
        self._waiting: list[spool.Rejection] = []
        self._queue: JobQueue | None = None

    @property
    def store(self) -> OwnerView:
        """The store as this session's owner sees it. Errors: IdentityError."""
        return OwnerView(self._store, identity.owner())

    @property
    def queue(self) -> JobQueue:
        """This owner's jobs; opened when a page first needs it: a broken queue leaves the stored runs readable.

        Errors: StoreError, IdentityError.
        """
        with self._queue_lock:
            if self._queue is None:
                self._queue = JobQueue(paths.home())
            return self._queue.of(identity.owner())

    def waiting(self) -> list[spool.Rejection]:
        """This owner's bundles, and the samples, that the store could not take in yet: the next look tries again."""
        return [waiting for waiting in self._waiting if self._mine(waiting.name)] + self._samples.waiting

    def rejections(self) -> list[spool.Rejection]:
        """This owner's bundles that the store refused."""
        return [rejected for rejected in spool.rejections() if self._mine(rejected.name)]

    @property
    def sample_problems(self) -> list[spool.Rejection]:
        """Bundled sample runs that are broken."""
        return self._samples.rejected

    def close(self) -> None:
        """Close the store and the queue."""
        self._store.close()
        if self._queue is not None:
            self._queue.close()

    def look_into_spool(self) -> None:
        """Take in new bundles, unless somebody did a moment ago.

        When another session is already looking, this one waits for it: the run that this page shows may be among
        the new bundles.
        """
        if not self._look_lock.acquire(timeout=_LOOK_PATIENCE_S):
            return
        try:
            if time.monotonic() - self._looked_at >= _SPOOL_SECONDS:
                self._waiting = spool.ingest_spool(self._store).waiting
                if self._samples.waiting:
                    self._samples = spool.ingest_samples(self._store)
                self._looked_at = time.monotonic()
        finally:
            self._look_lock.release()

    def _mine(self, name: str) -> bool:
        """Whether a bundle in the spool comes from this owner's job; one of unknown origin is the local person's."""
        try:
            return self.queue.made(name.partition(".")[0])
        except StoreError:
            return identity.owner() is None


@st.cache_resource(show_spinner=False, on_release=lambda access: access.close())
def open_access(home: str) -> Access:
    """The one Access of this process (``home`` is the cache key). Errors: StoreError."""
    return Access()


def access() -> Access:
    """The Access for the current ROUTESPARSE_HOME. Errors: StoreError."""
    return open_access(str(paths.home()))
