"""How fast the dashboard is with many runs: ``python tests/e2e/speed.py [--runs N] [--visits N] [--out FILE]``.

Fills a store with N runs (default 1,000) of 8 x 8 heads and one of 32 x 32 heads x 8 segments at 128K tokens, all
written by the real bundle writer, then lets Chromium visit it in fresh contexts. Prints a table against the targets
(median of the visits) and writes it with the command, versions and machine to data/results/dashboard.json.

An action ends when what it asked for is on the page and the script has stopped. Beside the wall clock stand the CPU
seconds of the server for the same action (they don't feel other work on the machine) and the bytes that came through
the socket. The probe's picture is timed from the key press to the new picture.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path

import psutil
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from routesparse.engine.provenance import git_commit
from routesparse.engine.store import spool
from routesparse.engine.store.bundle import write_bundle
from routesparse.engine.store.duckdb_store import Store

# A script, run by its path: its neighbours are found through the search path.
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "engine" / "store"), str(Path(__file__).parent)]
factory = import_module("factory")
serve = import_module("serve")

BIG = "20261120-b16b00b5"
SWEEP, SETTINGS = "5eeb" * 8, (0.1, 0.2, 0.3, 0.5, 1.0)  # prices
RESULT = serve.REPOSITORY / "data" / "results" / "dashboard.json"
IDLE_S = 20.0
# What is measured -> (limit in seconds, limit of the socket in bytes); CPU limits are shares of a core.
PAYLOAD_BYTES = 3_000_000
TARGETS_S = {
    "ingest 8 x 8 x 4 x 21": 0.2,
    "ingest 32 x 32 x 8 x 21": 2.0,
    "first paint: runs": 3.0,
    "first paint: map": 3.0,
    "first paint: head": 3.0,
    "first paint: sweep": 3.0,
    "first paint: models": 3.0,
    "switch: runs to map": 1.0,
    "switch: map to head": 1.0,
    "switch: head to runs": 1.0,
    "switch: runs to sweep": 1.0,
    "switch: sweep to models": 1.0,
    "map: click a cell": 0.5,
    "map: arrow key": 0.5,
    "map: colour by another metric": 0.5,
    "map: another segment": 0.5,
    "head: probe picture of the next head": 1.0,
    "first paint: text": 3.0,
    "text: scroll to the middle": 0.5,
    "text: find a phrase": 0.5,
    "text: click another head": 0.5,
    "text: show the worst row": 0.5,
    "switch: text to map": 1.0,
}
TEXT_BYTES = 1_000_000  # of every view of the page Text
IDLE_SHARE = 0.02


@dataclass
class Measured:
    """One action over the visits: seconds, CPU seconds of server and browser, bytes received through the socket."""

    wall_s: list[float] = field(default_factory=list)
    server_cpu_s: list[float] = field(default_factory=list)
    browser_cpu_s: list[float] = field(default_factory=list)
    socket_bytes: list[int] = field(default_factory=list)


def big_record():
    """32 x 32 heads, 8 segments, 21 candidates, 131,072 tokens; a probe of the size that a run may keep."""
    return factory.make_record(
        BIG,
        name="contract-128k.txt",
        domain="prose",
        layers=32,
        heads=32,
        segments=8,
        tokens=131_072,
        seed=8,
        probe_columns=32,
        probe_kinds=(5, 18, 0, 5),
        hardness=0.6,
    )


def ingest_seconds(home: Path, record, times: int) -> Measured:
    """Ingest of one bundle from the spool, each time under another id."""
    store = Store(home / "routesparse.duckdb")
    result = Measured()
    for i in range(times):
        write_bundle(factory.rename(record, f"ingest{i}"), home / "spool")
        start, cpu = time.perf_counter(), time.process_time()
        spool.ingest_spool(store, home / "spool")
        result.wall_s.append(time.perf_counter() - start)
        result.server_cpu_s.append(time.process_time() - cpu)
    store.close()
    return result


def fill(home: Path, runs: int, big) -> None:
    """Runs of 8 x 8 x 1 x 21 with audit and without probe, some of them of one sweep; the big one is the newest."""
    store = Store(home / "routesparse.duckdb")
    base = factory.make_record(segments=1, probe=False)
    for i in range(runs):
        made = factory.rename(base, f"{i * 7919 % 2**20:08x}{i:08x}")
        if i < len(SETTINGS):
            priced = factory.priced(made)
            made = replace(priced, run=replace(priced.run, sweep=SWEEP, price=SETTINGS[i]))
        write_bundle(made, home / "spool")
        spool.ingest_spool(store, home / "spool")
    write_bundle(big, home / "spool")
    spool.ingest_spool(store, home / "spool")
    store.close()


class Visitor:
    """One fresh browser context; times actions and counts what comes through the socket."""

    def __init__(self, browser: Browser, server: psutil.Process, results: dict[str, Measured]) -> None:
        self._context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.page: Page = self._context.new_page()
        self._server = server
        self._results = results
        self._received = 0
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def close(self) -> None:
        """Leave."""
        self._context.close()

    def _count(self, payload: bytes | str) -> None:
        self._received += len(payload)

    def timed(self, name: str, action: Callable[[], object], appears: str) -> None:
        """Do it, wait until ``appears`` is visible and the script has stopped, note what it took."""
        before, cpu, drawing = self._received, _cpu_s(self._server), _browser_cpu_s()
        start = time.perf_counter()
        action()
        self.page.locator(appears).first.wait_for(timeout=60_000)
        self.page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=60_000)
        wall = time.perf_counter() - start
        self.page.wait_for_timeout(1500)
        measured = self._results.setdefault(name, Measured())
        measured.wall_s.append(wall)
        measured.server_cpu_s.append(_cpu_s(self._server) - cpu)
        measured.browser_cpu_s.append(
            sum(used - drawing.get(pid, 0.0) for pid, used in _browser_cpu_s().items())
        )
        measured.socket_bytes.append(self._received - before)


def visit(browser: Browser, server: psutil.Process, address: str, results: dict[str, Measured]) -> None:
    """One visitor through the pages of the big run."""
    at_map, at_head = f"{address}/map?run={BIG}", f"{address}/head?run={BIG}"
    candidates = "text=Candidates of layer"
    for name, where, appears in (
        (
            "first paint: map",
            f"{at_map}&layer=4&head=7",
            ".st-key-map svg",
        ),
        ("first paint: head", f"{at_head}&layer=4&head=7", ".st-key-probe .main-svg"),
        ("first paint: text", f"{address}/text?run={BIG}", ".rs-lens .line"),
        ("first paint: sweep", f"{address}/sweep?sweep={SWEEP}", ".st-key-fronts .main-svg"),
        ("first paint: models", f"{address}/models", ".st-key-check-calibrations"),
    ):
        visitor = Visitor(browser, server, results)
        visitor.timed(name, lambda where=where, page=visitor.page: page.goto(where), appears)
        visitor.close()
    visitor = Visitor(browser, server, results)
    page = visitor.page
    visitor.timed(
        "first paint: runs", lambda: page.goto(f"{address}/runs"), "[data-testid=stDataFrame] canvas"
    )
    links = page.locator("[data-testid=stSidebarNavLink]")
    visitor.timed("switch: runs to map", links.filter(has_text="Routing map").click, candidates)
    visitor.timed("map: click a cell", lambda: serve.click_cell(page, 5, 3), "text=Layer 5, head 3: why")
    visitor.timed(
        "map: arrow key", lambda: page.keyboard.press("Shift+ArrowRight"), "text=Layer 5, head 4: why"
    )
    visitor.timed(
        "map: colour by another metric",
        page.get_by_role("radio", name="Certified").click,
        "text=colour: in-prompt certificate",
    )
    page.locator(".st-key-segment-choice input").focus()
    visitor.timed("map: another segment", lambda: page.keyboard.press("ArrowRight"), "text=Segment 2 of 8")
    visitor.timed("switch: map to head", page.get_by_text("Open this head").click, ".st-key-probe .main-svg")
    visitor.timed(
        "head: probe picture of the next head",
        lambda: page.keyboard.press("Shift+ArrowRight"),
        "text=Layer 5, head 5: why",
    )
    visitor.timed(
        "switch: head to runs", links.filter(has_text="Runs").click, "[data-testid=stDataFrame] canvas"
    )
    visitor.timed("switch: runs to sweep", links.filter(has_text="Sweep").click, ".st-key-fronts .main-svg")
    visitor.timed(
        "switch: sweep to models", links.filter(has_text="Models").click, ".st-key-check-calibrations"
    )
    visit_text(visitor, page, f"{address}/text?run={BIG}", links)
    visitor.close()


def visit_text(visitor: Visitor, page: Page, address: str, links: Locator) -> None:
    """The words of the big run: 131,072 tokens, 32 x 32 heads, 8 segments."""
    page.goto(address)
    page.locator(".rs-lens .line").first.wait_for()
    page.wait_for_timeout(2000)
    middle = "const view = document.querySelector('.rs-lens .view'); view.scrollTop = view.scrollHeight / 2"
    shown = ".rs-lens .line >> text=/^6[4-6],\\d{3}/"
    visitor.timed("text: scroll to the middle", lambda: page.evaluate(f"() => {{ {middle} }}"), shown)
    page.get_by_placeholder("Find in the prompt").fill("code of Oslo")
    visitor.timed("text: find a phrase", lambda: page.keyboard.press("Enter"), ".rs-dropped")
    page.locator(".rs-heads").focus()
    title = page.locator(".rs-title").inner_text()
    other = re.sub(r"head (\d+)", lambda m: f"head {int(m[1]) - 1 if int(m[1]) else 1}", title)
    key = "ArrowRight" if title.endswith("head 0") else "ArrowLeft"
    visitor.timed("text: click another head", lambda: page.keyboard.press(key), f"text={other}")
    worst = page.locator(".st-key-worst-0 button")
    visitor.timed("text: show the worst row", worst.click, ".rs-lens .piece.row")
    visitor.timed(
        "switch: text to map", links.filter(has_text="Routing map").click, "text=Candidates of layer"
    )


def idle_share(browser: Browser, server: psutil.Process, address: str) -> float:
    """Cores that the server spends while one Runs page, the one that looks for new runs, is open and untouched."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}/runs")
    page.locator("[data-testid=stDataFrame] canvas").first.wait_for(timeout=60_000)
    page.wait_for_timeout(3000)
    before, start = _cpu_s(server), time.perf_counter()
    page.wait_for_timeout(IDLE_S * 1000)
    share = (_cpu_s(server) - before) / (time.perf_counter() - start)
    context.close()
    return share


