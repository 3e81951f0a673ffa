"""Load: readers of the real dashboard over websockets while workers finish jobs; what they waited, and what it cost.

    python tests/load/run.py --readers 20 --jobs 200 --workers 2 --pause 3

A reader does what a browser does: it opens Streamlit's websocket, asks for a page, takes everything until the page is
complete, pauses, asks for the next. The workers are real processes with a synthetic analysis (tests/faults/actors.py)
that write real bundles. Half of the jobs belong to somebody else, and every twentieth is cancelled while it waits. The
run ends when all jobs have ended and their runs are stored, and not before ``--least`` seconds.

Two times are told: the whole page as a reader waits for it, and inside the web process (timed_web.py) the queries that
pages ask of the store, one by one and all of one page together.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest

TESTS = Path(__file__).resolve().parents[1]
PAGES = ("", "map", "text", "trust", "compare", "calibration", "new")
TIMED_WEB = Path(__file__).with_name("timed_web.py")
OTHER = "b" * 32
CANCEL_EVERY = 20
SAMPLE_S = 1.0
PATIENCE_S = 120.0
# The end of a part that draws itself again, and of a page that was begun and gave way to the one asked for.
NOT_THE_PAGE = (
    ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY,
    ForwardMsg.FINISHED_EARLY_FOR_RERUN,
)


@dataclass
class Seen:
    """What the readers and the watcher saw."""

    seconds: list[tuple[str, float]] = field(default_factory=list)  # page, from asking to complete
    errors: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)  # MiB of the web process
    started: list[int] = field(default_factory=list)  # jobs in the order in which workers took them
    wrong: list[str] = field(default_factory=list)  # of the queue
    drawn: list[dict[str, Any]] = field(default_factory=list)  # pages, as timed_web.py tells them
    stored_after_s: float | None = None  # from the readers' start until every run was in the store
    lasted_s: float = 0.0
    cpu_s: float = 0.0  # of the web process meanwhile, taking bundles in included


def quantile(times: Sequence[float], share: float) -> float:
    """Seconds within which this share of the times lies."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def browser(address: str) -> ClientConnection:
    """A session of the dashboard, as a browser opens it."""
    stream = address.replace("http", "ws") + "/_stcore/stream"
    # A reader that pauses leaves what pages send by themselves unread: unbounded, and without pings of its own.
    return connect(
        stream,
        origin=address,
        subprotocols=["streamlit"],
        max_size=None,
        max_queue=None,
        ping_interval=None,
        proxy=None,
    )


def read(address: str, stop: threading.Event, pause: float, seed: int, seen: Seen) -> None:
    """One reader, until stopped: pages in random order."""
    random_ = random.Random(seed)
    try:
        with browser(address) as socket:
            while not stop.is_set():
                page = random_.choice(PAGES)
                seen.seconds.append((page, ask(socket, page, seen)))
                stop.wait(pause * random_.uniform(0.5, 1.5))
    # The boundary of a thread: the report has every failure.
    except Exception as error:  # noqa: BLE001
        seen.errors.append(f"{type(error).__name__}: {error}"[:200])


def ask(socket: ClientConnection, page: str, seen: Seen) -> float:
    """Ask for a page and take all of it; seconds."""
    message = BackMsg()
    message.rerun_script.page_name = page
    # What the page before drew by itself during the pause is not the answer.
    with contextlib.suppress(TimeoutError):
        while True:
            socket.recv(timeout=0)
    began = time.monotonic()
    socket.send(message.SerializeToString())
    while True:
        answer = ForwardMsg()
        answer.ParseFromString(socket.recv(timeout=PATIENCE_S))
        kind = answer.WhichOneof("type")
        if kind == "page_not_found":
            seen.errors.append(f"page {page!r} was not found")
        if kind == "delta" and answer.delta.new_element.WhichOneof("type") == "exception":
            seen.errors.append(f"page {page!r}: {answer.delta.new_element.exception.type}")
        if kind == "script_finished" and answer.script_finished not in NOT_THE_PAGE:
            if answer.script_finished == ForwardMsg.FINISHED_WITH_COMPILE_ERROR:
                seen.errors.append(f"page {page!r} did not compile")
            return time.monotonic() - began


