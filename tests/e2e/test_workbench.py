"""Runs as a workbench in a browser: rows are ticked, named, tagged and compared."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from routesparse.engine.store import bundle
from tests.e2e import serve
from tests.e2e.serve import settled

pytestmark = pytest.mark.timeout(180)
FIRST, SECOND = "3f9a1c20d4e5b678", "77771c20aaaa5679"


@pytest.fixture(scope="module")
def address(factory, tmp_path_factory):
    """A dashboard with one prompt under two settings; the second run's answer is dense's as well."""
    home = tmp_path_factory.mktemp("workbench")
    for run_id, tau, hardness in ((FIRST, 0.9, 0.9), (SECOND, 0.85, 0.4)):
        made = factory.make_record(run_id, layers=4, heads=4, tokens=4096, hardness=hardness, seed=3)
        config = json.dumps({**json.loads(made.run.config_json), "tau": tau})
        run = replace(made.run, tau=tau, config_json=config, top1_agreement=1.0, kl_nats=0.002)
        bundle.write_bundle(replace(made, run=run), home / "spool")
    with serve.dashboard(home) as running:
        yield running


def tick(page, row: int) -> None:
    """The table is a canvas: tick boxes are at its left, rows 35 pixels high below the header."""
    page.locator("[data-testid=stDataFrame] canvas").first.wait_for()
    settled(page, 400)
    page.locator("[data-testid=stDataFrame]").click(position={"x": 17, "y": 48 + 35 * row})


def test_a_name_and_a_tag_survive_a_reload_and_name_the_tab(address, context, page):
    page.goto(f"{address}/runs?q={FIRST[-8:]}")
    tick(page, 0)
    page.get_by_role("button", name="Name, notes, tags").click()
    page.get_by_label("Name", exact=True).fill("careful <b>one</b>")
    tags = page.get_by_role("combobox", name="Tags")
    tags.fill("keep")
    tags.press("Enter")
    page.get_by_role("textbox", name="Notes", exact=True).fill("the one to show")
    page.get_by_test_id("stBaseButton-secondaryFormSubmit").click()
    settled(page, 400)
    page.goto(f"{address}/runs?q=the+one+to+show")
    page.get_by_text("1 run", exact=True).wait_for()
    page.goto(f"{address}/map?run={FIRST[-8:]}&layer=3&head=2")
    page.get_by_text("careful <b>one</b>").wait_for()
    page.wait_for_function("document.title === 'L3 H2 · careful <b>one</b> · RouteSparse'")
    assert context.failures == []


def test_compare_begins_with_a_conclusion_against_the_first_ticked(address, context, page):
    page.goto(f"{address}/runs")
    tick(page, 1)
    page.get_by_text("1 ticked").wait_for()
    tick(page, 0)
    page.get_by_text("2 ticked").wait_for()
    settled(page, 400)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.wait_for_url("**/compare?runs=*")
    told = page.locator(".rs-concludes")
    told.wait_for()
    # Both are of the same second: the larger id stands on top, the lower row was ticked first.
    first = page.url.split("runs=")[1].split("%2C")[0].split(",")[0]
    text = told.inner_text()
    assert first == FIRST[-8:]
    assert "τ 0.85: it reads" in text and "less than the baseline" in text
    assert "The next token is dense’s in both, at a predicted loss of" in text
    assert "at a KL of 0.002 nats" in text
    page.wait_for_function("document.title.startsWith('Compare · τ 0.85 against careful')")
    assert context.failures == []
