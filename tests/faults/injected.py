"""The faults: each hurts a stage once, at a moment that the seed decides, and leaves the rest to ``Stage.recover``."""

from __future__ import annotations

import errno
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from routesparse.engine.errors import StoreError
from routesparse.engine.jobs.log import tail
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.store.duckdb_store import Store

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
    tally.meets("+".join(sorted({stage.queue.job(job).state for job in jobs})))
    since = time.monotonic()
    codes = stage.end(*names, by=by)
    if by == signal.SIGTERM and "worker" in names and codes[0] != 0:
        tally.wrong.append(f"a worker that was asked to stop ended with {codes[0]}")
    stage.look(tally)
    stage.recover(tally, since)


def stopped_past_its_lease(stage: Any, tally: Any, moments: random.Random) -> None:
    """A worker is stopped, another takes its job, the first wakes up."""
    stage.start("web")
    stage.start("worker")
    job = stage.submit()
    stage.until_running(job)
    time.sleep(moments.uniform(0.0, JOB_S))
    sleeper = stage.running.pop("worker")
    since = time.monotonic()
    sleeper.send_signal(signal.SIGSTOP)
    try:
        stage.start("worker")
        time.sleep(STOPPED_S)
        until = time.monotonic() + TAKEN_S
        while (stage.queue.job(job).state, stage.queue.job(job).attempt) == ("running", 1):
            if time.monotonic() > until:  # stopped in a transaction, it holds everybody
                break
            time.sleep(0.05)
        tally.meets(f"{stage.queue.job(job).state}, attempt {stage.queue.job(job).attempt}")
        stage.look(tally)
    finally:
        sleeper.send_signal(signal.SIGCONT)
    stage.recover(tally, since)
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
    since = time.monotonic()
    stage.end(moments.choice(names))
    stage.look(tally)
    stage.recover(tally, since)
    stage.end("worker 2", by=signal.SIGTERM)
    attempts = (stage.home / "ran.txt").read_text().split()
    if len(attempts) != len(set(attempts)):
        tally.wrong.append("one attempt of a job ran twice")
    tally.meets(f"{max(stage.queue.job(job).attempt for job in jobs)} attempts at most")


def exception_in_a_layer(stage: Any, tally: Any, moments: random.Random) -> None:
    """One layer raises; the jobs beside it work, and the failure says what happened without the prompt's text."""
    stage.start("web")
    stage.start("worker")
    kind = moments.choice(sorted(ERROR_KINDS))
    stage.submit()
    job = stage.submit(f"raise {kind} {moments.randrange(4)}")
    since = time.monotonic()
    stage.until(lambda: stage.queue.job(job).ended, "the failure")
    failure = stage.queue.job(job).failure
    tally.meets(kind)
    if failure is None or failure.kind != ERROR_KINDS[kind]:
        tally.wrong.append(f"{kind} was told as {failure}")
    elif "swordfish" in failure.message + str(tail(stage.home, job)):
        tally.wrong.append(f"{kind} told the prompt's text")
    stage.look(tally)
    stage.queue.delete(job)
    stage.recover(tally, since)


def clock_set(stage: Any, tally: Any, moments: random.Random) -> None:
    """The wall clock is set by an hour, forwards or backwards, under two workers: neither loses its job."""
    stage.start("web")
    # Long enough for two slow cores, and far shorter than the jump.
    for name in ("worker", "worker 2"):
        stage.start(name, lease_s=10.0)
    jobs = [stage.submit() for _ in range(4)]
    stage.until_running(jobs[moments.randrange(3)])
    since = time.monotonic()
    jump_s = moments.choice([3600.0, -3600.0])
    partial_clock = stage.home / ".clock.partial"
    partial_clock.write_text(str(jump_s))
    partial_clock.replace(stage.home / "clock")
    tally.meets(f"{jump_s:+.0f} s")
    stage.look(tally)
    stage.recover(tally, since)
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
    since = time.monotonic()
    stage.until(lambda: stage.queue.job(job).ended, "the failure")
    failure = stage.queue.job(job).failure
    tally.meets("none" if failure is None else failure.kind)
    if failure is None or failure.kind != "out_of_memory" or "shorten it" not in failure.message:
        tally.wrong.append(f"no memory was told as {failure}")
    stage.look(tally)
    stage.queue.delete(job)
    stage.recover(tally, since)
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
            since = time.monotonic()
            fill(disk / "filler", moments.choice([0, 4096, 65_536, 262_144]))
            time.sleep(moments.uniform(0.5, 3.0))
            small.look(tally)
            (disk / "filler").unlink()
            failed = frozenset(_without_room(small, jobs, tally))
            if "Start the dashboard again" in (small.status()["trouble"] or ""):
                tally.meets("dashboard started again, as it asked")
                small.end("web")
            small.recover(tally, since, failed)
        finally:
            small.close()


def _without_room(small: Any, jobs: list[str], tally: Any) -> list[str]:
    """The jobs that failed because the disk was full, when all have ended; what ended meanwhile is started again."""
    for name, process in small.running.items():
        if process.poll() is not None:
            tally.meets(f"{name} ended with {process.returncode}")
    for name in ("worker", "web"):
        small.start(name)
    small.until(lambda: all(small.queue.job(job).ended for job in jobs), "the jobs' ends")
    found = [small.queue.job(job) for job in jobs]
    for job in found:
        tally.meets(job.state if job.failure is None else job.failure.kind)
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


