"""The web process's one Store, its job queue, and the look into the spool that every rerun may trigger.

Pages get both as the owner of their session sees them (identity.py).
"""

from __future__ import annotations

import functools
import gc
import threading
import time

import streamlit as st

from routesparse.app.shell import identity
from routesparse.engine import paths
from routesparse.engine.errors import StoreError
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.store import overview, spool
from routesparse.engine.store.opening import open_store
from routesparse.engine.store.owner_view import OwnerView


class _Closed(Exception):
    """The store is being closed: the look ends between two transactions."""


class _Look:
    """One look into the spool, in a thread of its own: a thousand bundles take minutes."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.over = threading.Event()
        self.progress = (0, 0)  # bundles done, of how many
        self.error: BaseException | None = None


class Access:
    """The store with its spool; looks into the spool at most once a second, in the background, one look at a time.

    whole_store: with everybody's runs, for this module alone.
    """

    SPOOL_SECONDS = 1.0
    RECOVER_SECONDS = 60.0  # where other dashboards may end between a bundle's move and its rows
    SWEEP_SECONDS = 24 * 3600.0  # a dashboard may run for months
    # For many bundles; for a few, a page that waits is better than one that lacks its run.
    LOOK_PATIENCE_S = 2.0
    FEW = 20
    FEW_PATIENCE_S = 30.0
    TICK_S = 0.1
    COUNT_SECONDS = 15.0  # counting reads every run's rows
    CLOSE_PATIENCE_S = 30.0
    COLLECT_SECONDS = 10.0  # with twenty readers a collection holds Python's lock for some 50 ms

    def __init__(self) -> None:
        self.whole_store = open_store()
        self._samples = spool.ingest_samples(self.whole_store)
        self._counted: int | None = None  # the store's generation when its runs were last counted
        self._counted_at = float("-inf")
        self._closing = False
        self._recovered_at: float | None = None
        self._swept_at = float("-inf")
        self._collected_at = float("-inf")
        self._look: _Look | None = None
        self._look_lock = threading.Lock()
        self._queue_lock = threading.Lock()
        self._waiting: list[spool.Rejection] = []
        self._queue: JobQueue | None = None

    @property
    def store(self) -> OwnerView:
        """The store as this session's owner sees it. Errors: IdentityError."""
        return OwnerView(self.whole_store, identity.owner())

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

    def check_there(self) -> None:
        """Errors: StoreError where the store's file was deleted or replaced."""
        self.whole_store.check_there()

    def close(self) -> None:
        """Close the store and the queue; a look that runs ends after its bundle."""
        self._closing = True
        if self._look is not None:
            self._look.over.wait(self.CLOSE_PATIENCE_S)
        self.whole_store.close()
        if self._queue is not None:
            self._queue.close()

    def look_into_spool(self) -> None:
        """Take in new bundles, unless somebody did a moment ago.

        Waits a moment for the look that runs: the run that this page shows may be among the new bundles. What takes
        longer goes on in the background, and ``taking_in`` says how far it is.
        """
        with self._look_lock:
            look = self._look
            if look is None or (look.over.is_set() and time.monotonic() - look.began >= self.SPOOL_SECONDS):
                look = self._look = _Look()
                threading.Thread(target=self._take_in, args=(look,), name="spool", daemon=True).start()
        while not look.over.wait(self.TICK_S):
            patience_s = self.LOOK_PATIENCE_S if look.progress[1] > self.FEW else self.FEW_PATIENCE_S
            if time.monotonic() - look.began > patience_s:
                return
        if look.error is not None:
            raise look.error

    def collect_garbage(self) -> None:
        """Collect it every few seconds, where Streamlit would after every rerun (``postScriptGC``).

        Not left to Python alone: it counts objects, and a few of them may hold a page's megabytes. Nor to the look into
        the spool: some parts that draw themselves again do without one, and a thousand bundles take minutes.
        """
        if time.monotonic() - self._collected_at > self.COLLECT_SECONDS:
            self._collected_at = time.monotonic()
            gc.collect()

    def taking_in(self) -> tuple[int, int] | None:
        """How many bundles of how many the look that runs has taken in; None while none runs."""
        look = self._look
        return None if look is None or look.over.is_set() else look.progress

    def _take_in(self, look: _Look) -> None:
        def progress(_stage: str, done: int, total: int) -> None:
            look.progress = (done, total)
            if self._closing:
                raise _Closed

        try:
            if self._may_recover():
                spool.recover(self.whole_store, progress)
                self._recovered_at = time.monotonic()
            if time.monotonic() - self._swept_at > self.SWEEP_SECONDS:
                spool.sweep(self.whole_store)
                self._swept_at = time.monotonic()
            self._waiting = spool.ingest_spool(self.whole_store, progress=progress).waiting
            if self._samples.waiting:
                self._samples = spool.ingest_samples(self.whole_store)
            self._count()
        except _Closed:
            pass
        # The boundary of a thread: the pages that wait for this look raise it.
        except Exception as error:  # noqa: BLE001
            look.error = error
        finally:
            look.over.set()

    def _may_recover(self) -> bool:
        """At the first look; a store of several writers then every minute, since another of them may have crashed."""
        if self._recovered_at is None:
            return True
        return (
            self.whole_store.SEVERAL_WRITERS and time.monotonic() - self._recovered_at > self.RECOVER_SECONDS
        )

    def _count(self) -> None:
        """Write the numbers that ``routesparse metrics`` serves, when runs have changed."""
        generation = self.whole_store.generation
        if self._counted == generation or time.monotonic() - self._counted_at < self.COUNT_SECONDS:
            return
        try:
            overview.write(self.whole_store)
        except OSError:
            return  # a full disk: the metrics show how old their numbers are, and the next look tries again
        self._counted, self._counted_at = generation, time.monotonic()

    def _mine(self, name: str) -> bool:
        """Whether a bundle in the spool comes from this owner's job; one of unknown origin is the local person's."""
        try:
            return self.queue.made(name.partition(".")[0])
        except StoreError:
            return identity.owner() is None


@st.cache_resource(show_spinner=False, on_release=lambda access: access.close())
def open_access(home: str) -> Access:
    """The one Access of this process (``home`` is the cache key). Errors: ConfigError, StoreError."""
    _freeze()
    return Access()


@functools.cache
def _freeze() -> None:
    """Once a process: no collection of garbage need look at what lives by now, modules above all: it stays."""
    gc.collect()
    gc.freeze()


def access() -> Access:
    """The Access for the current environment. Errors: ConfigError, StoreError, also where a folder was deleted."""
    opened = open_access(str(paths.home()))
    opened.check_there()
    opened.collect_garbage()
    return opened
