"""Fixtures of the jobs' tests: a home of its own, a queue in it, worker processes that are ended by their pid."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from routesparse.engine.jobs.owner_jobs import FILE
from routesparse.engine.jobs.queue import JobQueue

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60.0


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A ROUTESPARSE_HOME of its own."""
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def queue(home):
    """An empty queue."""
    queue = JobQueue(home)
    yield queue
    queue.close()


@pytest.fixture(scope="session")
def fakes():
    """The module worker_process.py: the fake analysis and the synthetic runs."""
    spec = importlib.util.spec_from_file_location("worker_process", HERE / "worker_process.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def start_worker(home):
    """Start worker processes with options of worker_process.py; whatever still runs at the end is killed by pid."""
    started = []

    def start(**options):
        process = subprocess.Popen(
            [sys.executable, str(HERE / "worker_process.py"), json.dumps({"home": str(home), **options})],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def stopped(pid):
    """Whether every thread of the process has stopped."""
    states = [
        stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return all(state == "T" for state in states)


@pytest.fixture
def stop_without_locks(home):
    """SIGSTOP, but not in the middle of a transaction: that lock would hold everybody until SIGCONT or kill."""

    def stop(process):
        while True:
            os.kill(process.pid, signal.SIGSTOP)
            # The signal is asynchronous: a thread that still runs could take the lock after we looked.
            while not stopped(process.pid):
                time.sleep(0.001)
            connection = sqlite3.connect(home / FILE, isolation_level=None, timeout=0.2)
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                os.kill(process.pid, signal.SIGCONT)
                time.sleep(0.05)
            finally:
                connection.close()

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
