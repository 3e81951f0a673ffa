"""From the audit to a head and on to a comparison in a real browser; every view comes back by its link."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from routesparse.engine.store import bundle

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def record(factory):
    """A hard prompt of eight layers and eight heads, every unit audited."""
    made = factory.make_record(hardness=1.2, probe=False, prompt=False)
    return replace(made, audits=tuple(replace(a, row_covered=0.9) for a in made.audits))


@pytest.fixture(scope="module")
def address(serve, factory, record, tmp_path_factory):
    home = tmp_path_factory.mktemp("trust")
    bundle.write_bundle(record, home / "spool")
    again = factory.make_record("77771c20aaaa5679", hardness=0.4, seed=3, probe=False, prompt=False)
    bundle.write_bundle(again, home / "spool")
    code = factory.make_record(
        "c0de17aa90e1f003", name="router.py.txt", domain="code", seed=5, probe=False, prompt=False
    )
    bundle.write_bundle(code, home / "spool")
    with serve.dashboard(home) as running:
        yield running


def test_from_the_audit_over_a_head_to_a_comparison(address, context, page, record):
    run = record.run.run_id
    page.goto(f"{address}/audit?run={run[-8:]}")
    page.get_by_text("Three certificates, three different claims").wait_for()
    sparse = sum(a.covered is not None for a in record.audits)
    page.get_by_text(f"{sparse} sparse units").first.wait_for()
    page.get_by_role("radio", name="Row statement").click()
    page.wait_for_url("**claim=row**")
    page.get_by_role("radio", name="Least margin").click()
    page.wait_for_url("**worst=margin**")
    page.reload()
    margins = {
        (a.layer, a.head, a.segment): a.mass - a.lower_mass for a in record.audits if a.lower_mass is not None
    }
    layer, head, segment = min(margins, key=margins.__getitem__)
    worst = page.locator(".st-key-card-worst td a").first
    assert worst.inner_text().startswith(f"layer {layer}, head {head}")

    worst.click()
    page.wait_for_url(re.compile(rf"/head\?.*layer={layer}&head={head}&segment={segment}"))
    page.get_by_text("Audited truth").wait_for()
    page.get_by_text("90.0 % of the rows do").wait_for()

    page.goto(f"{address}/fallbacks?run={run[-8:]}&limit=0")
    page.get_by_text("Failure:").wait_for()

    page.goto(f"{address}/compare?runs={run[-8:]},aaaa5679&baseline={run[-8:]}")
    page.get_by_text("Paired: all runs are of the same prompt").wait_for()
    page.get_by_role("radio", name="Error").click()
    page.wait_for_url("**metric=audited_error**")
    page.reload()
    page.get_by_text("Paired: all runs are of the same prompt").wait_for()
    assert page.get_by_role("radio", name="Error").is_checked()
    page.goto(f"{address}/compare?runs={run[-8:]},90e1f003")
    page.get_by_text("Unpaired: the prompts differ").wait_for()
    assert context.failures == []
    assert context.hosts() == {"127.0.0.1"}


def test_a_click_on_a_point_or_a_cell_opens_its_head(address, page, record):
    run = record.run.run_id[-8:]
    page.goto(f"{address}/audit?run={run}")
    page.locator(".st-key-card-mass .point").first.wait_for()
    # What is drawn last moves what stands below it.
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
    chart = page.locator(".st-key-card-mass .rs-plot")
    chart.focus()
    page.keyboard.press("ArrowRight")
    told = re.match(r"layer (\d), head (\d), segment (\d)", chart.locator(".tip").inner_text())
    assert chart.locator(".rs-said").text_content() == chart.locator(".tip").text_content(), (
        "screen readers, too"
    )
    assert chart.get_attribute("role") == "application"
    assert re.search(
        r": \d+ marks; arrow keys read them, Enter opens one$", chart.get_attribute("aria-label")
    )
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"/head\?run=.*layer={told[1]}&head={told[2]}&segment={int(told[3]) - 1}"))
    page.go_back()
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
    chart.locator(".point").last.click()
    page.wait_for_url(re.compile(r"/head\?run=.*layer=\d"))
    page.get_by_text("Certificates and the truth").wait_for()

    page.goto(f"{address}/compare?runs={run},aaaa5679")
    grid = page.locator(".st-key-difference .rs-grid")
    cell = grid.evaluate("g => [g.g.left + 4.5 * g.g.cell, 34 + 2.5 * g.g.row]")
    grid.locator("svg").click(position=dict(zip("xy", cell, strict=True)))
    page.wait_for_url(re.compile(r"/head\?run=aaaa5679&layer=2&head=4"))
    page.get_by_text("Certificates and the truth").wait_for()
    page.go_back()
    page.get_by_text("From which pattern to which").wait_for()
    page.wait_for_timeout(1500)
    assert "/compare" in page.url and "aaaa5679" in page.url, "the page stays when one comes back"
    grid.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert page.locator(".st-key-difference .tip").inner_text().startswith("layer 1, head 1"), (
        "what the ring is on"
    )
    assert grid.locator(".rs-said").text_content().startswith("layer 1, head 1"), "screen readers are told"
    grid.evaluate("g => g.told.delete('1,2')")
    page.keyboard.press("ArrowRight")
    assert grid.locator(".rs-said").text_content() == "1, 2: no value"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/head\?run=aaaa5679&layer=1&head=1"))


def test_a_grid_without_room_for_its_labels_is_drawn(address, context, page, record):
    """Its cells had a width below nothing: the names of the columns never came to an end."""
    page.goto(f"{address}/compare?runs={record.run.run_id[-8:]},aaaa5679")
    grid = page.locator(".st-key-difference .rs-grid")
    grid.locator("svg").wait_for()
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    grid.evaluate("g => { g.style.width = '12px'; }")
    # A pixel a cell beside what is left of the labels; before, it was hundreds wide.
    expect(grid.locator("svg")).to_have_attribute("width", re.compile(r"\d\d"), timeout=10_000)
    assert grid.locator("svg text").count() > 0 and context.failures == []
