"""Pictures of every page for a person to look at: ``python tests/e2e/screenshots.py [FOLDER] [--only PART]``.

Light and dark, 1024, 1440 and 1920 pixels wide; filled, empty and broken. Runs are synthetic
(tests/engine/store/factory.py); nothing outside the loopback interface is contacted. ``--only`` takes the pictures
whose name, such as ``filled-sweep``, contains the part; it may be given several times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from routesparse.engine.jobs.failures import classify
from routesparse.engine.jobs.kinds import ProfileRequest
from routesparse.engine.jobs.queue import Claim, JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.files import DEMO
from routesparse.engine.store import spool
from routesparse.engine.store.bundle import write_bundle
from routesparse.engine.store.duckdb_store import Store

# A script, run by its path: its neighbours are found through the search path.
ENGINE_TESTS = Path(__file__).resolve().parents[1] / "engine"
sys.path[:0] = [str(ENGINE_TESTS / "store"), str(ENGINE_TESTS / "results"), str(Path(__file__).parent)]
factory, values = import_module("factory"), import_module("values")
make_record, rename = factory.make_record, factory.rename
serve = import_module("serve")

HEIGHT = "document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight"
AGAIN = "77771c2090e1f006"  # the prompt of the first run, under another seed
SWEEP = "5eeb" * 8
WIDTHS = (1024, 1440, 1920)
SETTLE_MS = 180_000  # the first page waits until all runs are taken in, on a machine that others use, too
LONG = "ruler-of-somebody-who-gave-this-suite-a-name-of-eighty-characters-without-a-blank"

PAGES = {
    "runs": "/",
    **{f"job-{state}": f"/?job={{{state}}}" for state in ("waiting", "running", "failed", "done", "profile")},
    "job-unknown": "/?job=deadbeef",
    "map-pattern": "/map?run=3f9a1c20&layer=5&head=2",
    "map-two-masks": "/map?run=3f9a1c20&layer=5&head=2&mask=5&against=11&zoom=40,104,60,140",
    "map-fallback": "/map?run=3f9a1c20&layer=7&head=3&segment=1&metric=fallback",
    "map-probe": "/map?run=3f9a1c20&layer=2&head=6&metric=probe",
    "map-row": "/map?run=3f9a1c20&layer=3&head=3&row=785",
    "map-not-audited": "/map?run=c0de17aa&layer=1&head=1&metric=audited_error",
    "map-without-masks": "/map?run=b81c44aa&layer=3&head=3",
    "map-32x32": "/map?run=32b32b32&layer=17&head=20",
    "map-priced": "/map?run=9a1ced9a&layer=1&head=2",
    "map-priced-32x32": "/map?run=32b9a1ce&layer=17&head=20&metric=lower_mass",
    "map-priced-uncertified": "/map?run=9a1cebad&layer=2&head=1",
    "text": "/text?run=3f9a1c20",
    "text-find": "/text?run=3f9a1c20&find=2474-12",
    "text-row": "/text?run=3f9a1c20&layer=3&head=3&row=785&shade=lost",
    "text-not-audited": "/text?run=c0de17aa&find=2474-12&scope=all",
    "text-128k": "/text?run=32b32b32&find=2474-12&scope=layer",
    "trust": "/trust?run=3f9a1c20",
    "trust-details": "/trust?run=3f9a1c20&details=true",
    "trust-all": "/trust?run=3f9a1c20&scope=all&details=true",
    "trust-priced": "/trust?run=9a1ced9a",
    "trust-not-audited": "/trust?run=c0de17aa",
    "certificate": "/trust?run=ce47f1ca&metric=mass",
    "compare-paired": f"/compare?runs=3f9a1c20,{AGAIN}&metric=audited_error",
    "compare-unpaired": "/compare?runs=3f9a1c20,c0de17aa,b81c44aa",
    "compare-priced": "/compare?runs=3f9a1c20,9a1ced9a",
    "compare-calibrations": "/compare?run=3f9a1c20&calibrations=prose,code",
    "sweep": f"/compare?sweep={SWEEP}&below=0.01",
    "sweep-pending": "/compare?sweep={sweep}",
    "calibration": "/calibration?names=prose,code",
    "new": "/new?source=Sample&sample=needles.txt",
    "new-wrong": "/new?source=Sample&with_policy=strict&segment=1000",
    "new-again": "/new?from=d4e5b678&tau=0.85",
    "new-sweep": "/new?source=Sample&sample=needles.txt&vary=price&prices=0.25, cheap, 1",
    "models": "/models",
    "models-broken": "/models?model=broken",
    "results": "/results",
    "results-here": "/results?set=here-ruler",
    "results-pasted": "/results?set=here-pasted",
    "terms": "/terms?term=risk",
    **{f"{name}-bad-link": f"/{name}?run=deadbeef" for name in ("map", "text", "trust")},
    "compare-bad-link": "/compare?runs=deadbeef,3f9a1c20",
    "sweep-bad-link": "/compare?sweep=deadbeef",
    "results-bad-link": "/results?set=deadbeef&length=7",
}
# Of a home that servers alone fill: two models, one with an alarm; days before; none of a model; days without any.
FLEET = {
    "fleet": "/fleet",
    "fleet-30-days": "/fleet?days=30",
    "fleet-before": "/fleet?until=2026-11-12",
    "fleet-nothing-then": "/fleet?until=2026-09-30",
    "fleet-bad-link": "/fleet?until=yesterday",
    "runs-of-a-day": "/?model=demo&day=2026-11-18&source=server request",
}


def fill(home: Path) -> None:
    """Runs as a user would have them, and one bad bundle."""
    arrived = home / "spool"
    write_bundle(make_record(hardness=0.9), arrived)
    write_bundle(make_record(AGAIN, hardness=0.5, seed=2), arrived)
    older = make_record(
        "b81c44aa90e1f002", name="ledger-prose.txt", domain="prose", hardness=0.15, seed=3, dense=False
    )
    bare = tuple(replace(probe, masks=None, mask_columns=None, mask_pool=None) for probe in older.probes)
    write_bundle(replace(older, probes=bare), arrived)
    write_bundle(
        make_record(
            "c0de17aa90e1f003", name="router.py.txt", domain="code", hardness=0.4, seed=5, audit=False
        ),
        arrived,
    )
    size = {"layers": 32, "heads": 32, "segments": 1, "tokens": 131_072, "probe_columns": 32, "seed": 8}
    long = {"name": "contract-128k.txt", "domain": "prose", **size}
    write_bundle(make_record("32b32b3290e1f004", **long, hardness=0.6), arrived)
    priced = factory.priced(make_record("9a1ced9a90e1f007", hardness=0.9), raised=(1, 5))
    write_bundle(priced, arrived)
    below = rename(priced, "9a1cebad90e1f008")
    layers = tuple(replace(row, lower_mass=0.66) if row.layer == 2 else row for row in below.layers)
    write_bundle(replace(below, layers=layers), arrived)
    large = make_record("32b9a1ce90e1f009", **long, hardness=0.8)
    write_bundle(factory.priced(large, raised=(3, 17)), arrived)
    for place, price in enumerate((0.1, 0.3, 1.0)):
        setting = factory.priced(make_record(f"5eeb000090e1f00{place}", hardness=0.9 - 0.3 * place))
        write_bundle(replace(setting, run=replace(setting.run, sweep=SWEEP, price=price)), arrived)
    (home / "models" / "broken").mkdir(parents=True)
    fill_results(home)
    write_bundle(factory.make_certificate(layers=8, heads=8), arrived)
    bad = write_bundle(make_record("badbadbad0e1f005", probe=False), home / "elsewhere")
    (bad / "audit.parquet").write_bytes(b"PAR1 cut off")
    shutil.copytree(bad, arrived / bad.name)


def fill_fleet(home: Path) -> None:
    """Requests of two models, one with a name of hostile text and too few to judge; all taken in."""
    for requests in (factory.fleet(9, 20), factory.fleet(3, 4, model=f"<b>{LONG}</b>")):
        for request in requests:
            write_bundle(request, home / "spool")
    with contextlib.closing(Store(home / "routesparse.duckdb")) as store:
        spool.ingest_spool(store, home / "spool")


def fill_results(home: Path) -> None:
    """An evaluation, one with a name and a model of hostile text, and two files that can't be read."""
    scores = values.scores()
    hostile = {**scores, "about": {**scores["about"], "suite": LONG, "model": f"<b>{LONG}</b>"}}
    texts = {"ruler": json.dumps(scores), "pasted": json.dumps(hostile), "cut": "{", "other": '{"rows": 3}'}
    for name, text in texts.items():
        folder = home / "evaluations" / name
        folder.mkdir(parents=True)
        (folder / "scores.json").write_text(text)


