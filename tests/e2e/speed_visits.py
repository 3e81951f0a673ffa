"""What speed.py times: a visitor's way through a dashboard with many runs, in fresh browser contexts.

An action ends when what it asked for is on the page and the script has stopped. Beside the wall clock stand the CPU
seconds of the server and of the browser for the same action (they feel other work on the machine less) and the bytes
that came through the socket. The probe's picture is timed from the key press to the new picture.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from playwright.sync_api import Browser, Locator, Page

# Of a script, run by its path: its neighbours are found through the search path.
sys.path[:0] = [str(Path(__file__).parent)]
serve = import_module("serve")

BIG, OTHER_BIG = "20261120-b16b00b5", "20261120-b16b00b6"
SWEEP = "5eeb" * 8
IDLE_S = 20.0
REST_MS = 700  # what an action still does when all is drawn counts as its work, too
_TABLE = "[data-testid=stDataFrame] canvas"
_WHY = "text=Candidates of layer"
_GRID = ".rs-grid svg"


def _chart(key: str) -> str:
    """A chart with this widget key, Plotly's or, on a page that does without it, our own."""
    return f".st-key-{key} .rs-plot svg, .st-key-{key} .main-svg"


# Page -> its address, and what is on it when it is drawn.
PAINTS = {
    "home": ("/", ".rs-icons"),
    "runs": ("/runs", _TABLE),
    "map": (f"/map?run={BIG}&layer=4&head=7", ".st-key-map svg"),
    "head": (f"/head?run={BIG}&layer=4&head=7", _chart("probe")),
    "text": (f"/text?run={BIG}", ".rs-lens .line"),
    "sweep": (f"/sweep?sweep={SWEEP}", _chart("fronts")),
    "models": ("/models", ".st-key-check-calibrations"),
    "audit": (f"/audit?run={BIG}", _chart("card-mass")),
    "audit of all runs": (f"/audit?run={BIG}&scope=all", _chart("card-mass")),
    "fallbacks": (f"/fallbacks?run={BIG}", _chart("fallback-layers")),
    "compare": (
        f"/compare?runs={BIG},{OTHER_BIG}",
        ".st-key-difference svg, .st-key-card-difference .main-svg",
    ),
    "calibration": ("/calibration?names=prose,code", _chart("curves")),
    "results": ("/results", _chart("front-chart")),
    "fleet": ("/fleet", _GRID),
    "certificate": ("/certificate", _GRID),
    "new": ("/new?source=Sample&sample=needles.txt", ".st-key-card-take .rs-kpi, .st-key-card-take .rs-pair"),
    "job": ("/job", "[class*=st-key-card-jobs]"),
    "terms": ("/terms", ".st-key-card-terms"),
}


@dataclass
class Measured:
    """One action over the visits: seconds, CPU seconds of server and browser, bytes received through the socket."""

    wall_s: list[float] = field(default_factory=list)
    server_cpu_s: list[float] = field(default_factory=list)
    browser_cpu_s: list[float] = field(default_factory=list)
    socket_bytes: list[int] = field(default_factory=list)


class Side:
    """One running dashboard and what its visitors met."""

    def __init__(self, address: str) -> None:
        self.address = address
        port = str(urlsplit(address).port)
        children = psutil.Process().children(recursive=True)
        self.server = next(child for child in children if port in child.cmdline())
        self.results: dict[str, Measured] = {}
        self.idle_share = 0.0
        self.pages: frozenset[str] = frozenset(PAINTS)


class Visitor:
    """One fresh browser context; times actions and counts what comes through the socket."""

    def __init__(self, browser: Browser, side: Side) -> None:
        self._context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.page: Page = self._context.new_page()
        self._side = side
        self._received = 0
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def close(self) -> None:
        """Leave."""
        self._context.close()

    def _count(self, payload: bytes | str) -> None:
        self._received += len(payload)

    def timed(self, name: str, action: Callable[[], object], appears: str) -> None:
        """Do it, wait until ``appears`` is visible and the script has stopped, note what it took and the rest of it."""
        before, cpu, drawing = self._received, _cpu_s(self._side.server), _browser_cpu_s()
        start = time.perf_counter()
        action()
        self.page.locator(appears).first.wait_for(timeout=60_000)
        self.page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=60_000)
        wall = time.perf_counter() - start
        self.page.wait_for_timeout(REST_MS)
        measured = self._side.results.setdefault(name, Measured())
        measured.wall_s.append(wall)
        measured.server_cpu_s.append(_cpu_s(self._side.server) - cpu)
        measured.browser_cpu_s.append(
            sum(used - drawing.get(pid, 0.0) for pid, used in _browser_cpu_s().items())
        )
        measured.socket_bytes.append(self._received - before)


