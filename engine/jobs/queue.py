"""The job queue: SQLite, shared by the web process (submit, cancel, look) and workers (claim, report, end).

    queued --claim--> running --finish--> done
       ^                 |------fail----> failed
       |--release, lost--|------cancel--> cancelled      (queued --cancel--> cancelled)

A worker holds a job through a lease that its heartbeat renews. A lease that ran out, or a process that is gone
(presence.py), means that the worker was lost: the job goes back to its old place, and fails as "worker_lost" after
MAX_LOSSES workers. Every write of a worker names (job id, attempt) and is refused with LeaseLostError once the job has
moved on, so a worker that was stopped and wakes up late changes nothing. A worker that goes in good order releases its
job, which counts as no loss.

A job belongs to an owner. What pages call sees and changes the jobs of ``JobQueue.owner`` alone (``of`` gives another
owner's queue); somebody else's job is to it like one that does not exist. Workers serve everybody.

No torch, duckdb or streamlit here: the web process imports this module.
"""

from __future__ import annotations

import copy
import hashlib
import secrets
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.errors import InputError, RouteSparseError
from routesparse.engine.jobs import presence
from routesparse.engine.jobs.database import Database
from routesparse.engine.jobs.job import ENDED, Claim, FailureKind, Job, Progress, State, WorkerSeen
from routesparse.engine.jobs.prompt_files import PromptFiles
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.prompts import decode_prompt

FILE = "jobs.sqlite3"
LEASE_S = 30.0
BUSY_TIMEOUT_S = 5.0
MAX_LOSSES = 3
WORKER_FORGOTTEN_S = 24 * 3600.0

_CLEARED = "worker = NULL, lease_until = NULL, stage = NULL, done = NULL, total = NULL"
_LOST = (
    "worker lost: {losses} workers stopped while they ran this job, the last in stage {stage!r}. "
    "The operating system ends processes that take too much memory; try a shorter prompt, then submit again"
)


class LeaseLostError(RouteSparseError):
    """This worker's claim is no longer valid: the job was taken back, or has ended. Discard the result."""