def load(
    home: Path, *, readers: int, jobs: int, workers: int, pause: float, least_s: float, limit_s: float
) -> Seen:
    """Put the load on a new home; stops by itself after ``limit_s`` seconds at the latest."""
    serve = module("load_serve", TESTS / "e2e" / "serve.py")
    seen, stop = Seen(), threading.Event()
    queue = JobQueue(home)
    ids = [
        queue.of(OTHER if number % 2 else None).submit(
            RunRequest(label=f"{number:03d}.txt"), f"prompt {number}"
        )
        for number in range(jobs)
    ]
    cancelled = ids[CANCEL_EVERY - 1 :: CANCEL_EVERY]
    for number in range(CANCEL_EVERY - 1, jobs, CANCEL_EVERY):
        if queue.of(OTHER if number % 2 else None).cancel(ids[number]) != "cancelled":
            seen.wrong.append(f"job {number} waits and was not cancelled at once")
    running: list[subprocess.Popen[bytes]] = []
    port, timings = serve.free_port(), home / "pages.jsonl"
    program = (str(TIMED_WEB), str(timings))
    with serve.dashboard(home, seconds=PATIENCE_S, samples=True, port=port, program=program) as address:
        web = next(
            child
            for child in psutil.Process().children()
            if str(port) in child.cmdline() and child.is_running()
        )
        with browser(address) as first:
            for page in PAGES:
                ask(first, page, seen)
        opened = timings.stat().st_size  # the first visit of each page is not of the load
        threads = [
            threading.Thread(target=read, args=(address, stop, pause, seed, seen)) for seed in range(readers)
        ]
        try:
            for number in range(workers):
                command = [sys.executable, str(TESTS / "faults" / "actors.py"), "worker"]
                with open(home / f"worker{number}.log", "wb") as sink:
                    running.append(
                        subprocess.Popen(
                            [*command, json.dumps({"home": str(home)})],
                            env={**os.environ, "ROUTESPARSE_HOME": str(home), "OMP_NUM_THREADS": "1"},
                            stdout=sink,
                            stderr=sink,
                        )
                    )
            for thread in threads:
                thread.start()
            began, used = time.monotonic(), sum(web.cpu_times()[:2])
            while time.monotonic() - began < limit_s:
                seen.memory.append(web.memory_info().rss / 2**20)
                if seen.stored_after_s is None and _all_in(home, queue, jobs - len(cancelled)):
                    seen.stored_after_s = time.monotonic() - began
                if seen.stored_after_s is not None and time.monotonic() - began > least_s:
                    break
                time.sleep(SAMPLE_S)
            seen.lasted_s, seen.cpu_s = time.monotonic() - began, sum(web.cpu_times()[:2]) - used
            if seen.stored_after_s is None:
                seen.wrong.append(f"not all jobs had ended, with their runs stored, after {limit_s:.0f} s")
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)
            for process in running:
                process.terminate()
                process.wait(30)
    lines = timings.read_bytes()[opened:].splitlines()
    seen.drawn = [json.loads(line) for line in lines]
    _judge(queue, ids, set(cancelled), seen)
    queue.close()
    return seen


def _all_in(home: Path, queue: JobQueue, done: int) -> bool:
    """All jobs have ended, and the dashboard has moved every run into its store."""
    tally = queue.tally()
    if tally.get("queued") or tally.get("running"):
        return False
    return sum(1 for _ in (home / "bundles").glob("[0-9a-f]*-*")) >= done


def _judge(queue: JobQueue, ids: list[str], cancelled: set[str], seen: Seen) -> None:
    """The queue's promises: cancelled jobs never ran, the others ended well, and were taken in their order."""
    owned = [*queue.of(None).jobs(limit=100_000), *queue.of(OTHER).jobs(limit=100_000)]
    for job in owned:
        wanted = "cancelled" if job.id in cancelled else "done"
        if job.state != wanted or (job.id in cancelled and job.attempt):
            seen.wrong.append(
                f"job {ids.index(job.id)} is {job.state} after {job.attempt} attempts, not {wanted}"
            )
    taken = sorted((job for job in owned if job.started_at), key=lambda job: job.started_at or 0.0)
    seen.started = [ids.index(job.id) for job in taken]
    if seen.started != sorted(seen.started):
        seen.wrong.append("jobs were not taken in the order in which they were submitted")


def told(seen: Seen) -> list[str]:
    """The times and the memory, in lines."""
    kinds = {
        "pages": [seconds for _, seconds in seen.seconds],
        "store queries, each": [seconds for page in seen.drawn for seconds in page["queries"]],
        "store queries of a page together": [sum(page["queries"]) for page in seen.drawn],
        "page scripts": [page["script_s"] for page in seen.drawn],
        "page scripts, CPU of their thread": [page["cpu_s"] for page in seen.drawn],
        **{f"page {page or 'runs'}": [s for name, s in seen.seconds if name == page] for page in PAGES},
    }
    lines = [
        f"{what}: n {len(times)}, p50 {quantile(times, 0.5):.3f} s, p95 {quantile(times, 0.95):.3f} s"
        for what, times in kinds.items()
        if times
    ]
    stored = "not all" if seen.stored_after_s is None else f"all after {seen.stored_after_s:.0f} s"
    return [
        *lines,
        f"web process: {seen.cpu_s / max(1, len(seen.drawn)):.3f} CPU s a page, {seen.memory[0]:.0f} to "
        f"{seen.memory[-1]:.0f} MiB; runs stored: {stored}, of {seen.lasted_s:.0f} s",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--pause", type=float, default=3.0, help="seconds between a reader's pages, on average"
    )
    parser.add_argument("--least", dest="least_s", type=float, default=120.0, help="seconds to read at least")
    parser.add_argument(
        "--limit", dest="limit_s", type=float, default=300.0, help="seconds after which it stops"
    )
    wish, before = parser.parse_args(), os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        seen = load(Path(folder), **vars(wish))
    print(f"load average before {before[0]:.1f}, after {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for line in told(seen):
        print(line)
    print(f"jobs taken {len(seen.started)}; errors {len(seen.errors)}; wrong {len(seen.wrong)}")
    for line in (*seen.errors[:10], *seen.wrong[:10]):
        print(f"  {line}")
    return 1 if seen.errors or seen.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
