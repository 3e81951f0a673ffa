"""The faults: each hurts a stage once, at a moment that the seed decides, and leaves the rest to ``Stage.recover``."""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from routesparse.engine.jobs.log import tail

JOB_S = 0.6  # of a job with its claim and handover, about
STOPPED_S = 3.0  # three leases
TAKEN_S = 40.0  # until a new worker has started and taken the job, on a slow machine
DISK_BYTES = 24 << 20
ERROR_KINDS = {
    "RuntimeError": "unexpected",
    "ZeroDivisionError": "unexpected",
    "MemoryError": "out_of_memory",
    "NumericsError": "numerics",
    "OSError": "disk_full",
}


def ended(stage: Any, tally: Any, moments: random.Random, names: tuple[str, ...], by: int) -> None:
    """Processes end by a signal while three jobs wait, run and are handed over."""
    for name in ("worker", "web"):
        stage.start(name)
    jobs = [stage.submit() for _ in range(3)]
    stage.until_running(jobs[moments.randrange(3)])
    time.sleep(moments.uniform(0.0, JOB_S))
    codes = stage.end(*names, by=by)
    if by == signal.SIGTERM and "worker" in names and codes[0] != 0:
        tally.wrong.append(f"a worker that was asked to stop ended with {codes[0]}")
    stage.look(tally)
    stage.recover(tally)


def stopped_past_its_lease(stage: Any, tally: Any, moments: random.Random) -> None:
    """A worker is stopped, another takes its job, the first wakes up."""
    stage.start("web")
    stage.start("worker")
    job = stage.submit()
    stage.until_running(job)
    time.sleep(moments.uniform(0.0, JOB_S))
    sleeper = stage.running.pop("worker")
    sleeper.send_signal(signal.SIGSTOP)
    try:
        stage.start("worker")
        time.sleep(STOPPED_S)
        until = time.monotonic() + TAKEN_S
        while (stage.queue.job(job).state, stage.queue.job(job).attempt) == ("running", 1):
            if time.monotonic() > until:  # stopped in a transaction, it holds everybody
                break
            time.sleep(0.05)
        stage.look(tally)
    finally:
        sleeper.send_signal(signal.SIGCONT)
    stage.recover(tally)
    sleeper.send_signal(signal.SIGTERM)
    if sleeper.wait(timeout=30) != 0:
        tally.wrong.append("the worker that woke up did not stop in good order")


def two_workers(stage: Any, tally: Any, moments: random.Random) -> None:
    """Two workers on one queue; one of them is killed."""
    stage.start("web")
    names = ["worker", "worker 2"]
    for name in names:
        stage.start(name)
    jobs = [stage.submit() for _ in range(6)]
    stage.until_running(jobs[moments.randrange(6)])
    time.sleep(moments.uniform(0.0, JOB_S))
    stage.end(moments.choice(names))
    stage.look(tally)
    stage.recover(tally)
    stage.end("worker 2", by=signal.SIGTERM)
    attempts = (stage.home / "ran.txt").read_text().split()
    if len(attempts) != len(set(attempts)):
        tally.wrong.append("one attempt of a job ran twice")


def exception_in_a_layer(stage: Any, tally: Any, moments: random.Random) -> None:
    """One layer raises; the jobs beside it work, and the failure says what happened without the prompt's text."""
    stage.start("web")
    stage.start("worker")
    kind = moments.choice(sorted(ERROR_KINDS))
    stage.submit()
    job = stage.submit(f"raise {kind} {moments.randrange(4)}")
    stage.until(lambda: stage.queue.job(job).ended, "the failure")
    failure = stage.queue.job(job).failure
    if failure is None or failure.kind != ERROR_KINDS[kind]:
        tally.wrong.append(f"{kind} was told as {failure}")
    elif "swordfish" in failure.message + str(tail(stage.home, job)):
        tally.wrong.append(f"{kind} told the prompt's text")
    stage.look(tally)
    stage.queue.delete(job)
    stage.recover(tally)


