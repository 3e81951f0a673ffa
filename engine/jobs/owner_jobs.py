"""The jobs of one owner: what pages submit, look at, cancel and delete.

Every read goes through ``_mine``: somebody else's job is like one that does not exist. No torch, duckdb or streamlit.
"""

from __future__ import annotations

import copy
import hashlib
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from routesparse.engine import paths
from routesparse.engine.errors import ConfigError, InputError
from routesparse.engine.jobs import presence
from routesparse.engine.jobs.database import Database
from routesparse.engine.jobs.job import ENDED, Job, State, WorkerSeen
from routesparse.engine.jobs.kinds import read_request
from routesparse.engine.jobs.prompt_files import PromptFiles
from routesparse.engine.jobs.request import Request, RunRequest
from routesparse.engine.jobs.sweep import check_size

FILE = "jobs.sqlite3"
BUSY_TIMEOUT_S = 5.0


class OwnerJobs:
    """One owner's jobs in the queue of one home folder; None is the one person of a dashboard without a login."""

    def __init__(self, home: Path | None = None, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open or create ``home/jobs.sqlite3``. Errors: StoreError."""
        self.home = Path(home or paths.home())
        self.prompts = PromptFiles(self.home / "prompts")
        self._database = Database(self.home / FILE, busy_timeout_s)
        self.owner: str | None = None

    def of(self, owner: str | None) -> Self:
        """The same queue for another owner's pages."""
        theirs = copy.copy(self)
        theirs.owner = owner
        return theirs

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    def submit(self, request: Request, content: bytes | str = b"") -> str:
        """Queue one job with its content, an analysis's prompt or a calibration's packed documents; the job's id.

        When this returns, the job survives a power cut. Errors: PromptError (empty, binary, not UTF-8), ConfigError,
        QueueBusyError, StoreError; nothing is queued then.
        """
        return self._insert((request,), content, None)[0]

    def submit_sweep(self, requests: Sequence[RunRequest], content: bytes | str) -> str:
        """Queue one prompt under several settings, all or none, in this order; the sweep's id.

        Errors: ConfigError for fewer than two requests, too many, or two that are equal, and those of ``submit``.
        """
        check_size(len(requests))
        if len(set(requests)) < len(requests):
            raise ConfigError("two settings of the sweep are the same; leave one out")
        sweep_id = secrets.token_hex(8)
        self._insert(requests, content, sweep_id)
        return sweep_id

    def _insert(self, requests: Sequence[Request], content: bytes | str, sweep_id: str | None) -> list[str]:
        raw = content.encode() if isinstance(content, str) else content
        requests[0].check_content(raw)
        digest = hashlib.sha256(raw).hexdigest()
        # Every kind is a dataclass, which the base class can't say.
        owned: list[Request] = [replace(one, owner=self.owner) for one in requests]  # type: ignore[type-var]
        jobs = [(secrets.token_hex(8), request) for request in owned]
        try:
            for job_id, _ in jobs if raw else ():
                self.prompts.write(job_id, raw)
            with self._database.transaction() as connection:
                connection.executemany(
                    "INSERT INTO job (id, kind, state, label, request_json, prompt_sha256, prompt_bytes, keep_text, "
                    "created_at, owner, sweep) VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?)",
                    [
                        (
                            job_id,
                            request.kind,
                            request.title,
                            request.to_json(),
                            digest,
                            len(raw),
                            request.keeps_content,
                            time.time(),
                            self.owner,
                            sweep_id,
                        )
                        for job_id, request in jobs
                    ],
                )
        except BaseException:
            for job_id, _ in jobs:
                self.prompts.remove(job_id)
            raise
        return [job_id for job_id, _ in jobs]

    def retry(self, job_id: str) -> str:
        """Submit a failed or cancelled job's request and content again, as a new job of the same sweep; its id.

        Errors: InputError for an unknown job, PromptError when its text was not kept.
        """
        job = self._known(job_id)
        request = read_request(job.kind, job.request_json)
        content = self.prompts.read(job_id) if job.prompt_bytes else b""
        return self._insert((request,), content, job.sweep)[0]

    def job(self, job_id: str) -> Job | None:
        """One job, or None when there is none (any more). Errors: StoreError."""
        found = self._mine("id = ?", (job_id,))
        return found[0] if found else None

    def jobs(self, states: Iterable[State] | None = None, limit: int = 100) -> list[Job]:
        """Jobs, newest first, of these states. Errors: StoreError."""
        wanted = tuple(states) if states is not None else ("queued", "running", *ENDED)
        marks = ", ".join("?" * len(wanted))
        return self._mine(f"state IN ({marks}) ORDER BY seq DESC LIMIT ?", (*wanted, limit))

    def sweep(self, sweep_id: str) -> list[Job]:
        """The jobs of one sweep, oldest first; empty where there is none. Errors: StoreError."""
        return self._mine("sweep = ? ORDER BY seq", (sweep_id,))

    def sweeps(self, limit: int = 50) -> list[str]:
        """The ids of sweeps, the newest first. Errors: StoreError."""
        rows = self._database.rows(
            "SELECT sweep FROM job WHERE owner IS ? AND sweep IS NOT NULL "
            "GROUP BY sweep ORDER BY min(seq) DESC LIMIT ?",
            (self.owner, limit),
        )
        return [row["sweep"] for row in rows]

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
        self._cancel([self._known(job_id)])
        return self._known(job_id).state

    def cancel_sweep(self, sweep_id: str) -> None:
        """Cancel every job of a sweep that has not ended, as ``cancel`` does, all or none. Errors: InputError."""
        jobs = self.sweep(sweep_id)
        if not jobs:
            raise InputError(f"no sweep is called {sweep_id!r}; its jobs may have been deleted")
        self._cancel(jobs)

    def _cancel(self, jobs: Sequence[Job]) -> None:
        with self._database.transaction() as connection:
            for job in jobs:
                connection.execute(
                    "UPDATE job SET state = 'cancelled', finished_at = ? WHERE id = ? AND state = 'queued'",
                    (time.time(), job.id),
                )
                connection.execute(
                    "UPDATE job SET cancel_requested = 1 WHERE id = ? AND state = 'running'", (job.id,)
                )
        for job in jobs:
            self._drop_prompt(job.id)

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
            WorkerSeen(row["id"], row["started_at"], row["seen_at"], presence.device_of(self.home, row["id"]))
            for row in rows
            if not presence.is_gone(self.home, row["id"])
        ]

    def unpublished(self) -> list[str]:
        """Runs of done jobs whose bundles may still have to be moved into the spool."""
        rows = self._database.rows(
            "SELECT run_id FROM job WHERE state = 'done' AND published = 0 ORDER BY seq"
        )
        return [row["run_id"] for row in rows]

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
        if rows and not needs_prompt(rows[0]["state"], bool(rows[0]["keep_text"])):
            self.prompts.remove(job_id)


def needs_prompt(state: str, keep_text: bool) -> bool:
    """Whether a job in this state may still have to be run with the text it was submitted with."""
    return state in ("queued", "running") or (state in ("failed", "cancelled") and keep_text)
