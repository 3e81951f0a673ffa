"""Start the dashboard, and a worker beside it, on a free loopback port for browser tests and pictures."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.spool import ingest_samples

if TYPE_CHECKING:
    from playwright.sync_api import Page

REPOSITORY = Path(__file__).resolve().parents[2]
CHROMIUM = Path("/usr/bin/chromium")
# Loopback needs no proxy, whatever the environment said when a process first opened an address.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
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
def dashboard(
    home: Path,
    seconds: float = 60.0,
    samples: bool = False,
    options: Sequence[str] = (),
    port: int | None = None,
    base: str = "",
    program: Sequence[str] = ("-m", "routesparse.app"),
) -> Iterator[str]:
    """The address of a running dashboard with its own ROUTESPARSE_HOME; stopped on leaving.

    samples: leave the store to the dashboard, bundled samples included (a broken store can't be opened here).
    options: more of the command line. port: where an address has to be known before. base: the path to serve below.
    program: what Python runs instead of the dashboard, with its options.
    """
    port = port or free_port()
    command = [sys.executable, *program, "--server.port", str(port), *options]
    command += ["--server.baseUrlPath", base] if base else []
    if not samples:
        forget_samples(home)
    environment = {**os.environ, "ROUTESPARSE_HOME": str(home)}
    log = home / "dashboard.log"
    with open(log, "wb") as sink:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=sink, stderr=sink)
    address = f"http://127.0.0.1:{port}{base}"
    try:
        _wait_until_healthy(address, process, log, seconds)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextlib.contextmanager
def proxy(target: str, public: str, log: Path) -> Iterator[None]:
    """A reverse proxy (proxy.py) to ``target`` at the address ``public``: its port, and below its path alone."""
    parts = urlsplit(public)
    server = target.removesuffix(parts.path)
    command = [sys.executable, str(Path(__file__).with_name("proxy.py")), str(parts.port), server, parts.path]
    with open(log, "wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        _wait_until_healthy(f"http://127.0.0.1:{parts.port}{parts.path}", process, log, 60.0)
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def worker(home: Path) -> Iterator[None]:
    """A real worker process on the same home, with the engine and the bundled model; stopped on leaving."""
    command = [sys.executable, "-m", "routesparse.engine.cli.main", "worker"]
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


def free_port() -> int:
    """A loopback port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(address: str, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not answers(f"{address}/_stcore/health"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the dashboard did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def settled(page: Page, further_ms: float = 0) -> None:
    """Wait until the page has been drawn to its end, and so much longer for what moves afterwards."""
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    page.wait_for_timeout(further_ms)


def click_cell(page: Page, layer: int, head: int) -> None:
    """Click the middle of a cell of the routing map."""
    ring = "([layer, head]) => { const g = document.querySelector('.rs-map').geometry;" + (
        " const at = layer * g.heads + head; return [g.x(at) + g.cell / 2, g.y(at) + g.row / 2]; }"
    )
    drawing = page.locator(".rs-map svg")
    drawing.wait_for()
    x, y = page.evaluate(ring, [layer, head])
    drawing.click(position={"x": x, "y": y})


def save_picture(page: Page, key: str, kind: str = "svg") -> Path:
    """Save a card's chart by its menu; key: of the line below the chart."""
    page.locator(f".st-key-save-{key} button").click()
    with page.expect_download() as waiting:
        page.locator(f".rs-picture .{kind}").click()
    page.keyboard.press("Escape")
    page.locator(".rs-picture").wait_for(state="detached")
    return Path(waiting.value.path())


def forget_samples(home: Path) -> None:
    """Delete the bundled sample runs before the first visit; deleted samples don't come back by themselves."""
    if not (home / "routesparse.duckdb").exists():
        shutil.copytree(_without_samples(), home, dirs_exist_ok=True)


@functools.cache
def _without_samples() -> Path:
    """A home with nothing but the mark that its samples were deleted, made once: to take them in takes seconds."""
    home = Path(tempfile.mkdtemp(prefix="routesparse-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    store = Store(home / "routesparse.duckdb", bundles=home / "bundles", trash=home / "trash")
    ingest_samples(store)
    for run_id in store.run_ids():
        store.delete_run(run_id)
    store.close()
    return home


def answers(address: str) -> bool:
    """Whether something is served there."""
    try:
        with _DIRECT.open(address, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