def damaged_bundle(stage: Any, tally: Any, moments: random.Random, harm: Callable[..., str]) -> None:
    """One file of a bundle in the spool: the bundle is set aside with the reason, and taken when it is whole."""
    stage.start("worker")
    stage.end("web")
    job = stage.submit()
    stage.until(lambda: stage.queue.job(job).ended and not stage.queue.unpublished(), "the bundle")
    run_id = stage.queue.job(job).run_id
    place, whole = stage.home / "spool" / run_id, stage.home.with_name(f"{stage.home.name} whole")
    shutil.copytree(place, whole)
    what = harm(moments.choice(sorted(place.iterdir())), moments)
    since = time.monotonic()
    stage.start("web")
    stage.until(lambda: not place.exists() and _known(stage, run_id), "the bundle's way")
    if run_id in stage.status()["runs"]:
        # A manifest with another commit or date in it, say: still a bundle.
        tally.meets(f"{what}: a bundle still")
    else:
        tally.meets(f"{what}: set aside")
        if not stage.status()["rejected"][run_id]:
            tally.wrong.append(f"{run_id} was set aside without a reason")
        shutil.copytree(whole, place.with_name(f".{run_id}"))
        place.with_name(f".{run_id}").rename(place)
    shutil.rmtree(whole)
    stage.recover(tally, since)


def damaged_store(stage: Any, tally: Any, moments: random.Random, harm: Callable[..., str]) -> None:
    """The store's file, of a killed dashboard or of one that was stopped, whose rows have left the log of writes.

    It works with every run, or the dashboard says that it is damaged; moved away, every run comes back.
    """
    stage.start("web")
    stage.start("worker")
    stage.submit()
    stage.until_stored()
    stage.end("web")
    if moments.random() < 0.5:
        Store(stage.home / "routesparse.duckdb").close()
    files = sorted(path for path in stage.home.glob("routesparse.duckdb*") if path.stat().st_size)
    file = moments.choice(files)
    what = harm(file, moments)
    since = time.monotonic()
    (stage.home / "status.json").unlink()
    process = stage.start("web")
    stage.submit("after the damage.txt")
    stage.until(
        lambda: process.poll() is not None or stage.status()["trouble"] or stage.all_stored(), "the store"
    )
    told = stage.status()["trouble"]
    if process.poll() is None and told is None:
        tally.meets(f"{what} {file.suffix}: works")
        stage.recover(tally, since)
        return
    tally.meets(f"{what} {file.suffix}: {'refused' if told is None else 'told'}")
    if (process.poll() or 0) < 0:
        tally.wrong.append(f"{what} {file.name}: the process died of signal {-process.returncode}")
    if told is not None and "out of" not in told:
        tally.wrong.append(f"{what} {file.name}: it was told without what to do: {told}")
    stage.end("web")
    for path in stage.home.glob("routesparse.duckdb*"):
        path.rename(stage.home.with_name(f"away {path.name}"))
    stage.recover(tally, since)


def damaged_queue(stage: Any, tally: Any, moments: random.Random, harm: Callable[..., str]) -> None:
    """The queue's file: it opens, or is refused in our words; the stored runs stay, and a new queue works."""
    stage.start("web")
    stage.start("worker")
    stage.submit()
    stage.until_stored()
    runs = set(stage.status()["runs"])
    stage.end("worker", by=signal.SIGTERM)
    stage.queue.close()
    what = harm(stage.home / "jobs.sqlite3", moments)
    since = time.monotonic()
    try:
        stage.queue = JobQueue(stage.home)
        if not stage.jobs():
            tally.wrong.append(f"{what}: the queue forgot its jobs without a word")
        tally.meets(f"{what}: opened")
        stage.queue.close()
    except StoreError as error:
        tally.meets(f"{what}: {type(error).__name__}")
    # What a flip left in the queue can't be known: the advice of the error is followed in any case.
    for path in stage.home.glob("jobs.sqlite3*"):
        path.unlink()
    stage.end("web")
    stage.queue = JobQueue(stage.home)
    stage.recover(tally, since)
    if not runs <= set(stage.status()["runs"]):
        tally.lost |= runs - set(stage.status()["runs"])


def tear(file: Path, moments: random.Random) -> str:
    """Cut a file's end off."""
    with open(file, "r+b") as handle:
        handle.truncate(moments.randrange(file.stat().st_size))
    return f"torn {file.suffix}"


def flip(file: Path, moments: random.Random) -> str:
    """Change one bit."""
    place = moments.randrange(file.stat().st_size)
    with open(file, "r+b") as handle:
        handle.seek(place)
        byte = handle.read(1)[0] ^ (1 << moments.randrange(8))
        handle.seek(place)
        handle.write(bytes([byte]))
    return f"flipped {file.suffix}"


def _known(stage: Any, run_id: str) -> bool:
    status = stage.status()
    return run_id in status["runs"] or run_id in status["rejected"]


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
    "torn file of a bundle": partial(damaged_bundle, harm=tear),
    "flipped bit in a bundle": partial(damaged_bundle, harm=flip),
    "torn store": partial(damaged_store, harm=tear),
    "flipped bit in the store": partial(damaged_store, harm=flip),
    "torn queue": partial(damaged_queue, harm=tear),
    "flipped bit in the queue": partial(damaged_queue, harm=flip),
}