class JobQueue:
    """The queue of one home folder. Threads may share one; processes open their own."""

    def __init__(self, home: Path | None = None, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open or create ``home/jobs.sqlite3``. Errors: StoreError."""
        self.home = Path(home or paths.home())
        self.prompts = PromptFiles(self.home / "prompts")
        self._database = Database(self.home / FILE, busy_timeout_s)
        self.owner: str | None = None

    def of(self, owner: str | None) -> JobQueue:
        """The same queue for another owner's pages; None is the one person of a dashboard without a login."""
        theirs = copy.copy(self)
        theirs.owner = owner
        return theirs

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    # What pages call

    def submit(self, request: RunRequest, content: bytes | str) -> str:
        """Queue one analysis of a prompt and return the job's id. When this returns, the job survives a power cut.

        Errors: PromptError (empty, binary, not UTF-8), QueueBusyError, StoreError; nothing is queued then.
        """
        request = replace(request, owner=self.owner)
        raw = content.encode() if isinstance(content, str) else content
        decode_prompt(raw, request.label)
        job_id = secrets.token_hex(8)
        self.prompts.write(job_id, raw)
        try:
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT INTO job (id, state, label, request_json, prompt_sha256, prompt_bytes, keep_text, "
                    "created_at, owner) VALUES (?, 'queued', ?, ?, ?, ?, ?, ?, ?)",
                    (
                        job_id,
                        request.label,
                        request.to_json(),
                        hashlib.sha256(raw).hexdigest(),
                        len(raw),
                        request.keep_text,
                        time.time(),
                        self.owner,
                    ),
                )
        except BaseException:
            self.prompts.remove(job_id)
            raise
        return job_id

    def retry(self, job_id: str) -> str:
        """Submit a failed or cancelled job's request and prompt again, as a new job; its id.

        Errors: InputError for an unknown job, PromptError when its text was not kept.
        """
        job = self._known(job_id)
        return self.submit(RunRequest.from_json(job.request_json), self.prompts.read(job_id))

    def job(self, job_id: str) -> Job | None:
        """One job, or None when there is none (any more). Errors: StoreError."""
        found = self._mine("id = ?", (job_id,))
        return found[0] if found else None

    def jobs(self, states: Iterable[State] | None = None, limit: int = 100) -> list[Job]:
        """Jobs, newest first, of these states. Errors: StoreError."""
        wanted = tuple(states) if states is not None else ("queued", "running", *ENDED)
        marks = ", ".join("?" * len(wanted))
        return self._mine(f"state IN ({marks}) ORDER BY seq DESC LIMIT ?", (*wanted, limit))

    def position(self, job_id: str) -> int | None:
        """1 for the job that is next, 2 for the one after it; None for a job that doesn't wait.

        Everybody's jobs are counted: they share the workers.
        """
        rows = self._database.rows(
            "SELECT (SELECT count(*) FROM job AS other WHERE other.state = 'queued' AND other.seq <= job.seq) "
            "FROM job WHERE id = ? AND owner IS ? AND state = 'queued'",
            (job_id, self.owner),
        )
        return int(rows[0][0]) if rows else None

    def cancel(self, job_id: str) -> State:
        """Cancel a waiting job at once; ask the worker of a running one to stop, which it does between layers.

        Returns the state after the call: "running" means asked. An ended job stays as it is. Errors: InputError.
        """
        self._known(job_id)
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE job SET state = 'cancelled', finished_at = ? WHERE id = ? AND state = 'queued'",
                (time.time(), job_id),
            )
            connection.execute(
                "UPDATE job SET cancel_requested = 1 WHERE id = ? AND state = 'running'", (job_id,)
            )
        self._drop_prompt(job_id)
        return self._known(job_id).state

    def delete(self, job_id: str) -> None:
        """Forget an ended job and its prompt; its run stays. Errors: InputError while it waits or runs."""
        job = self._known(job_id)
        if not job.ended:
            raise InputError(f"job {job_id} is {job.state}; cancel it first")
        if job.run_id in self.unpublished():
            raise InputError(f"the run of job {job_id} is still being handed over; try again in a moment")
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM job WHERE id = ?", (job_id,))
        self.prompts.remove(job_id)

    def made(self, run_id: str) -> bool:
        """Whether a run comes from this owner's job. One without a job, of the command line, is the local person's."""
        job_id = run_id.rpartition("-")[0]
        rows = self._database.rows("SELECT owner FROM job WHERE id = ?", (job_id,))
        return (rows[0]["owner"] if rows else None) == self.owner

    def workers(self) -> list[WorkerSeen]:
        """Workers that have reported, not said goodbye and not been killed, last seen first; a live one is seen
        every few seconds."""
        rows = self._database.rows("SELECT * FROM worker ORDER BY seen_at DESC")
        return [
            WorkerSeen(row["id"], row["started_at"], row["seen_at"])
            for row in rows
            if not presence.is_gone(self.home, row["id"])
        ]

    # What workers call

    def claim(self, worker: str, lease_s: float = LEASE_S) -> Claim | None:
        """Take the oldest waiting job for lease_s seconds, or None. Two workers never get the same attempt."""
        if not self._database.rows("SELECT 1 FROM job WHERE state = 'queued' LIMIT 1"):
            return None  # an idle worker takes no write lock
        now = time.time()
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT * FROM job WHERE state = 'queued' ORDER BY seq LIMIT 1"
            ).fetchone()
            if row is None:
                return None
            connection.execute(
                "UPDATE job SET state = 'running', attempt = attempt + 1, worker = ?, lease_until = ?, "
                "started_at = ? WHERE seq = ?",
                (worker, now + lease_s, now, row["seq"]),
            )
        return Claim(row["id"], row["attempt"] + 1, row["request_json"], row["label"])

    def heartbeat(
        self, claim: Claim, lease_s: float = LEASE_S, progress: Progress = (None, None, None)
    ) -> bool:
        """Renew the lease and say what is being done; True when the user asked to cancel.

        Errors: LeaseLostError, QueueBusyError.
        """
        change = "lease_until = ?, stage = ?, done = ?, total = ?"
        with self._database.transaction() as connection:
            now = time.time()
            self._fenced(connection, claim, change, (now + lease_s, *progress))
            row = connection.execute(
                "SELECT worker, cancel_requested FROM job WHERE id = ?", (claim.job_id,)
            ).fetchone()
            connection.execute("UPDATE worker SET seen_at = ? WHERE id = ?", (now, row["worker"]))
        return bool(row["cancel_requested"])

    def finish(self, claim: Claim, run_id: str) -> None:
        """The job is done and ``run_id`` is its run: the one moment at which a job ends well (see staging)."""
        self._end(claim, "state = 'done', run_id = ?", (run_id,))

    def fail(self, claim: Claim, kind: FailureKind, message: str, log_id: str | None = None) -> None:
        """The job failed and won't be tried again. Errors: LeaseLostError, QueueBusyError."""
        values = (kind, message, log_id)
        self._end(claim, "state = 'failed', error_kind = ?, error_message = ?, log_id = ?", values)

    def cancelled(self, claim: Claim) -> None:
        """The worker stopped because the user asked. Errors: LeaseLostError, QueueBusyError."""
        self._end(claim, "state = 'cancelled'", ())

    def release(self, claim: Claim) -> None:
        """Put the job back in its place because this worker is stopping; no loss is counted."""
        with self._database.transaction() as connection:
            self._fenced(connection, claim, _back_in_line(), (time.time(),))
        self._drop_prompt(claim.job_id)

    def requeue_lost(self) -> list[str]:
        """Take back jobs of lost workers, and fail those that lost MAX_LOSSES. Ids of the jobs that changed.

        Pages may call it too: then a lost worker shows although no other worker runs.
        """
        held = self._database.rows("SELECT id, attempt, worker, lease_until FROM job WHERE state = 'running'")
        now = time.time()
        lost = [
            (row["id"], row["attempt"])
            for row in held
            if row["lease_until"] < now or presence.is_gone(self.home, row["worker"])
        ]
        if not lost:
            return []
        with self._database.transaction() as connection:
            now = time.time()
            # Once more under the lock: somebody may have taken a job back, a late heartbeat renewed its lease.
            current = connection.execute("SELECT * FROM job WHERE state = 'running'").fetchall()
            rows = [
                row
                for row in current
                if (row["id"], row["attempt"]) in lost
                and (row["lease_until"] < now or presence.is_gone(self.home, row["worker"]))
            ]
            for row in rows:
                losses = row["losses"] + 1
                values: tuple[object, ...] = (now,)
                change = _back_in_line()
                if losses >= MAX_LOSSES and not row["cancel_requested"]:
                    message = _LOST.format(losses=losses, stage=row["stage"] or "load")
                    change = (
                        "state = 'failed', error_kind = 'worker_lost', error_message = ?, finished_at = ?, "
                        + _CLEARED
                    )
                    values = (message, now)
                connection.execute(
                    f"UPDATE job SET losses = ?, {change} WHERE seq = ?", (losses, *values, row["seq"])
                )
        for row in rows:
            self._drop_prompt(row["id"])
        return [row["id"] for row in rows]

    def seen(self, worker: str) -> None:
        """A worker reports that it is alive."""
        now = time.time()
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO worker VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at",
                (worker, now, now),
            )
            connection.execute("DELETE FROM worker WHERE seen_at < ?", (now - WORKER_FORGOTTEN_S,))

    def sweep_workers(self) -> None:
        """Remove what dead workers left in the folder of their locks."""
        rows = self._database.rows("SELECT worker FROM job WHERE state = 'running'")
        presence.sweep(self.home, {row["worker"] for row in rows})

    def goodbye(self, worker: str) -> None:
        """A worker has stopped in good order."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM worker WHERE id = ?", (worker,))

    # What staging calls

    def unpublished(self) -> list[str]:
        """Runs of done jobs whose bundles may still have to be moved into the spool."""
        rows = self._database.rows(
            "SELECT run_id FROM job WHERE state = 'done' AND published = 0 ORDER BY seq"
        )
        return [row["run_id"] for row in rows]

    def mark_published(self, run_id: str) -> None:
        """The run's bundle is in the spool, or has been taken from there already."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE job SET published = 1 WHERE run_id = ?", (run_id,))

    def current_runs(self) -> set[str]:
        """Runs whose staged files are needed: of running attempts, and of done jobs not yet published."""
        rows = self._database.rows("SELECT id, attempt FROM job WHERE state = 'running'")
        return {f"{row['id']}-{row['attempt']}" for row in rows} | set(self.unpublished())

    def sweep_prompts(self) -> None:
        """Delete prompts that no job needs any more, such as after a crash between a job's end and its file's."""
        names = self.prompts.names()  # before the rows, so that a job submitted meanwhile isn't seen half
        rows = self._database.rows("SELECT id, state, keep_text FROM job")
        needed = {row["id"] for row in rows if _needs_prompt(row["state"], bool(row["keep_text"]))}
        self.prompts.sweep(names, {row["id"] for row in rows}, needed)

    def _end(self, claim: Claim, change: str, values: tuple[object, ...]) -> None:
        cleared = "worker = NULL, lease_until = NULL, finished_at = ?"
        with self._database.transaction() as connection:
            self._fenced(connection, claim, f"{change}, {cleared}", (*values, time.time()))
        self._drop_prompt(claim.job_id)

    def _fenced(
        self, connection: sqlite3.Connection, claim: Claim, change: str, values: tuple[object, ...]
    ) -> None:
        cursor = connection.execute(
            f"UPDATE job SET {change} WHERE id = ? AND attempt = ? AND state = 'running'",
            (*values, claim.job_id, claim.attempt),
        )
        if cursor.rowcount != 1:
            raise LeaseLostError(
                f"attempt {claim.attempt} of job {claim.job_id} is no longer the current one"
            )

    def _known(self, job_id: str) -> Job:
        job = self.job(job_id)
        if job is None:
            raise InputError(f"no job is called {job_id!r}; it may have been deleted")
        return job

    def _mine(self, condition: str, values: tuple[object, ...]) -> list[Job]:
        """The owner's jobs; the one place where pages read jobs."""
        rows = self._database.rows(
            f"SELECT * FROM job WHERE owner IS ? AND {condition}", (self.owner, *values)
        )
        return [Job.from_row(row) for row in rows]

    def _drop_prompt(self, job_id: str) -> None:
        """Delete the prompt of anybody's job that needs it no more."""
        rows = self._database.rows("SELECT state, keep_text FROM job WHERE id = ?", (job_id,))
        if rows and not _needs_prompt(rows[0]["state"], bool(rows[0]["keep_text"])):
            self.prompts.remove(job_id)


def _back_in_line() -> str:
    """SET clause that takes a running job back, or ends it where cancelling was asked; its value: the time now."""
    return (
        "state = CASE WHEN cancel_requested THEN 'cancelled' ELSE 'queued' END, "
        f"finished_at = CASE WHEN cancel_requested THEN ? END, {_CLEARED}"
    )


def _needs_prompt(state: str, keep_text: bool) -> bool:
    return state in ("queued", "running") or (state in ("failed", "cancelled") and keep_text)
