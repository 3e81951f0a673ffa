"""How fast the dashboard is with many runs: ``python tests/e2e/speed.py [RUNS]`` (default 1,000).

Prints seconds as JSON: ingest of one 8 x 8 x 4 x 21 bundle, first paint of the Runs page in a fresh browser
context, page switches and a click on a cell. Targets: ingest 0.2 s, first paint 3 s, switch 1 s.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from routesparse.engine.store import spool
from routesparse.engine.store.bundle import write_bundle
from routesparse.engine.store.duckdb_store import Store

# A script, run by its path: its neighbours are found through the search path.
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "engine" / "store"), str(Path(__file__).parent)]
factory = import_module("factory")
serve = import_module("serve")


def ingest_seconds(home: Path) -> float:
    """Median over five bundles of 8 layers x 8 heads x 4 segments x 21 candidates, probes included."""
    store = Store(home / "ingest" / "routesparse.duckdb")
    record = factory.make_record(segments=4)
    times = []
    for i in range(5):
        write_bundle(factory.rename(record, f"ingest{i}"), home / "one")
        start = time.perf_counter()
        spool.ingest_spool(store, home / "one")
        times.append(time.perf_counter() - start)
    store.close()
    return statistics.median(times)


def fill(home: Path, runs: int) -> None:
    """Runs of 8 x 8 x 1 x 21 with audit and without probe, and one with everything."""
    store = Store(home / "routesparse.duckdb")
    base = factory.make_record(segments=1, probe=False)
    for i in range(runs - 1):
        write_bundle(factory.rename(base, f"{i * 7919 % 2**20:08x}{i:08x}"), home / "spool")
        spool.ingest_spool(store, home / "spool")
    write_bundle(factory.make_record("full0000000000ff", seed=9), home / "spool")
    spool.ingest_spool(store, home / "spool")
    store.close()


def browse(browser: Browser, address: str) -> dict[str, float]:
    """One visitor's seconds."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    times: dict[str, float] = {}

    def timed(name: str, action, appears: str) -> None:
        start = time.perf_counter()
        action()
        page.locator(appears).first.wait_for(timeout=30_000)
        times[name] = time.perf_counter() - start
        page.wait_for_timeout(1500)

    timed("runs_first_paint_s", lambda: page.goto(address), "[data-testid=stDataFrame] canvas")
    links = page.locator("[data-testid=stSidebarNavLink]")
    timed("switch_to_map_s", links.nth(1).click, ".st-key-card-candidates")
    timed("switch_to_runs_s", links.nth(0).click, "[data-testid=stDataFrame] canvas")
    timed("switch_to_map_again_s", links.nth(1).click, ".st-key-card-candidates")
    area = page.locator(".st-key-map .draglayer .xy .nsewdrag").first.bounding_box() or {}
    x, y = area["x"] + area["width"] * 0.06, area["y"] + area["height"] * 0.06
    timed("click_on_cell_s", lambda: page.mouse.click(x, y), "text=Layer 0, head 0: why")
    context.close()
    return times


def main(runs: int) -> None:
    """Fill, start, measure three visitors, print medians."""
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        home = Path(temporary)
        result = {"runs": float(runs), "ingest_s": ingest_seconds(home)}
        fill(home, runs)
        browser = playwright.chromium.launch(executable_path=str(serve.CHROMIUM), args=serve.FLAGS)
        with serve.dashboard(home) as address:
            visits = [browse(browser, address) for _ in range(4)]
        browser.close()
        result["runs_first_paint_cold_s"] = visits[0]["runs_first_paint_s"]
        for name in visits[0]:
            result[name] = statistics.median(visit[name] for visit in visits[1:])
    print(json.dumps({name: round(value, 3) for name, value in result.items()}, indent=2))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