def queue_jobs(home: Path) -> tuple[dict[str, str], Claim]:
    """A job in every state, a sweep of three and a profile's, as workers would leave them; their ids by name, and the
    claim of the one that runs."""
    queue = JobQueue(home)
    text = (serve.REPOSITORY / "data" / "samples" / "prompts" / "needles.txt").read_text("utf-8")
    prices = [RunRequest(label="needles.txt", policy="priced", price=price) for price in (0.1, 0.3, 1.0)]
    ids = {"sweep": queue.submit_sweep(prices, text)}
    done = queue.claim("worker-1")
    made = factory.priced(rename(make_record(hardness=0.7, seed=4), done.run_id))
    write_bundle(replace(made, run=replace(made.run, sweep=ids["sweep"], price=0.1)), home / "spool")
    queue.finish(done, done.run_id)
    queue.fail(queue.claim("worker-1"), "out_of_memory", classify(MemoryError(), "4f2a9c11")[1], "4f2a9c11")
    queue.heartbeat(queue.claim("worker-1", 3600), 3600, ("route", 3, 8))
    for state in ("done", "failed", "running", "waiting"):
        ids[state] = queue.submit(RunRequest(label=f"{state}-needles.txt", audit="rows"), text)
    done = queue.claim("worker-1")
    write_bundle(rename(make_record(hardness=0.7, seed=4), done.run_id), home / "spool")
    queue.heartbeat(done, progress=("write", 1, 1))
    queue.finish(done, done.run_id)
    failed = queue.claim("worker-1")
    queue.heartbeat(failed, progress=("route", 2, 8))
    queue.fail(failed, "out_of_memory", classify(MemoryError(), "4f2a9c11")[1], "4f2a9c11")
    running = queue.claim("worker-1")
    queue.heartbeat(running, progress=("route", 5, 8))
    ids["profile"] = queue.submit(ProfileRequest(DEMO, quick=True), b"")
    queue.close()
    return ids, running