def report(results: dict[str, Measured], idle: float) -> list[dict[str, object]]:
    """Rows of medians with their targets."""
    rows: list[dict[str, object]] = []
    for name, limit in TARGETS_S.items():
        measured = results[name]
        wall = statistics.median(measured.wall_s)
        heaviest = max(measured.socket_bytes, default=0)
        rows.append(
            {
                "what": name,
                "n": len(measured.wall_s),
                "wall_s": round(wall, 3),
                "worst_wall_s": round(max(measured.wall_s), 3),
                "target_s": limit,
                "server_cpu_s": round(statistics.median(measured.server_cpu_s), 3),
                "browser_cpu_s": round(statistics.median(measured.browser_cpu_s or [0]), 3),
                "socket_bytes": int(statistics.median(measured.socket_bytes or [0])),
                "met": wall < limit and heaviest < (TEXT_BYTES if "text" in name else PAYLOAD_BYTES),
            }
        )
    rows.append({"what": "idle open page", "n": 1, "core_share": round(idle, 4), "target_share": IDLE_SHARE})
    rows[-1]["met"] = idle < IDLE_SHARE
    return rows


def show(rows: list[dict[str, object]]) -> None:
    """The table for people."""
    print(f"{'':40}{'median':>8}{'worst':>8}{'target':>8}{'server CPU':>12}{'browser CPU':>13}{'socket':>10}")
    for row in rows[:-1]:
        times = f"{row['wall_s']:>7.2f}s{row['worst_wall_s']:>7.2f}s{row['target_s']:>7.1f}s"
        work = f"{row['server_cpu_s']:>11.2f}s{row['browser_cpu_s']:>12.2f}s"
        socket = f"{row['socket_bytes'] / 1000:>7,.0f} KB"
        print(f"{row['what']:40}{times}{work}{socket}{'' if row['met'] else '  MISSED'}")
    last = rows[-1]
    print(f"{last['what']:40}{last['core_share']:>8.1%} of a core, target {last['target_share']:.0%}")


