"""The worker: takes jobs one after another, runs them with a warm model, and hands over their bundles.

One process per GPU (or per machine without one). ``run_worker`` is the one entry; the command line and Procfile
call it. Killed at any moment, the next worker goes on where the queue and the staged bundles say (staging.py).
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from routesparse.engine.device import host_memory
from routesparse.engine.errors import ConfigError, StoreError
from routesparse.engine.jobs import presence, staging
from routesparse.engine.jobs.database import QueueGoneError, QueuePlaceError
from routesparse.engine.jobs.failures import classify
from routesparse.engine.jobs.heartbeat import BEAT_S, Heartbeat, Interrupted
from routesparse.engine.jobs.job import Claim
from routesparse.engine.jobs.kinds import read_request
from routesparse.engine.jobs.log import JobLog, frames
from routesparse.engine.jobs.queue import LEASE_S, JobQueue, LeaseLostError
from routesparse.engine.jobs.request import Request, RunRequest
from routesparse.engine.jobs.signals import Flag, leaving_in_time, stopped_by_signals, wait_any
from routesparse.engine.prompts.text import decode_prompt, is_panic

if TYPE_CHECKING:
    from routesparse.engine.jobs.analysis import Analyze, CompileAhead, Prepare, Report

Describe = Callable[[], presence.Device]

POLL_S = 0.5
SEEN_EVERY_S = 5.0
RETRY_S = 0.5


def run_worker(
    home: Path,
    analyze: Analyze,
    prepare: Prepare | None = None,
    *,
    poll_s: float = POLL_S,
    once: bool = False,
    describe: Describe | None = None,
    compile_ahead: CompileAhead | None = None,
    lease_s: float = LEASE_S,
    beat_s: float = BEAT_S,
    stop: Flag | None = None,
    grace_s: float | None = None,
) -> int:
    """Work until SIGTERM or SIGINT, or with ``once`` until nothing waits; the exit code 0.

    home: where queue, prompts, spool and logs live. analyze: (request, prompt, run id, report) -> RunRecord with
    that run id; the command line hands in a WarmAnalysis (analysis.py). prepare: for the other kinds of jobs, which
    fail without it; a WarmPreparation (preparation.py). describe: names the device that jobs run on. It and
    compile_ahead run beside the jobs from the start on, and their errors end in the log. stop: ends the worker like
    SIGTERM does.
    A job that runs at a signal goes back into the queue at once, to begin anew with the next worker, and is not
    counted as lost; this returns when the job's step (a layer, the loading of a model) ends. grace_s: end the process
    where that takes longer; None: wait for it.
    Errors: StoreError when the queue can't be opened; later ones are logged and waited out, but for QueueGoneError.
    """
    queue = JobQueue(home)
    flag = stop or Flag()
    try:
        worker = _Worker(queue, analyze, prepare, flag, lease_s, beat_s)
        in_time = nullcontext() if grace_s is None else leaving_in_time(flag, grace_s, worker.leave)
        with presence.present(home, worker.id), stopped_by_signals(flag), in_time:
            if describe is not None or compile_ahead is not None:
                threading.Thread(
                    target=worker.look_around, args=(describe, compile_ahead), name="compile", daemon=True
                ).start()
            worker.loop(poll_s, once)
    finally:
        queue.close()
        if stop is None:
            flag.close()
    return 0


class _Worker:
    def __init__(
        self,
        queue: JobQueue,
        analyze: Analyze,
        prepare: Prepare | None,
        stop: Flag,
        lease_s: float,
        beat_s: float,
    ) -> None:
        self._queue, self._analyze, self._prepare, self._stop = queue, analyze, prepare, stop
        self._lease_s, self._beat_s = lease_s, beat_s
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._log = JobLog(queue.home, self.id)
        self._seen_at = float("-inf")
        self._troubled = False
        self._swept = False

    def look_around(self, describe: Describe | None, compile_ahead: CompileAhead | None) -> None:
        """Say what jobs run on, and compile before the first one asks for it; no job needs either."""
        try:
            if describe is not None:
                self._queue.seen(self.id, describe())
        # The boundary of a thread: pages then don't know the device.
        except Exception as error:  # noqa: BLE001
            self._log.write("device_unknown", error=type(error).__name__, frames=frames(error))
        try:
            compiled = None if compile_ahead is None else compile_ahead()
        # The boundary of a thread: what could not be compiled here is compiled when it is launched.
        except Exception as error:  # noqa: BLE001
            self._log.write("kernels_not_compiled", error=type(error).__name__, frames=frames(error))
            return
        if compiled is not None:
            self._log.write("kernels_compiled", **asdict(compiled))

    def loop(self, poll_s: float, once: bool) -> None:
        self._log.write("worker_started")
        while not self._stop.is_set():
            worked = self._turn()
            if once and worked is False:
                break
            if not worked:
                wait_any((self._stop,), poll_s)
        self._goodbye()
        self._log.write("worker_stopped")

    def leave(self) -> None:
        """The last words of a worker whose main thread is still in a step of its job."""
        self._log.write("worker_left_a_step")

    def _goodbye(self) -> None:
        try:
            self._queue.goodbye(self.id)
        except StoreError as error:
            self._log.write("goodbye_missed", error=type(error).__name__)

    def _turn(self) -> bool | None:
        """One look at the queue and at most one job. False: nothing waits. None: the queue can't be used now."""
        try:
            self._look_after()
            claim = self._queue.claim(self.id, self._lease_s)
            if claim is not None:
                self._run(claim)
        except QueueGoneError:
            raise
        except StoreError as error:
            # Locked, or its disk is full: one line per outage, then patience.
            if not self._troubled:
                self._log.write("queue_unavailable", error=type(error).__name__)
            self._troubled = True
            return None
        self._troubled = False
        return claim is not None

    def _look_after(self) -> None:
        """What lost workers left: their jobs, their finished bundles, their files."""
        lost = self._queue.requeue_lost()
        for job_id in lost:
            self._log.write("worker_lost", job=job_id)
        staging.publish_finished(self._queue)
        if lost or not self._swept:
            staging.sweep(self._queue)
            self._queue.sweep_prompts()
            self._queue.sweep_workers()
            self._swept = True
        if time.monotonic() - self._seen_at > SEEN_EVERY_S:
            self._queue.seen(self.id)
            self._seen_at = time.monotonic()

    def _run(self, claim: Claim) -> None:
        started = time.monotonic()
        about = {"job": claim.job_id, "run": claim.run_id}
        self._log.write("job_started", attempt=claim.attempt, **about)
        outcome = self._outcome(claim)
        host_memory.give_back()
        self._log.write(outcome, seconds=round(time.monotonic() - started, 3), **about)

    def _outcome(self, claim: Claim) -> str:
        """Run the job and end it; the name of what happened, for the log."""
        try:
            try:
                result = self._work(claim)
            except Interrupted as interruption:
                staging.discard(self._queue, claim.run_id)
                if interruption.verdict == "cancelled":
                    self._patiently(self._queue.cancelled, claim)
                return f"job_{interruption.verdict}"
            # The boundary of a job: whatever went wrong is this job's failure, not the worker's end.
            except BaseException as error:
                if not (isinstance(error, Exception) or is_panic(error)):
                    raise
                staging.discard(self._queue, claim.run_id)
                if self._folder_was_away(error):
                    self._log.write(
                        "folder_away", job=claim.job_id, run=claim.run_id, error=type(error).__name__
                    )
                    self._patiently(self._queue.release, claim)
                    return "job_put_back"
                return self._failed(claim, error)
            self._patiently(self._queue.finish, claim, claim.run_id, result)
        except LeaseLostError:
            # Taken back while this process was stopped or cut off: somebody else's result counts.
            staging.discard(self._queue, claim.run_id)
            return "job_lost"
        staging.publish(self._queue, claim.run_id)
        return "job_done"

    def _folder_was_away(self, error: BaseException) -> bool:
        """Whether prompts and results were or are out of reach: what failed then is no fault of the job."""
        try:
            self._queue.check_place()
        except QueuePlaceError:
            return True
        return isinstance(error, QueuePlaceError)

    def _work(self, claim: Claim) -> str | None:
        """Leave the staged result of this attempt, and name it unless it is a run."""
        self._queue.check_place()  # it was asked before the claim; without its prompt the job would fail
        heart = Heartbeat(
            self._queue, claim, self._stop, self._log, lease_s=self._lease_s, beat_s=self._beat_s
        )
        stages: list[str] = []

        def report(stage: str, done: int, total: int) -> None:
            if stages[-1:] != [stage]:
                stages.append(stage)
                self._log.write("stage", job=claim.job_id, run=claim.run_id, stage=stage)
            heart.progress(stage, done, total)

        result = None
        with heart:
            request = read_request(claim.kind, claim.request_json)
            if isinstance(request, RunRequest):
                self._analyse(claim, request, report)
            else:
                result = self._prepared(claim, request, report)
        heart.check()
        self._queue.check_place()  # what was staged meanwhile may lie on the empty mount point
        return result

    def _analyse(self, claim: Claim, request: RunRequest, report: Report) -> None:
        prompt = decode_prompt(self._queue.prompts.read(claim.job_id), request.label)
        record = self._analyze(request, prompt, claim.run_id, report)
        record = replace(record, run=replace(record.run, owner=request.owner, sweep=claim.sweep))
        report("write", 0, 1)
        staging.stage(self._queue, record)

    def _prepared(self, claim: Claim, request: Request, report: Report) -> str:
        if self._prepare is None:
            raise ConfigError(
                f"this worker runs no job of kind {claim.kind!r}; start one with `routesparse worker`"
            )
        content = self._queue.prompts.read(claim.job_id) if claim.has_content else b""
        folder = staging.home_of(self._queue, claim.run_id)
        result = self._prepare(request, content, folder, report)
        staging.flush_home(folder)
        return result

    def _failed(self, claim: Claim, error: BaseException) -> str:
        log_id = secrets.token_hex(4)
        kind, message = classify(error, log_id)
        self._log.write(
            "failure",
            job=claim.job_id,
            run=claim.run_id,
            kind=kind,
            log_id=log_id,
            error=type(error).__name__,
            frames=frames(error),
        )
        self._patiently(self._queue.fail, claim, kind, message, log_id)
        return "job_failed"

    def _patiently(self, write: Callable[..., None], *values: object) -> None:
        """Repeat a write of the queue while it is locked or its disk is full, until the worker has to stop."""
        missed = False
        while True:
            try:
                write(*values)
            except StoreError as error:
                if self._stop.is_set() or isinstance(error, QueueGoneError):
                    raise
                if not missed:
                    self._log.write("write_missed", error=type(error).__name__)
                missed = True
                wait_any((self._stop,), RETRY_S)
            else:
                return
