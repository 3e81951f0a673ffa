"""Every page, every other one dark, and pages in error, by axe-core: nothing serious or critical. In a real browser;
no GPU."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import pytest
from axe_playwright_python.sync_playwright import Axe

from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.duckdb_store import Store
from tests.e2e import serve
from tests.e2e.serve import settled
from tests.engine.results import values

pytestmark = pytest.mark.timeout(400)
RUN = "3f9a1c20d4e5b678"
SWEEP = "5eeb" * 8
PAGES = {
    "runs": "/",
    "job": "/?job={failed}",
    "map": f"/map?run={RUN}&layer=5&head=2&detail=candidates",
    "metric": f"/map?run={RUN}&layer=2&head=6&metric=risk",
    "text": f"/text?run={RUN}&find=2474-12",
    "trust": f"/trust?run={RUN}&details=true",
    "certificate": "/trust?run=ce47f1ca",
    "compare": f"/compare?runs={RUN},77771c2090e1f006",
    "sweep": f"/compare?sweep={SWEEP}",
    "domains": "/domains?names=prose,code",
    "results": "/results?set=here-ruler",
    "new": "/new?source=Sample&sample=needles.txt",
    "models": "/models",
    "fleet": "/fleet",
    "terms": "/terms",
}
# One of each kind of error, and the theme to draw it in.
ERRORS = {
    "unknown run": ("/map?run=deadbeef", "dark"),
    "unknown side": (f"/compare?runs=deadbeef,{RUN}", "light"),
    "wrong settings": ("/new?source=Sample&with_policy=strict&segment=1000", "dark"),
    "broken model": ("/models?named=broken", "light"),
}
# Nothing is faded because it is old, and nothing fades in.
SETTLED = """() => !document.querySelector('[data-stale=true]') && document.getAnimations().every((animation) =>
  animation.playState === "finished" || animation.effect.getTiming().iterations === Infinity)"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "models" / "broken").mkdir(parents=True)
    return home


@pytest.fixture(scope="module")
def failed(home):
    """A failed job's id."""
    with closing(JobQueue(home)) as queue:
        job = queue.submit(RunRequest(label="ledger.txt"), "A ledger of vessels.")
        queue.fail(
            queue.claim("worker-1"), "out_of_memory", "out of memory while running this prompt", "4f2a9c11"
        )
    return job


@pytest.fixture(scope="module")
def address(factory, home, failed):
    bundle.write_bundle(factory.make_record(RUN, hardness=0.9), home / "spool")
    bundle.write_bundle(factory.make_certificate(layers=8, heads=8), home / "spool")
    prose = factory.make_record("d0d0d0d090e1f007", hardness=0.7)
    prose = replace(prose, run=replace(prose.run, domain="prose", prompt_sha256="d" * 64))
    bundle.write_bundle(prose, home / "spool")
    for request in factory.fleet(2, 20, bad=0):
        bundle.write_bundle(request, home / "spool")
    bundle.write_bundle(factory.make_record("77771c2090e1f006", hardness=0.5, seed=2), home / "spool")
    for run_id, hardness, price in (("5eeb000090e1f001", 0.9, 0.3), ("5eeb000090e1f002", 0.5, 1.0)):
        made = factory.priced(factory.make_record(run_id, hardness=hardness))
        run = replace(made.run, sweep=SWEEP, price=price)
        bundle.write_bundle(replace(made, run=run), home / "spool")
    evaluation = home / "evaluations" / "ruler"
    evaluation.mkdir(parents=True)
    (evaluation / "scores.json").write_text(json.dumps(values.scores()))
    # Before the first visit, which would not wait for so many.
    with closing(Store(home / "routesparse.duckdb")) as store:
        assert not spool.ingest_spool(store, home / "spool").rejected
    with serve.dashboard(home) as running:
        yield running


def serious(page) -> list[str]:
    """What axe-core finds wrong on the page as it is now: rule, element and reason."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:120]} ({node['failureSummary']})"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def drawn(page) -> None:
    """Wait until the page has been drawn to its end."""
    page.locator(".rs-title, .rs-state").first.wait_for()
    settled(page)
    page.wait_for_function(SETTLED)


@pytest.fixture
def visit(browser):
    """visit(url, theme, width): a page of a fresh browser, drawn to its end."""
    contexts = []

    def open_page(url, theme, width=1280):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme))
        page = contexts[-1].new_page()
        page.goto(url)
        drawn(page)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("name", "dark"), [(name, place % 2) for place, name in enumerate(PAGES)])
def test_axe_finds_nothing_serious(address, visit, failed, name, dark):
    page = visit(address + PAGES[name].format(failed=failed), *(("dark", 1280) if dark else ("light", 1024)))
    assert name == "job" or not page.locator(".rs-state").count(), "the page is to be filled"
    assert serious(page) == []


def test_thirty_days_stay_readable_in_a_narrow_window(address, visit):
    page = visit(f"{address}/fleet?days=30", "light", 1024)
    page.locator(".rs-grid svg").wait_for()
    texts = page.locator(".rs-grid svg text").evaluate_all(
        "texts => texts.map(text => { const { left, right, top } = text.getBoundingClientRect();"
        " return [text.textContent, left, right, Math.round(top)]; })"
    )
    days = sorted(text for text in texts if re.fullmatch(r"\d\d-\d\d", text[0]))
    assert len(days) >= 10 and all(one[2] < other[1] for one, other in pairwise(days))
    assert any(text[0].startswith("▲") for text in texts), "an alarm is not told by its colour alone"
    cells = page.locator(".rs-grid svg > g[text-anchor] text").all_text_contents()
    assert {"3,840", "22.0 %"} <= set(cells), "no figure is left out or cut"
    drawing = page.locator(".rs-grid .drawing")
    assert drawing.evaluate("one => one.scrollLeft > 0"), "the newest days come first"


@pytest.mark.parametrize("name", ERRORS)
def test_axe_finds_nothing_serious_on_a_page_in_error(address, visit, name):
    path, theme = ERRORS[name]
    page = visit(address + path, theme)
    page.locator(".rs-state, .rs-error").first.wait_for()
    assert serious(page) == []


def test_axe_finds_nothing_serious_where_the_store_is_broken(visit, tmp_path):
    (tmp_path / "routesparse.duckdb").write_bytes(b"this is no database")
    with serve.dashboard(tmp_path, samples=True) as address:
        page = visit(f"{address}/runs", "dark")
        page.get_by_text("The store can't be used").wait_for()
        assert serious(page) == []


def test_axe_would_find_something(page):
    page.set_content("<html lang=en><title>t</title><main><img src=x><button></button></main></html>")
    assert {finding.partition(":")[0] for finding in serious(page)} == {"image-alt", "button-name"}