def main(arguments: argparse.Namespace) -> None:
    """Fill, start, measure, print, write."""
    results: dict[str, Measured] = {}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        home = Path(temporary)
        small = factory.make_record(segments=4)
        big = big_record()
        results["ingest 8 x 8 x 4 x 21"] = ingest_seconds(home / "small", small, 5)
        results["ingest 32 x 32 x 8 x 21"] = ingest_seconds(home / "big", big, 3)
        fill(home, arguments.runs, big)
        browser = playwright.chromium.launch(executable_path=str(serve.CHROMIUM), args=serve.FLAGS)
        with serve.dashboard(home) as address:
            server = _server()
            visit(browser, server, address, {})  # the first visitor warms the server and is not counted
            for _ in range(arguments.visits):
                visit(browser, server, address, results)
            idle = idle_share(browser, server, address)
        browser.close()
    rows = report(results, idle)
    show(rows)
    if arguments.out:
        versions = {name: metadata.version(name) for name in ("streamlit", "plotly", "duckdb", "playwright")}
        header = {
            "command": shlex.join(["python", "tests/e2e/speed.py", *sys.argv[1:]]),
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "git_commit": git_commit(),
            "machine": f"{os.cpu_count()} CPU cores, Chromium on the same machine",
            "load_before": round(load, 2),
            "versions": versions,
            "runs": arguments.runs + 1,
            "socket_target_bytes": PAYLOAD_BYTES,
        }
        Path(arguments.out).write_text(json.dumps({**header, "rows": rows}, indent=1) + "\n")


def _server() -> psutil.Process:
    """The dashboard that ``serve`` started."""
    children = psutil.Process().children(recursive=True)
    return next(child for child in children if "--server.port" in child.cmdline())


def _browser_cpu_s() -> dict[int, float]:
    """CPU seconds of each of Chromium's processes."""
    children = psutil.Process().children(recursive=True)
    return {child.pid: _cpu_s(child) for child in children if "chrom" in child.name()}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--out", default=str(RESULT), help="empty: write no file")
    main(parser.parse_args())
