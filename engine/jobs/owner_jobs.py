"""The jobs of one owner: what pages submit, look at, cancel and delete.

Every read goes through ``_mine``: somebody else's job is like one that does not exist. No torch, duckdb or streamlit.
"""

from __future__ import annotations

import copy
import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from routesparse.engine import paths
from routesparse.engine.errors import ConfigError, InputError, StoreError
from routesparse.engine.jobs import presence
from routesparse.engine.jobs.database import QueueUncertainError
from routesparse.engine.jobs.job import ENDED, Job, State, WorkerSeen, lease_runs
from routesparse.engine.jobs.kinds import read_request
from routesparse.engine.jobs.opening import open_database
from routesparse.engine.jobs.prompt_files import PromptFiles
from routesparse.engine.jobs.request import Request, RunRequest
from routesparse.engine.jobs.sweep import check_size

BUSY_TIMEOUT_S = 5.0
SILENT_S = 60.0  # a worker of another host, which reports every few seconds, then counts as gone


class OwnerJobs:
    """One owner's jobs in the queue; None is the one person of a dashboard without a login.

    home: where this host's workers say that they live. place: where prompts and what jobs made lie; the home, or where
    several hosts share the queue a folder that they all see.
    """

    def __init__(self, home: Path | None = None, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open or create ``home/jobs.sqlite3``, or the queue of ROUTESPARSE_QUEUE. Errors: StoreError, ConfigError."""
        self.home = Path(home or paths.home())
        self.database, self.place = open_database(self.home, busy_timeout_s)
        self.prompts = PromptFiles(self.place / "prompts")
        self.owner: str | None = None

    def of(self, owner: str | None) -> Self:
        """The same queue for another owner's pages."""
        theirs = copy.copy(self)
        theirs.owner = owner
        return theirs

    def close(self) -> None:
        """Give the file, or the connection, back."""
        self.database.close()

    @property
    def beyond_host(self) -> bool:
        """Whether workers of other hosts share the queue, and may take a job that this host's lost sight of."""
        return self.database.beyond_host

    def now(self) -> float:
        """Seconds since 1970 by the clock of every time in the queue. Errors: StoreError."""
        return self.database.now()

    def check_place(self) -> None:
        """Whether the folder of prompts and results is this queue's, and mounted. A file's own folder always is.

        Errors: QueuePlaceError.
        """
        self.database.check_place()

    def submit(self, request: Request, content: bytes | str = b"") -> str:
        """Queue one job with its content, an analysis's prompt or a calibration's packed documents; the job's id.

        When this returns, the job survives a power cut. Errors: PromptError (empty, binary, not UTF-8), ConfigError,
        QueueBusyError, StoreError; nothing is queued then. QueueUncertainError: it may be.
        """
        return self._insert((request,), [content], None)[0]

    def submit_texts(self, requests: Sequence[RunRequest], contents: Sequence[bytes | str]) -> str:
        """Queue one analysis for each text, all or none, in this order; the id that they share, as a sweep's jobs do.

        Errors: those of ``submit``.
        """
        texts_id = secrets.token_hex(8)
        self._insert(requests, contents, texts_id)
        return texts_id

    def submit_sweep(self, requests: Sequence[RunRequest], content: bytes | str) -> str:
        """Queue one prompt under several settings, all or none, in this order; the sweep's id.

        Errors: ConfigError for fewer than two requests, too many, or two that are equal, and those of ``submit``.
        """
        check_size(len(requests))
        if len(set(requests)) < len(requests):
            raise ConfigError("two settings of the sweep are the same; leave one out")
        sweep_id = secrets.token_hex(8)
        self._insert(requests, [content] * len(requests), sweep_id)
        return sweep_id

    def _insert(
        self, requests: Sequence[Request], contents: Sequence[bytes | str], sweep_id: str | None
    ) -> list[str]:
        raws = [content.encode() if isinstance(content, str) else content for content in contents]
        for request, raw in zip(requests, raws, strict=True):
            request.check_content(raw)
        # Every kind is a dataclass, which the base class can't say.
        owned: list[Request] = [replace(one, owner=self.owner) for one in requests]  # type: ignore[type-var]
        jobs = [(secrets.token_hex(8), request, raw) for request, raw in zip(owned, raws, strict=True)]
        self.check_place()
        try:
            for job_id, _, raw in jobs:
                if raw:
                    self.prompts.write(job_id, raw)
            with self.database.transaction() as connection:
                for job_id, request, raw in jobs:
                    connection.execute(
                        "INSERT INTO job (id, kind, state, label, request_json, prompt_sha256, prompt_bytes, "
                        "keep_text, created_at, owner, sweep) VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?)",
                        (
                            job_id,
                            request.kind,
                            request.title,
                            request.to_json(),
                            hashlib.sha256(raw).hexdigest(),
                            len(raw),
                            int(request.keeps_content),
                            self.database.now(),
                            self.owner,
                            sweep_id,
                        ),
                    )
        except QueueUncertainError:
            # The server may still be confirming it: the prompts stay, and are swept if no job comes to need them.
            if not self._came_through(jobs[0][0]):
                raise
        except BaseException:
            for job_id, *_ in jobs:
                self.prompts.remove(job_id)
            raise
        return [job_id for job_id, *_ in jobs]

    def _came_through(self, job_id: str) -> bool:
        """Whether a job that nobody confirmed is seen to be in the queue; False may only mean that it is not yet."""
        try:
            return bool(self.database.rows("SELECT 1 FROM job WHERE id = ?", (job_id,)))
        except StoreError:
            return False

    def retry(self, job_id: str) -> str:
        """Submit a failed or cancelled job's request and content again, as a new job of the same sweep; its id.

        Errors: InputError for an unknown job, PromptError when its text was not kept.
        """
        job = self._known(job_id)
        request = read_request(job.kind, job.request_json)
        self.check_place()
        content = self.prompts.read(job_id) if job.prompt_bytes else b""
        return self._insert((request,), [content], job.sweep)[0]

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
        """The ids of sweeps of one prompt, the newest first. Errors: StoreError."""
        rows = self.database.rows(
            "SELECT sweep FROM job WHERE owner IS ? AND sweep IS NOT NULL "
            "GROUP BY sweep HAVING count(DISTINCT prompt_sha256) = 1 ORDER BY min(seq) DESC LIMIT ?",
            (self.owner, limit),
        )
        return [row["sweep"] for row in rows]

    def position(self, job_id: str) -> int | None:
        """1 for the job that is next, 2 for the one after it; None for a job that doesn't wait.

        Everybody's jobs are counted: they share the workers.
        """
        rows = self.database.rows(
            "SELECT (SELECT count(*) FROM job AS other WHERE other.state = 'queued' AND other.seq <= job.seq) "
            "AS place FROM job WHERE id = ? AND owner IS ? AND state = 'queued'",
            (job_id, self.owner),
        )
        return int(rows[0]["place"]) if rows else None

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
        with self.database.transaction() as connection:
            for job in jobs:
                # One statement: between two, another host could put the running job back, and neither would match.
                connection.execute(
                    "UPDATE job SET state = CASE state WHEN 'queued' THEN 'cancelled' ELSE state END, "
                    "finished_at = CASE state WHEN 'queued' THEN ? ELSE finished_at END, "
                    "cancel_requested = CASE state WHEN 'running' THEN 1 ELSE cancel_requested END "
                    "WHERE id = ? AND state IN ('queued', 'running')",
                    (self.database.now(), job.id),
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
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM job WHERE id = ?", (job_id,))
        self.prompts.remove(job_id)

    def made(self, run_id: str) -> bool:
        """Whether a run comes from this owner's job. One without a job, of the command line, is the local person's."""
        job_id = run_id.rpartition("-")[0]
        rows = self.database.rows("SELECT owner FROM job WHERE id = ?", (job_id,))
        return (rows[0]["owner"] if rows else None) == self.owner

    def workers(self) -> list[WorkerSeen]:
        """Workers that have reported, not said goodbye and not been killed, last seen first; a live one is seen
        every few seconds."""
        rows, now = self.database.rows("SELECT * FROM worker ORDER BY seen_at DESC"), self.database.now()
        found = []
        for row in rows:
            lives = presence.lives(self.home, row["id"])
            if lives or (lives is None and now - row["seen_at"] < SILENT_S):
                device = presence.read_device(row["device"])
                found.append(WorkerSeen(row["id"], row["started_at"], row["seen_at"], device))
        return found

    def held(self) -> bool:
        """Whether a worker holds one of this owner's jobs by a valid lease. Errors: StoreError."""
        running, clock = self.jobs(("running",)), self.database.lease_clock()
        return any(job.lease_until is not None and lease_runs(clock, job.lease_until) for job in running)

    def unpublished(self) -> list[str]:
        """Runs of done jobs whose bundles may still have to be moved into the spool."""
        rows = self.database.rows(
            "SELECT run_id FROM job WHERE state = 'done' AND published = 0 ORDER BY seq"
        )
        return [row["run_id"] for row in rows]

    def _known(self, job_id: str) -> Job:
        job = self.job(job_id)
        if job is None:
            raise InputError(f"no job is called {job_id!r}; it may have been deleted")
        return job

    def _mine(self, condition: str, values: tuple[Any, ...]) -> list[Job]:
        """The owner's jobs; the one place where pages read jobs."""
        rows = self.database.rows(
            f"SELECT * FROM job WHERE owner IS ? AND {condition}", (self.owner, *values)
        )
        return [Job.from_row(row) for row in rows]

    def _drop_prompt(self, job_id: str) -> None:
        """Delete the prompt of anybody's job that needs it no more."""
        rows = self.database.rows("SELECT state, keep_text FROM job WHERE id = ?", (job_id,))
        if rows and not needs_prompt(rows[0]["state"], bool(rows[0]["keep_text"])):
            self.prompts.remove(job_id)


def needs_prompt(state: str, keep_text: bool) -> bool:
    """Whether a job in this state may still have to be run with the text it was submitted with."""
    return state in ("queued", "running") or (state in ("failed", "cancelled") and keep_text)
