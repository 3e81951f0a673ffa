"""Readers of the real dashboard over websockets while workers finish jobs: nobody sees an error. No GPU.

A reader does what a browser does: it opens Streamlit's websocket, asks for a page, takes everything until the page is
complete, pauses, asks for the next. The workers are real processes with a synthetic analysis that write real bundles
(tests/engine/jobs/worker_process.py). Half of the jobs belong to somebody else, every fifth is cancelled as it waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect

from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from tests.e2e import serve

WORKER = Path(__file__).resolve().parents[1] / "engine" / "jobs" / "worker_process.py"
PAGES = ("", "map", "text", "trust", "compare", "domains", "new")
OTHER = "b" * 32
READERS, JOBS, WORKERS, CANCEL_EVERY = 3, 11, 2, 5
PATIENCE_S = 120.0
# The end of a part that draws itself again, and of a page that was begun and gave way to the one asked for.
NOT_THE_PAGE = (
    ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY,
    ForwardMsg.FINISHED_EARLY_FOR_RERUN,
)


def browser(address):
    """A session of the dashboard, as a browser opens it; what pages send during a pause stays unread."""
    options = {"max_size": None, "max_queue": None, "ping_interval": None, "proxy": None}
    stream = address.replace("http", "ws") + "/_stcore/stream"
    return connect(stream, origin=address, subprotocols=["streamlit"], **options)


def ask(socket, page):
    """Ask for a page and take all of it; what went wrong."""
    message, wrong = BackMsg(), []
    message.rerun_script.page_name = page
    # What the page before drew by itself during the pause is not the answer.
    with contextlib.suppress(TimeoutError):
        while True:
            socket.recv(timeout=0)
    socket.send(message.SerializeToString())
    while True:
        answer = ForwardMsg()
        answer.ParseFromString(socket.recv(timeout=PATIENCE_S))
        kind = answer.WhichOneof("type")
        if kind == "page_not_found":
            wrong.append(f"page {page!r} was not found")
        if kind == "delta" and answer.delta.new_element.WhichOneof("type") == "exception":
            wrong.append(f"page {page!r}: {answer.delta.new_element.exception.type}")
        if kind == "script_finished" and answer.script_finished not in NOT_THE_PAGE:
            if answer.script_finished == ForwardMsg.FINISHED_WITH_COMPILE_ERROR:
                wrong.append(f"page {page!r} did not compile")
            return wrong


def read(address, stop, seed, pages, errors):
    """One reader, until stopped: pages in random order."""
    moments = random.Random(seed)
    try:
        with browser(address) as socket:
            while not stop.is_set():
                errors += ask(socket, moments.choice(PAGES))
                pages.append(seed)
                stop.wait(moments.uniform(0.3, 0.9))
    # The boundary of a thread: the test tells every failure.
    except Exception as error:  # noqa: BLE001
        errors.append(f"{type(error).__name__}: {error}"[:200])


def stored(home, queue, done):
    """All jobs have ended, and the dashboard has moved every run into its store."""
    tally = queue.tally()
    if tally.get("queued") or tally.get("running"):
        return False
    return sum(1 for _ in (home / "bundles").glob("[0-9a-f]*-*")) >= done


@pytest.mark.timeout(240)
def test_readers_see_no_error_and_the_queue_keeps_its_promises(tmp_path):
    stop, pages, errors, running = threading.Event(), [], [], []
    queue = JobQueue(tmp_path)
    ids = [
        queue.of(OTHER if number % 2 else None).submit(RunRequest(label=f"{number}.txt"), f"prompt {number}")
        for number in range(JOBS)
    ]
    cancelled = range(CANCEL_EVERY - 1, JOBS, CANCEL_EVERY)
    assert {queue.of(OTHER if n % 2 else None).cancel(ids[n]) for n in cancelled} == {"cancelled"}
    environment = {**os.environ, "ROUTESPARSE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(WORKER), json.dumps({"home": str(tmp_path), "layers": 4, "layer_s": 0.05})]
    with serve.dashboard(tmp_path, seconds=PATIENCE_S, samples=True) as address:
        readers = [
            threading.Thread(target=read, args=(address, stop, seed, pages, errors))
            for seed in range(READERS)
        ]
        try:
            running += [subprocess.Popen(command, env=environment) for _ in range(WORKERS)]
            for reader in readers:
                reader.start()
            deadline = time.monotonic() + PATIENCE_S
            while not (stored(tmp_path, queue, JOBS - len(cancelled)) and len(pages) >= 2 * READERS):
                assert time.monotonic() < deadline, f"{queue.tally()}, {len(pages)} pages, {errors}"
                time.sleep(0.2)
        finally:
            stop.set()
            for reader in readers:
                reader.join(PATIENCE_S)
            for process in running:
                process.terminate()
                process.wait(30)
    assert errors == []
    jobs = [*queue.of(None).jobs(), *queue.of(OTHER).jobs()]
    for job in jobs:
        wanted = ("cancelled", 0) if ids.index(job.id) in cancelled else ("done", 1)
        assert (job.state, job.attempt) == wanted, job
    taken = sorted((job for job in jobs if job.started_at), key=lambda job: job.started_at)
    assert [ids.index(job.id) for job in taken] == [n for n in range(JOBS) if n not in cancelled]
    queue.close()
