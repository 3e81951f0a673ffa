"""The job queue, shared by the web process (submit, cancel, look) and workers (claim, report, end).

    queued --claim--> running --finish--> done
       ^                 |------fail----> failed
       |--release, lost--|------cancel--> cancelled      (queued --cancel--> cancelled)

A worker holds a job through a lease that its heartbeat renews, by the queue's clock (database.py). A lease that
ran out, or a process that is gone (presence.py), means that the worker was lost: the job goes back to its old place,
and fails as "worker_lost" after MAX_LOSSES workers. Every write of a worker names (job id, attempt) and is refused with
LeaseLostError once the job has moved on, so a worker that was stopped and wakes up late changes nothing. A worker that
goes in good order releases its job, which counts as no loss.

What pages call is in owner_jobs.py and sees one owner's jobs; workers serve everybody.

No torch, duckdb or streamlit here: the web process imports this module.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from routesparse.engine.errors import RouteSparseError
from routesparse.engine.jobs import presence
from routesparse.engine.jobs.database import Row
from routesparse.engine.jobs.job import Claim, FailureKind, Progress, State, lease_end, lease_runs
from routesparse.engine.jobs.owner_jobs import OwnerJobs, needs_prompt

LEASE_S = 30.0
MAX_LOSSES = 3
WORKER_FORGOTTEN_S = 24 * 3600.0

_CLEARED = "worker = NULL, lease_until = NULL, stage = NULL, done = NULL, total = NULL"
_LOST = (
    "worker lost: {losses} workers stopped while they ran this job, the last in stage {stage!r}. "
    "The operating system ends processes that take too much memory; try a shorter prompt, then submit again"
)


class LeaseLostError(RouteSparseError):
    """This worker's claim is no longer valid: the job was taken back, or has ended. Discard the result."""