def visit(browser: Browser, side: Side, only: Sequence[str] = ()) -> None:
    """One visitor a page, then one through the pages of the big run.

    only: names of pages; with any, their first paints alone are visited.
    """
    for name, (path, appears) in PAINTS.items():
        if name not in side.pages or (only and name not in only):
            continue
        visitor = Visitor(browser, side)
        where = side.address + path
        visitor.timed(f"first paint: {name}", lambda at=where, page=visitor.page: page.goto(at), appears)
        visitor.close()
    if only:
        return
    visitor = Visitor(browser, side)
    page = visitor.page
    page.goto(f"{side.address}/runs")
    page.locator(_TABLE).first.wait_for(timeout=60_000)
    page.wait_for_timeout(2000)
    links = page.locator("[data-testid=stSidebarNavLink]")
    visitor.timed("switch: runs to map", links.filter(has_text="Routing map").click, _WHY)
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
    visitor.timed("switch: map to head", page.get_by_text("Open this head").click, _chart("probe"))
    visitor.timed(
        "head: probe picture of the next head",
        lambda: page.keyboard.press("Shift+ArrowRight"),
        "text=Layer 5, head 5: why",
    )
    visitor.timed("switch: head to runs", links.filter(has_text="Runs").click, _TABLE)
    visitor.timed("switch: runs to sweep", links.filter(has_text="Sweep").click, _chart("fronts"))
    visitor.timed(
        "switch: sweep to models", links.filter(has_text="Models").click, ".st-key-check-calibrations"
    )
    _visit_text(visitor, f"{side.address}/text?run={BIG}", links)
    if {"fleet", "certificate"} <= side.pages:
        _visit_days(visitor, side.address, links)
    visitor.close()


def find_pages(browser: Browser, side: Side) -> None:
    """Which of the pages this version has; an older one may lack some."""
    page = browser.new_page()
    page.goto(side.address)
    links = page.locator("[data-testid=stSidebarNavLink]")
    links.first.wait_for(timeout=60_000)
    paths = {urlsplit(link.get_attribute("href") or "").path.rpartition("/")[2] for link in links.all()}
    page.close()
    side.pages = frozenset(
        name for name, (path, _) in PAINTS.items() if urlsplit(path).path.strip("/") in paths | {""}
    )


def _visit_text(visitor: Visitor, address: str, links: Locator) -> None:
    """The words of the big run: 131,072 tokens, 32 x 32 heads, 8 segments."""
    page = visitor.page
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
    visitor.timed("switch: text to map", links.filter(has_text="Routing map").click, _WHY)


def _visit_days(visitor: Visitor, address: str, links: Locator) -> None:
    """The requests of two weeks, the week before, and a certificate of 32 x 32 heads."""
    page = visitor.page
    page.goto(f"{address}/fleet?days=7")
    page.locator(_GRID).wait_for()
    page.wait_for_timeout(2000)
    # "before" in older versions.
    earlier = page.get_by_role("button", name=re.compile("7 days (earlier|before)"))
    visitor.timed("fleet: the days before", earlier.click, "text=2026-11-06 to 2026-11-12;")
    there = links.filter(has_text="Certificate")
    visitor.timed("switch: fleet to certificate", there.click, ".st-key-certificate-map svg")
    figure = page.get_by_role("radio", name="Retained mass")
    visitor.timed(
        "certificate: colour by another figure", figure.click, "text=mean retained mass of the plan"
    )
    there = links.filter(has_text="Results")
    visitor.timed("switch: certificate to results", there.click, _chart("front-chart"))


def idle_share(browser: Browser, side: Side) -> float:
    """Cores that the server spends while one Runs page, the one that looks for new runs, is open and untouched."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{side.address}/runs")
    page.locator(_TABLE).first.wait_for(timeout=60_000)
    page.wait_for_timeout(3000)
    before, start = _cpu_s(side.server), time.perf_counter()
    page.wait_for_timeout(IDLE_S * 1000)
    share = (_cpu_s(side.server) - before) / (time.perf_counter() - start)
    context.close()
    return share


def _browser_cpu_s() -> dict[int, float]:
    """CPU seconds of each of Chromium's processes."""
    children = psutil.Process().children(recursive=True)
    return {child.pid: _cpu_s(child) for child in children if "chrom" in child.name()}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
