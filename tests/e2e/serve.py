"""Start the dashboard, and a worker beside it, on a free loopback port for browser tests and screenshots."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.spool import ingest_samples

REPOSITORY = Path(__file__).resolve().parents[2]
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def dashboard(home: Path, seconds: float = 60.0) -> Iterator[str]:
    """The address of a running dashboard with its own ROUTESPARSE_HOME; stopped on leaving."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app/main.py", "--server.port", str(port)]
    _forget_samples(home)
    environment = {**os.environ, "ROUTESPARSE_HOME": str(home)}
    log = home / "dashboard.log"
    with open(log, "wb") as sink:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=sink, stderr=sink)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + seconds
        while not _healthy(address):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the dashboard did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextlib.contextmanager
def worker(home: Path) -> Iterator[None]:
    """A real worker process on the same home, with the engine and the bundled model; stopped on leaving."""
    command = [sys.executable, "-m", "routesparse.engine.cli", "worker"]
    environment = {**os.environ, "ROUTESPARSE_HOME": str(home), "OMP_NUM_THREADS": "1"}
    with open(home / "worker.log", "wb") as sink:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=sink, stderr=sink)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _forget_samples(home: Path) -> None:
    """Delete the bundled sample runs before the first visit; deleted samples don't come back by themselves."""
    store = Store(home / "routesparse.duckdb", bundles=home / "bundles", trash=home / "trash")
    kept = store.run_ids()
    ingest_samples(store)
    for run_id in store.run_ids() - kept:
        store.delete_run(run_id)
    store.close()


def _healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