class JobQueue(OwnerJobs):
    """The queue that the environment names. Threads may share one; processes open their own."""

    # What workers call

    def claim(self, worker: str, lease_s: float = LEASE_S) -> Claim | None:
        """Take the oldest waiting job for lease_s seconds, or None. Two workers never get the same attempt."""
        if not self.database.rows("SELECT 1 FROM job WHERE state = 'queued' LIMIT 1"):
            return None  # an idle worker takes no write lock
        self.check_place()  # without its prompt a job would fail
        with self.database.transaction() as connection:
            row = connection.execute(
                f"SELECT * FROM job WHERE state = 'queued' ORDER BY seq LIMIT 1{self.database.skip_locked}"
            ).fetchone()
            if row is None:
                return None
            now = self.database.now()  # under the lock: jobs start in the order in which they are taken
            connection.execute(
                "UPDATE job SET state = 'running', attempt = attempt + 1, worker = ?, lease_until = ?, "
                "started_at = ? WHERE seq = ?",
                (worker, lease_end(self.database.lease_clock(), lease_s), now, row["seq"]),
            )
        return Claim(
            row["id"],
            row["attempt"] + 1,
            row["request_json"],
            row["label"],
            row["kind"],
            row["prompt_bytes"] > 0,
            row["sweep"],
        )

    def heartbeat(
        self, claim: Claim, lease_s: float = LEASE_S, progress: Progress = (None, None, None)
    ) -> bool:
        """Renew the lease and say what is being done; True when the user asked to cancel.

        Errors: LeaseLostError, QueueBusyError.
        """
        change = "lease_until = ?, stage = ?, done = ?, total = ?"
        with self.database.transaction() as connection:
            now, until = self.database.now(), lease_end(self.database.lease_clock(), lease_s)
            self._fenced(connection, claim, change, (until, *progress))
            row = connection.execute(
                "SELECT worker, cancel_requested FROM job WHERE id = ?", (claim.job_id,)
            ).fetchone()
            connection.execute("UPDATE worker SET seen_at = ? WHERE id = ?", (now, row["worker"]))
        return bool(row["cancel_requested"])

    def finish(self, claim: Claim, run_id: str, result: str | None = None) -> None:
        """The job is done and ``run_id`` is its run: the one moment at which a job ends well (see staging).

        result: the name of the profile or calibration, where the job made one of these. Errors: those of ``_end``.
        """
        self._end(claim, "done", run_id=run_id, result=result)

    def fail(self, claim: Claim, kind: FailureKind, message: str, log_id: str | None = None) -> None:
        """The job failed and won't be tried again. Errors: those of ``_end``."""
        self._end(claim, "failed", error_kind=kind, error_message=message, log_id=log_id)

    def cancelled(self, claim: Claim) -> None:
        """The worker stopped because the user asked. Errors: those of ``_end``."""
        self._end(claim, "cancelled")

    def release(self, claim: Claim) -> None:
        """Put the job back in its place because this worker is stopping; no loss is counted."""
        with self.database.transaction() as connection:
            self._fenced(connection, claim, _back_in_line(), (self.database.now(),))
        self._drop_prompt(claim.job_id)

    def requeue_lost(self) -> list[str]:
        """Take back jobs of lost workers, and fail those that lost MAX_LOSSES. Ids of the jobs that changed.

        Pages may call it too: then a lost worker shows although no other worker runs.
        """
        held = self.database.rows("SELECT id, attempt, worker, lease_until FROM job WHERE state = 'running'")
        lost = {(row["id"], row["attempt"]) for row in self._lost(held)}
        if not lost:
            return []
        with self.database.transaction() as connection:
            now = self.database.now()
            # Once more under the lock: somebody may have taken a job back, a late heartbeat renewed its lease.
            current = connection.execute(
                f"SELECT * FROM job WHERE state = 'running' ORDER BY seq{self.database.skip_locked}"
            ).fetchall()
            rows = self._lost([row for row in current if (row["id"], row["attempt"]) in lost])
            for row in rows:
                losses = row["losses"] + 1
                values: tuple[Any, ...] = (now,)
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

    def _lost(self, held: list[Row]) -> list[Row]:
        """Of running jobs those whose worker was lost."""
        clock = self.database.lease_clock() if held else 0.0
        return [
            row
            for row in held
            if not lease_runs(clock, row["lease_until"]) or presence.is_gone(self.home, row["worker"])
        ]

    def seen(self, worker: str, device: presence.Device | None = None) -> None:
        """A worker reports that it is alive, and once it knows, on which device it runs its jobs."""
        now = self.database.now()
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT INTO worker (id, started_at, seen_at, device) VALUES (?, ?, ?, ?) ON CONFLICT (id) "
                "DO UPDATE SET seen_at = excluded.seen_at, device = COALESCE(excluded.device, worker.device)",
                (worker, now, now, device and device.to_json()),
            )
            connection.execute("DELETE FROM worker WHERE seen_at < ?", (now - WORKER_FORGOTTEN_S,))

    def sweep_workers(self) -> None:
        """Remove what dead workers left: first their rows, which without a lock's file would count as alive."""
        rows = self.database.rows("SELECT worker FROM job WHERE state = 'running'")
        dead = presence.dead(self.home, {row["worker"] for row in rows})
        if not dead:
            return
        with self.database.transaction() as connection:
            for worker in dead:
                connection.execute("DELETE FROM worker WHERE id = ?", (worker,))
        presence.forget(self.home, dead)

    def goodbye(self, worker: str) -> None:
        """A worker has stopped in good order."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM worker WHERE id = ?", (worker,))

    # What operations call

    def tally(self) -> dict[str, int]:
        """How many of everybody's jobs are in each state that occurs."""
        rows = self.database.rows("SELECT state, count(*) AS jobs FROM job GROUP BY state")
        return {row["state"]: row["jobs"] for row in rows}

    def durations(self) -> list[tuple[str, float]]:
        """State and seconds of the last attempt, for everybody's jobs that ran to an end."""
        rows = self.database.rows(
            "SELECT state, finished_at - started_at AS seconds FROM job "
            "WHERE state IN ('done', 'failed') AND started_at IS NOT NULL"
        )
        return [(row["state"], max(0.0, row["seconds"])) for row in rows]

    def waiting_since(self) -> float | None:
        """When the oldest waiting job was submitted, seconds since 1970; None where none waits."""
        return self.database.rows("SELECT min(created_at) AS oldest FROM job WHERE state = 'queued'")[0][
            "oldest"
        ]

    def ended_before(self, limit: float) -> list[str]:
        """Everybody's jobs that ended before this time (seconds since 1970) and whose run, if any, was handed over."""
        rows = self.database.rows(
            "SELECT id FROM job WHERE state IN ('done', 'failed', 'cancelled') AND finished_at < ? "
            "AND (state <> 'done' OR published = 1) ORDER BY seq",
            (limit,),
        )
        return [row["id"] for row in rows]

    def forget(self, job_ids: Collection[str]) -> None:
        """Delete these ended jobs and their prompts; their runs stay."""
        with self.database.transaction() as connection:
            for job_id in job_ids:
                connection.execute(
                    "DELETE FROM job WHERE id = ? AND state NOT IN ('queued', 'running')", (job_id,)
                )
        for job_id in job_ids:
            self.prompts.remove(job_id)

    # What staging calls

    def mark_published(self, run_id: str) -> None:
        """The run's bundle is in the spool, or has been taken from there already."""
        with self.database.transaction() as connection:
            connection.execute("UPDATE job SET published = 1 WHERE run_id = ?", (run_id,))

    def current_runs(self) -> set[str]:
        """Runs whose staged files are needed: of running attempts, and of done jobs not yet published."""
        rows = self.database.rows("SELECT id, attempt FROM job WHERE state = 'running'")
        return {f"{row['id']}-{row['attempt']}" for row in rows} | set(self.unpublished())

    def sweep_prompts(self) -> None:
        """Delete prompts that no job needs any more, such as after a crash between a job's end and its file's."""
        names = self.prompts.names()  # before the rows, so that a job submitted meanwhile isn't seen half
        rows = self.database.rows("SELECT id, state, keep_text FROM job")
        needed = {row["id"] for row in rows if needs_prompt(row["state"], bool(row["keep_text"]))}
        self.prompts.sweep(names, {row["id"] for row in rows}, needed)

    def _end(self, claim: Claim, state: State, **told: str | None) -> None:
        """End a job with what is told of it, by column. Harmless to repeat: the first answer may have been lost."""
        values = (state, *told.values())
        change = ", ".join(f"{column} = ?" for column in ("state", *told))
        cleared = "worker = NULL, lease_until = NULL, finished_at = ?"
        try:
            with self.database.transaction() as connection:
                self._fenced(connection, claim, f"{change}, {cleared}", (*values, self.database.now()))
        except LeaseLostError:
            same = " AND ".join(f"{column} IS ?" for column in ("state", *told))
            if not self.database.rows(
                f"SELECT 1 FROM job WHERE id = ? AND attempt = ? AND {same}",
                (claim.job_id, claim.attempt, *values),
            ):
                raise
        self._drop_prompt(claim.job_id)

    def _fenced(self, connection: Any, claim: Claim, change: str, values: tuple[Any, ...]) -> None:
        cursor = connection.execute(
            f"UPDATE job SET {change} WHERE id = ? AND attempt = ? AND state = 'running'",
            (*values, claim.job_id, claim.attempt),
        )
        if cursor.rowcount != 1:
            raise LeaseLostError(
                f"attempt {claim.attempt} of job {claim.job_id} is no longer the current one"
            )


def _back_in_line() -> str:
    """SET clause that takes a running job back, or ends it where cancelling was asked; its value: the time now."""
    return (
        "state = CASE WHEN cancel_requested = 1 THEN 'cancelled' ELSE 'queued' END, "
        f"finished_at = CASE WHEN cancel_requested = 1 THEN ? END, {_CLEARED}"
    )