def clock_set(stage: Any, tally: Any, moments: random.Random) -> None:
    """The wall clock is set by an hour, forwards or backwards, under two workers: neither loses its job."""
    stage.start("web")
    # Long enough for two slow cores, and far shorter than the jump.
    for name in ("worker", "worker 2"):
        stage.start(name, lease_s=10.0)
    jobs = [stage.submit() for _ in range(4)]
    stage.until_running(jobs[moments.randrange(3)])
    jump_s = moments.choice([3600.0, -3600.0])
    partial_clock = stage.home / ".clock.partial"
    partial_clock.write_text(str(jump_s))
    partial_clock.replace(stage.home / "clock")
    stage.look(tally)
    stage.recover(tally)
    attempts = [stage.queue.job(job).attempt for job in jobs]
    if max(attempts) > 1:
        tally.wrong.append(f"{jump_s:+.0f} s took a job from its worker: attempts {attempts}")
    stage.end("worker 2", by=signal.SIGTERM)
    (stage.home / "clock").unlink()


def memory_full(stage: Any, tally: Any, moments: random.Random) -> None:
    """A worker may take no more memory while a job asks for more: the job fails and says so, the next one works."""
    stage.start("web")
    process = stage.start("worker")
    job = stage.submit(f"raise memory {moments.randrange(4)}")
    stage.until(lambda: stage.queue.job(job).ended, "the failure")
    failure = stage.queue.job(job).failure
    if failure is None or failure.kind != "out_of_memory" or "shorten it" not in failure.message:
        tally.wrong.append(f"no memory was told as {failure}")
    stage.look(tally)
    stage.queue.delete(job)
    stage.recover(tally)
    if stage.running["worker"] is not process:
        tally.wrong.append("the worker ended for lack of memory")


def disk_full(stage: Any, tally: Any, moments: random.Random) -> None:
    """A small disk fills up while jobs run, and is emptied again: a job works later or says why it failed."""
    stage.end(*stage.running)
    with small_disk(stage.home.with_name(f"{stage.home.name} disk {tally.injected}")) as disk:
        small = type(stage)(disk / "home", stage.patience_s)
        try:
            for name in ("web", "worker"):
                small.start(name)
            jobs = [small.submit() for _ in range(3)]
            small.until_running(jobs[moments.randrange(3)])
            time.sleep(moments.uniform(0.0, JOB_S))
            fill(disk / "filler", moments.choice([0, 4096, 65_536, 262_144]))
            time.sleep(moments.uniform(0.5, 3.0))
            small.look(tally)
            (disk / "filler").unlink()
            failed = frozenset(_without_room(small, jobs))
            if "Start the dashboard again" in (small.status()["trouble"] or ""):
                small.end("web")
            small.recover(tally, failed)
        finally:
            small.close()


def _without_room(small: Any, jobs: list[str]) -> list[str]:
    """The jobs that failed because the disk was full, when all have ended; what ended meanwhile is started again."""
    for name in ("worker", "web"):
        small.start(name)
    small.until(lambda: all(small.queue.job(job).ended for job in jobs), "the jobs' ends")
    found = [small.queue.job(job) for job in jobs]
    return [job.id for job in found if job.failure is not None and job.failure.kind == "disk_full"]


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of DISK_BYTES in memory; only who may mount has one."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def may_mount(folder: Path) -> bool:
    """Whether this process may make a small disk."""
    try:
        with small_disk(folder / "probe"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def fill(file: Path, spare_bytes: int) -> None:
    """Write until the disk is full, but for so many bytes."""
    with open(file, "wb", buffering=0) as handle:
        try:
            while True:
                handle.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        handle.truncate(max(0, handle.tell() - spare_bytes))


FAULTS: dict[str, Callable[[Any, Any, random.Random], None]] = {
    "kill -9 of the worker": partial(ended, names=("worker",), by=signal.SIGKILL),
    "kill -9 of the web process": partial(ended, names=("web",), by=signal.SIGKILL),
    "kill -9 of both": partial(ended, names=("worker", "web"), by=signal.SIGKILL),
    "SIGTERM to both": partial(ended, names=("worker", "web"), by=signal.SIGTERM),
    "SIGSTOP past the lease": stopped_past_its_lease,
    "two workers, one killed": two_workers,
    "exception in one layer": exception_in_a_layer,
    "clock set by an hour": clock_set,
    "memory full": memory_full,
    "disk full": disk_full,
}
