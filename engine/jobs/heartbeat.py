"""Keeping a claim alive while the main thread computes, and telling that thread when to stop.

The main thread only leaves a note of its progress; the database is written by the heartbeat's thread, so a locked
database never slows an analysis down. Between layers the main thread calls ``progress`` or ``check``, which raise
what the heartbeat has learnt: cancelled by the user, lease lost, worker stopping.

Where other hosts share the queue, one that can't reach it gives its job up before the lease runs out, because by then
they may take it. A finished job is offered all the same: the queue refuses it if somebody else has taken it.
"""

from __future__ import annotations

import threading
import time
from typing import Literal

from routesparse.engine.errors import RouteSparseError, StoreError
from routesparse.engine.jobs.job import Claim, Progress
from routesparse.engine.jobs.log import JobLog
from routesparse.engine.jobs.queue import JobQueue, LeaseLostError
from routesparse.engine.jobs.signals import Flag, wait_any

BEAT_S = 1.0
_SAFE_SHARE = 0.9  # of a lease: it began with the claim, a moment before the heartbeat
Verdict = Literal["cancelled", "lost", "stopped"]


class Interrupted(RouteSparseError):
    """The analysis must not go on: its verdict says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict: Verdict = verdict


class Heartbeat:
    """``with Heartbeat(...) as heart:`` renews the lease every beat until the block is left."""

    def __init__(
        self, queue: JobQueue, claim: Claim, stop: Flag, log: JobLog, *, lease_s: float, beat_s: float
    ) -> None:
        self._queue, self._claim, self._stop, self._log = queue, claim, stop, log
        self._lease_s, self._beat_s = lease_s, beat_s
        self._over = Flag()
        self._verdict: Verdict | None = None
        self._progress: Progress = (None, None, None)
        self._renewed_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{claim.job_id}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._over.close()

    def progress(self, stage: str, done: int, total: int) -> None:
        """The callback of analyze_prompt. Errors: Interrupted."""
        self._progress = (stage, done, total)
        if self._verdict is None and self._may_be_another_s():
            self._verdict = "lost"
        self.check()

    def check(self) -> None:
        """Errors: Interrupted, when there is a reason to stop."""
        if self._verdict is not None:
            raise Interrupted(self._verdict)

    def _may_be_another_s(self) -> bool:
        """Whether the lease may have run out unseen, by this host's clock and a little early."""
        silent_s = time.monotonic() - self._renewed_at
        return self._queue.beyond_host and silent_s > _SAFE_SHARE * self._lease_s

    def _run(self) -> None:
        while self._verdict is None:
            self._beat()
            wait_any((self._over, self._stop), self._beat_s)
            if self._over.is_set():
                return
            if self._stop.is_set():
                self._release()

    def _beat(self) -> None:
        asked_at = time.monotonic()
        try:
            if self._queue.heartbeat(self._claim, self._lease_s, self._progress):
                self._verdict = "cancelled"
            self._renewed_at = asked_at
        except LeaseLostError:
            self._verdict = "lost"
        except StoreError as error:
            # Busy, full or out of reach: the next beat tries again.
            self._log.write("heartbeat_missed", error=type(error).__name__)

    def _release(self) -> None:
        """Put the job back at once: the main thread may need longer than the supervisor waits."""
        try:
            self._queue.release(self._claim)
        except LeaseLostError:
            self._verdict = "lost"
        except StoreError as error:
            self._log.write("release_missed", error=type(error).__name__)
            wait_any((self._over,), self._beat_s)
        else:
            self._verdict = "stopped"
