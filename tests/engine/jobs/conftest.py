"""Fixtures of the jobs' tests: a home of its own, a queue, worker processes that are ended by their pid.

Tests of what both queues promise run on both: in a file of the home, and on a PostgreSQL of this session.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from routesparse.engine import shared_folder
from routesparse.engine.jobs.database import QueueBusyError
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.jobs.worker import run_worker
from routesparse.engine.scale.queue import PREFIX
from tests import own_postgres
from tests.engine.jobs import worker_process

PATIENCE_S = 60.0
IN_BOTH = ("test_owners", "test_queue", "test_sweep")
ON_POSTGRES = ("test_connection", "test_hosts", "test_postgres")
TEXT = "the harbour master writes a ledger"


def submit(queue, **wishes):
    return queue.submit(RunRequest(**wishes), TEXT)


def claimed(queue, **wishes):
    """The claim of a job that a worker has begun."""
    submit(queue, **wishes)
    return queue.claim("w")


def done(queue):
    """The claim of a job that has ended well."""
    claim = claimed(queue)
    queue.finish(claim, claim.run_id)
    return claim


def open_at_once(make):
    """Eight threads make a queue in one place, and none fails."""
    with ThreadPoolExecutor(8) as pool:
        for opened in list(pool.map(lambda _: make(), range(8))):
            opened.close()


def pytest_generate_tests(metafunc):
    if "home" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in IN_BOTH:
        metafunc.parametrize("home", ["file", "postgres"], indirect=True)


@pytest.fixture
def home(request, tmp_path, monkeypatch):
    """A ROUTESPARSE_HOME of its own, with the queue in its file or, as the shared folder too, on PostgreSQL. Of tests
    of PostgreSQL alone: that of a dashboard's host, which has no workers.
    """
    if request.module.__name__.rpartition(".")[2] in ON_POSTGRES:
        request.getfixturevalue("shared")
        return tmp_path / "dashboard"
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path))
    if getattr(request, "param", "file") == "postgres":
        words = own_postgres.new_database(request.getfixturevalue("postgres"), f"queue{secrets.token_hex(6)}")
        monkeypatch.setenv("ROUTESPARSE_QUEUE", PREFIX + words)
        monkeypatch.setenv("ROUTESPARSE_SHARED", str(tmp_path))
        shared_folder.mark()
    return tmp_path


@pytest.fixture
def queue(home):
    """An empty queue."""
    with closing(JobQueue(home)) as opened:
        yield opened


@pytest.fixture
def shared(postgres, tmp_path, monkeypatch):
    """The folder of all hosts, and a queue's database that the environment names."""
    folder = tmp_path / "shared"
    words = own_postgres.new_database(postgres, f"queue{secrets.token_hex(6)}")
    monkeypatch.setenv("ROUTESPARSE_QUEUE", PREFIX + words)
    monkeypatch.setenv("ROUTESPARSE_SHARED", str(folder))
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "dashboard"))
    shared_folder.mark()
    return folder


@pytest.fixture
def host(shared, tmp_path):
    """Another host's home, whose queue is the same."""

    def home(name):
        (tmp_path / name).mkdir()
        return tmp_path / name

    return home


@pytest.fixture
def cut():
    """End a queue's connection from the server's side."""

    def end(queue):
        kept = queue.database
        with closing(kept._psycopg.connect(**kept._words, autocommit=True)) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (kept._connection.info.backend_pid,))

    return end


@pytest.fixture
def alter(home):
    """One statement on the queue's tables, by another connection."""

    def execute(sql):
        other = JobQueue(home, busy_timeout_s=30)
        with other.database.transaction() as transaction:
            transaction.execute(sql)
        other.close()

    return execute


@pytest.fixture(scope="session")
def fakes():
    """The module worker_process.py: the fake analysis and the synthetic runs."""
    return worker_process


@pytest.fixture
def work(home, fakes):
    """work(analysis, preparation): a worker in this process until nothing waits, with the fake analysis or another."""

    def run(analyze=None, prepare=None, **options):
        options = {"beat_s": 0.02, "poll_s": 0.01, **options}
        assert run_worker(home, analyze or fakes.fake_analysis(home), prepare, once=True, **options) == 0

    return run


@pytest.fixture
def start_worker(home):
    """Start worker processes with options of worker_process.py; whatever still runs at the end is killed by pid."""
    started = []

    def start(**options):
        process = subprocess.Popen(
            [sys.executable, worker_process.__file__, json.dumps({"home": str(home), **options})],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


@pytest.fixture
def stop_without_locks(home):
    """SIGSTOP, but not in the middle of a transaction: that lock would hold everybody until SIGCONT or kill."""

    def stop(process):
        other = JobQueue(home, busy_timeout_s=0.2)
        while True:
            os.kill(process.pid, signal.SIGSTOP)
            # The signal is asynchronous: a thread that still runs could take the lock after we looked.
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            try:
                with other.database.transaction() as transaction:
                    transaction.execute("UPDATE job SET label = label")
            except QueueBusyError:
                os.kill(process.pid, signal.SIGCONT)
                time.sleep(0.05)
            else:
                other.close()
                return

    return stop


@pytest.fixture(scope="session")
def until():
    """Wait for a condition, at most a minute."""

    def wait(condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited a minute for {what}"
            time.sleep(0.01)

    return wait