@contextlib.contextmanager
def alive(home: Path, claim: Claim) -> Iterator[None]:
    """Keep a job running, as its worker would: a lease lasts a minute at most."""
    over = threading.Event()

    def beat() -> None:
        with contextlib.closing(JobQueue(home)) as queue:
            while not over.wait(10):
                queue.heartbeat(claim, progress=("route", 5, 8))

    worker = threading.Thread(target=beat)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def shoot(
    browser: Browser, address: str, pages: dict[str, str], folder: Path, state: str, only: Sequence[str]
) -> None:
    """One picture per page, theme and width, the whole page high."""
    wanted = {f"{state}-{name}": path for name, path in pages.items() if _is_wanted(f"{state}-{name}", only)}
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport={"width": WIDTHS[0], "height": 900}, color_scheme=scheme)
        page = context.new_page()
        for name, path in wanted.items():
            page.goto(address + path)
            _settle(page)
            for summary in page.locator("[data-testid=stExpander] summary").all():
                summary.click()
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                # Until the page no longer grows: what is drawn last adds to it, and text breaks elsewhere.
                height = 0
                while (now := page.evaluate(HEIGHT)) != height:
                    height = now
                    page.set_viewport_size({"width": width, "height": max(900, int(height) + 10)})
                    page.wait_for_timeout(800)
                page.screenshot(path=folder / f"{name}-{scheme}-{width}.png")
            page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        context.close()


def _is_wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(part in name for part in only)


def _settle(page: Page) -> None:
    page.wait_for_selector(".rs-title, .rs-state", timeout=SETTLE_MS)
    page.get_by_text("The store is taking in").wait_for(state="detached", timeout=SETTLE_MS)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=SETTLE_MS)
    page.wait_for_timeout(1000)


def main(folder: Path, only: Sequence[str]) -> None:
    """Write the pictures into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(serve.CHROMIUM), args=serve.FLAGS)
        homes = [Path(temporary) / name for name in ("filled", "served", "empty", "broken")]
        for home in homes:
            home.mkdir()
        filled, served, empty, broken = homes
        fill(filled)
        ids, running = queue_jobs(filled)
        if any(_is_wanted(f"served-{name}", only) for name in FLEET):
            fill_fleet(served)
        (broken / "routesparse.duckdb").write_bytes(b"this is no database")
        with serve.dashboard(filled) as address, alive(filled, running):
            pages = {name: path.format(**ids) for name, path in PAGES.items()}
            shoot(browser, address, pages, folder, "filled", only)
        with serve.dashboard(served) as address:
            shoot(browser, address, FLEET, folder, "served", only)
        names = ("map", "new", "text", "trust", "compare", "calibration", "models", "results", "fleet")
        few = {"runs": "/", **{name: f"/{name}" for name in names}}
        with serve.dashboard(empty) as address:
            shoot(browser, address, few, folder, "empty", only)
        with serve.dashboard(broken, samples=True) as address:
            shoot(browser, address, few, folder, "broken", only)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", action="append", default=[], help="a part of the pictures' names")
    chosen = parser.parse_args()
    target = chosen.folder or Path(tempfile.mkdtemp(prefix="routesparse-screenshots-"))
    main(target, chosen.only)
    print(target)
