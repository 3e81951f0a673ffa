"""A stranger asks "is this run safe?" in a real browser: of a bad run that looks calm, and of a good one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from routesparse.engine.store import bundle

pytestmark = pytest.mark.timeout(120)

GOOD, BAD = "3f9a1c20d4e5b678", "bad0bad0bad01111"


@pytest.fixture(scope="module")
def bad(factory):
    """Nothing fell back, every audited certificate holds, and half of the heads ran uncertified."""
    made = factory.rename(factory.make_record(hardness=0.9, name="calm.txt", probe=False, prompt=False), BAD)
    choices = tuple(
        replace(c, fallback=None, lower_mass=0.3)
        if c.pattern != "dense" and c.head < 4
        else replace(c, fallback=None)
        for c in made.choices
    )
    run = replace(made.run, policy="strict", dense_fallback_units=0, expanded_units=0, coverage=1.0)
    return replace(made, run=run, choices=choices, fallbacks=())


@pytest.fixture(scope="module")
def address(serve, factory, bad, tmp_path_factory):
    home = tmp_path_factory.mktemp("verdict")
    bundle.write_bundle(bad, home / "spool")
    bundle.write_bundle(
        factory.make_record(GOOD, hardness=0.4, name="good.txt", probe=False, prompt=False), home / "spool"
    )
    with serve.dashboard(home) as running:
        yield running


def colour(page, selector: str) -> str:
    return str(page.locator(selector).first.evaluate("e => getComputedStyle(e).color"))


def test_is_this_run_safe(address, context, page, bad):
    """From the first page in one click to the verdict, in a second one to the units that it is about."""
    count, units = len(bad.uncertified), bad.run.units
    told = f"{count} of {units} units ran uncertified: do not trust this run"
    page.goto(address)
    row = page.locator(".st-key-card-latest tr", has_text="calm.txt")
    row.get_by_text(told).wait_for()
    assert row.locator(".rs-mark.red").inner_text() == "✕", "a sign beside the colour"
    row.get_by_role("link").click()
    page.wait_for_url("**/map?run=*")
    bar = page.locator(".rs-verdict.red[role=status]")
    bar.get_by_text(told).wait_for()
    assert bar.get_by_text("Not safe.").is_visible()
    assert bar.get_by_text("Next token as by dense").is_visible(), "what speaks for it is said as well"

    page.locator("[data-testid=stSidebarNavLink]", has_text="Fallbacks").click()
    page.locator(".rs-verdict.red").get_by_text(told).wait_for()
    page.locator(".st-key-card-layers .rs-legend").get_by_text("ran uncertified").wait_for()
    page.get_by_text(f"n = 0 events and {count} uncertified units").wait_for()
    page.locator(".st-key-card-events [data-testid=stDataFrame]").click(position={"x": 60, "y": 50})
    page.wait_for_url(re.compile(r"/head\?run=.*layer=\d"))
    page.locator(".rs-verdict.red").get_by_text(told).wait_for()
    page.get_by_text("0.300, ran uncertified").wait_for()
    assert context.failures == []
    assert context.hosts() == {"127.0.0.1"}


def test_a_good_run_says_what_its_green_rests_on(address, page):
    page.goto(f"{address}/map?run={GOOD[:8]}")
    bar = page.locator(".rs-verdict.green")
    bar.get_by_text("Next token as by dense, KL 0.0021 nats").wait_for()
    assert colour(page, ".rs-verdict.green b") != colour(page, ".rs-title")
    page.locator(".st-key-card-answer").get_by_text("token 4417").first.wait_for()


def test_the_verdict_stands_in_the_first_columns_of_runs(address, page):
    page.set_viewport_size({"width": 1024, "height": 800})
    page.goto(f"{address}/runs")
    table = page.locator("[data-testid=stDataFrame]")
    table.locator("canvas").first.wait_for()
    cells = table.locator("td[role=gridcell], [role=gridcell]")
    cells.first.wait_for(state="attached")
    texts = cells.all_inner_texts()
    assert any(text.startswith("✕ ") and "uncertified" in text for text in texts)
    assert any(text.startswith("✓ as dense") for text in texts)


def test_the_tour_leads_through_four_pages(address, page):
    page.goto(address)
    page.get_by_role("button", name="Tour a sample").click()
    for step, link in enumerate(("Next: a head", "Next: the audit", "Next: the fallbacks"), start=1):
        page.get_by_text(f"Tour, {step} of 4.").wait_for()
        page.get_by_text(link).click()
    page.get_by_text("Tour, 4 of 4.").wait_for()
    page.get_by_text("Analyse my prompt").click()
    page.wait_for_url("**/new*")
