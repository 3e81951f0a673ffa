"""The faults: each hurts a stage once, at a moment that the seed decides, and leaves the rest to ``Stage.recover``."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from routesparse.engine.errors import StoreError
from routesparse.engine.jobs.log import tail
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.store.duckdb_store import Store

JOB_S = 0.6  # of a job with its claim and handover, about
STOPPED_S = 3.0  # three leases
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
    "torn file of a bundle": partial(damaged_bundle, harm=tear),
    "flipped bit in a bundle": partial(damaged_bundle, harm=flip),
    "torn store": partial(damaged_store, harm=tear),
    "flipped bit in the store": partial(damaged_store, harm=flip),
    "torn queue": partial(damaged_queue, harm=tear),
    "flipped bit in the queue": partial(damaged_queue, harm=flip),
}
