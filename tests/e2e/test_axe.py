"""Every page, light and dark, by axe-core: nothing serious or critical. In a real browser; no GPU."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from routesparse.engine.store import bundle

pytestmark = pytest.mark.timeout(240)
RUN = "3f9a1c20d4e5b678"
SWEEP = "5eeb" * 8
VALUES = Path(__file__).parents[1] / "engine" / "results" / "values.py"
PAGES = {
    "home": "/",
    "runs": "/runs",
    "map": f"/map?run={RUN}&layer=5&head=2",
    "probe": f"/map?run={RUN}&layer=5&head=2&metric=probe",
    "head": f"/head?run={RUN}&layer=5&head=2",
    "text": f"/text?run={RUN}&find=2474-12",
    "audit": f"/audit?run={RUN}",
    "fallbacks": f"/fallbacks?run={RUN}",
    "compare": f"/compare?runs={RUN},77771c2090e1f006",
    "sweep": f"/sweep?sweep={SWEEP}",
    "calibration": "/calibration?names=prose,code",
    "results": "/results?set=here-ruler",
    "new": "/new?source=Sample&sample=needles.txt",
    "models": "/models",
    "jobs": "/job",
    "terms": "/terms",
}
# Nothing is faded because it is old, and nothing fades in.
SETTLED = """() => !document.querySelector('[data-stale=true]') && document.getAnimations().every((animation) =>
  animation.playState === "finished" || animation.effect.getTiming().iterations === Infinity)"""


@pytest.fixture(scope="module")
def address(serve, factory, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    bundle.write_bundle(factory.make_record(RUN, hardness=0.9), home / "spool")
    bundle.write_bundle(factory.make_record("77771c2090e1f006", hardness=0.5, seed=2), home / "spool")
    for run_id, hardness, price in (("5eeb000090e1f001", 0.9, 0.3), ("5eeb000090e1f002", 0.5, 1.0)):
        made = factory.priced(factory.make_record(run_id, hardness=hardness))
        run = replace(made.run, sweep=SWEEP, price=price)
        bundle.write_bundle(replace(made, run=run), home / "spool")
    evaluation = home / "evaluations" / "ruler"
    evaluation.mkdir(parents=True)
    spec = importlib.util.spec_from_file_location("evaluation_values", VALUES)
    values = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(values)
    (evaluation / "scores.json").write_text(json.dumps(values.scores()))
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
    page.locator(".rs-title").first.wait_for()
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    page.wait_for_function(SETTLED)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(address, browser, name, theme):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.goto(f"{address}{PAGES[name]}")
    drawn(page)
    assert serious(page) == []
    context.close()


def test_axe_would_find_something(page):
    page.set_content("<html lang=en><title>t</title><main><img src=x><button></button></main></html>")
    assert {finding.partition(":")[0] for finding in serious(page)} == {"image-alt", "button-name"}
