"""From page to page in a real browser: runs, map, trust, compare, domains; links, keys, pictures, widths."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from routesparse.app.ui.reason_words import shown
from tests.e2e.serve import click_cell, save_picture, settled

pytestmark = pytest.mark.timeout(180)
RUN, AGAIN, BAD = "d4e5b678", "aaaa5679", "bad0bad0bad01111"


@pytest.fixture(scope="module")
def record(factory):
    """A hard prompt of eight layers and eight heads, every unit audited."""
    return factory.make_record(hardness=0.9)


@pytest.fixture(scope="module")
def bad(factory):
    """Nothing fell back, every audited certificate holds, and half of the heads ran without certified mass."""
    made = factory.rename(factory.make_record(hardness=0.9, name="calm.txt", probe=False, prompt=False), BAD)
    choices = tuple(
        replace(c, fallback=None, **({"lower_mass": 0.3} if c.pattern != "dense" and c.head < 4 else {}))
        for c in made.choices
    )
    run = replace(made.run, policy="strict", dense_fallback_units=0, expanded_units=0, coverage=1.0)
    return replace(made, run=run, choices=choices, fallbacks=())


@pytest.fixture(scope="module")
def address(site, factory, record, bad):
    other = factory.make_record("77771c20aaaa5679", hardness=0.4, seed=3, probe=False, prompt=False)
    slow = tuple(replace(layer, kernel_us=6e6) for layer in other.layers)
    return site(bad, replace(other, layers=slow), record)


def shows(page, record, layer: int, head: int) -> None:
    """The panel of a head, with the stored reason in the pages' words."""
    page.get_by_text(f"Layer {layer}, head {head}: why").wait_for()
    reason = next(c.reason for c in record.choices if (c.layer, c.head, c.segment) == (layer, head, 0))
    page.get_by_text(shown(reason)).first.wait_for()


def test_from_runs_to_a_reason_and_back_by_link(address, context, page, record):
    page.goto(f"{address}/?q={RUN}")
    table = page.locator("[data-testid=stDataFrame]").first
    table.locator("canvas").first.wait_for()
    settled(page, 400)
    # The table is a canvas: the first row's prompt cell lies below the header, right of the tick box.
    table.click(position={"x": 90, "y": 48})
    page.wait_for_url("**/map?run=*")
    page.locator(".st-key-card-reason").wait_for()
    click_cell(page, 3, 4)
    shows(page, record, 3, 4)
    # The address follows the click, a moment after the panel.
    page.wait_for_url("**layer=3**")
    assert "head=4" in page.url
    page.reload()
    shows(page, record, 3, 4)
    page.get_by_role("radio", name="Density").click()
    page.wait_for_url("**metric=density**")
    page.locator("[data-testid=stSidebarNavLink]").filter(has_text="Runs").click()
    table.locator("canvas").first.wait_for()
    page.wait_for_timeout(1500)
    assert "/map" not in page.url, "the page stays when one comes back"
    assert context.failures == [] and context.hosts() == {"127.0.0.1"}


def test_keys_move_the_choice_and_back_and_forward_walk_through_the_views(address, page, record):
    page.goto(f"{address}/map?run={RUN}&layer=5&head=5")
    page.get_by_text("Layer 5, head 5: why").wait_for()
    settled(page, 400)
    page.locator(".rs-title").first.click()
    for _ in range(3):
        page.keyboard.press("ArrowDown")  # alone they scroll the page
    page.wait_for_function("document.querySelector('[data-testid=stMain]').scrollTop > 0")
    assert page.get_by_text("Layer 5, head 5: why").count() == 1
    click_cell(page, 2, 2)
    page.get_by_text("Layer 2, head 2: why").wait_for()
    page.keyboard.press("Shift+ArrowRight")
    page.get_by_text("Layer 2, head 3: why").wait_for()
    page.wait_for_url("**layer=2&head=3")
    page.get_by_role("radio", name="Density").click()
    page.wait_for_url("**metric=density**")
    page.get_by_text("colour: share of the causal area").wait_for()
    page.go_back()
    page.get_by_text("colour: where attention lies").wait_for()
    page.get_by_text("Layer 2, head 3: why").wait_for()
    page.go_back()
    page.go_back()
    page.get_by_text("Layer 5, head 5: why").wait_for()
    page.go_forward()
    page.get_by_text("Layer 2, head 2: why").wait_for()


def test_every_chart_can_be_saved(address, context, page):
    page.goto(f"{address}/map?run={RUN}&layer=5&head=5&detail=candidates")
    page.locator(".st-key-scatter .rs-plot svg").wait_for()
    page.locator(".rs-map svg .ring").wait_for()
    for chart, inside in (("map", "layer ↓ head →"), ("scatter", "predicted kernel")):
        tree = ElementTree.fromstring(save_picture(page, chart).read_bytes())
        assert inside in " ".join(" ".join(tree.itertext()).split())
        assert not [one for one in tree.iter() if "ring" in (one.get("class") or "").split()], "no selection"
    page.goto(f"{address}/map?run={RUN}&layer=5&head=5")
    page.locator(".st-key-probe .rs-plot svg").wait_for()
    saved = save_picture(page, "probe", "png").read_bytes()
    assert saved.startswith(b"\x89PNG") and len(saved) > 5_000
    page.goto(f"{address}/trust?run={RUN}&details=true")
    page.locator(".rs-plot svg").first.wait_for()
    settled(page, 400)
    for chart in ("error", "mass"):
        tree = ElementTree.fromstring(save_picture(page, chart).read_bytes())
        assert len(list(tree.iter("{http://www.w3.org/2000/svg}path"))) > 2, chart
    assert context.failures == []


def candidates_in(page, address, width, height):
    """A head's candidates, in a window of this size."""
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{address}/map?run={RUN}&layer=5&head=2&detail=candidates")
    page.locator("[class*=candidates] .rs-table th").get_by_text("g ≥ λ").wait_for()
    settled(page, 400)


def test_a_window_of_1024_pixels_shows_every_column_and_verdict(address, page):
    candidates_in(page, address, 1024, 900)
    wide = page.locator(".rs-table").evaluate_all(
        "tables => tables.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)"
    )
    assert wide == []
    page.goto(f"{address}/compare?runs={RUN},{AGAIN}")
    verdicts = page.locator(".st-key-card-sides td:nth-child(2)")
    verdicts.first.wait_for()
    for verdict in verdicts.all():
        box = verdict.bounding_box()
        assert box["x"] + box["width"] <= 1024


def test_a_window_of_390_pixels_cuts_nothing_and_has_cells_to_tap(address, page):
    candidates_in(page, address, 390, 844)
    cut = page.locator("[class*=candidates] .rs-table :is(th, td)").evaluate_all(
        "cells => cells.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)"
    )
    assert cut == []
    page.goto(f"{address}/map?run={AGAIN}")
    page.locator(".rs-map svg text").get_by_text("6,000").wait_for()
    settled(page, 400)
    boxes = [text.bounding_box() for text in page.locator(".rs-map svg text").all()]
    top = sorted((box["x"], box["width"]) for box in boxes if box["y"] == boxes[0]["y"])
    assert all(x + width <= after for (x, width), (after, _) in pairwise(top)), top
    cell = page.evaluate("(({ cell, row }) => ({ cell, row }))(document.querySelector('.rs-map').geometry)")
    assert min(cell["cell"], cell["row"]) >= 24, "a fingertip"
    click_cell(page, 2, 3)
    page.get_by_text("Layer 2, head 3: why").wait_for()
    reason = page.locator(".st-key-card-reason .rs-sub").first.inner_text()
    page.locator(".rs-map .tip").get_by_text(reason).wait_for()
    page.goto(f"{address}/results")
    page.locator(".st-key-card-front svg text").first.wait_for()
    settled(page, 400)
    frame = page.locator(".st-key-card-front svg").bounding_box()
    names = [one.bounding_box() for one in page.locator(".st-key-card-front svg text[paint-order]").all()]
    assert len(names) > 3
    for box in names:
        assert frame["x"] <= box["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"] + 1


def test_a_folded_sidebar_leaves_its_place_to_the_page(address, page):
    """Streamlit folds it in a window of 768 pixels, a tablet's."""
    page.set_viewport_size({"width": 768, "height": 900})
    page.goto(f"{address}/trust?run={RUN}")
    page.locator("[data-testid=stSidebar][data-collapsed=true]").wait_for(state="attached")
    page.wait_for_function(
        "document.querySelector('[data-testid=stMain]').getBoundingClientRect().left === 0"
    )


def test_links_to_former_and_unknown_pages(address, page):
    """Streamlit serves its default page at "/" alone."""
    for former, now in (
        ("home", "Tour a sample"),
        (f"head?run={RUN}&layer=3&head=4", "Layer 3, head 4: why"),
    ):
        page.goto(f"{address}/{former}")
        page.get_by_text(now).first.wait_for()
        assert page.get_by_text("Page not found").count() == 0
    page.goto(f"{address}/nowhere")
    page.get_by_text("Page not found").wait_for()


def test_dragging_over_a_probe_fetches_that_part_at_full_resolution(address, context, page):
    page.goto(f"{address}/map?run={RUN}&layer=2&head=3&segment=1")
    legend, card = page.locator(".st-key-card-probe .rs-legend"), page.locator(".st-key-card-probe")
    legend.get_by_text("the largest mass here").wait_for()
    # The picture stays where it is while the rest of the page is drawn.
    settled(page)
    plot = page.locator(".st-key-probe .rs-plot image").first
    plot.scroll_into_view_if_needed()
    page.wait_for_timeout(1000)
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.7, steps=8)
    page.mouse.up()
    legend.get_by_text("the largest mass of this part").wait_for()
    page.wait_for_url("**zoom=**")
    told = card.get_by_text("Probe, rows").inner_text()
    page.reload()
    card.get_by_text("Probe, rows").wait_for()
    assert card.get_by_text("Probe, rows").inner_text() == told
    page.get_by_role("button", name="Whole picture").click()
    legend.get_by_text("the largest mass here").wait_for()
    page.wait_for_function("!location.search.includes('zoom')")
    assert context.failures == []


def test_is_this_run_safe(address, context, page, bad):
    """From the first page in one click to the verdict, in a second one to what it is about, in a third to a head."""
    count, units = len(bad.uncertified), bad.run.units
    told = f"{count} of {units} units have a bound on kept mass below τ 0.9: do not trust this run"
    page.goto(f"{address}/?q={BAD[:8]}")
    table = page.locator("[data-testid=stDataFrame]").first
    table.locator("canvas").first.wait_for()
    settled(page, 400)
    cells = table.locator("[role=gridcell]")
    cells.first.wait_for(state="attached")
    assert any(text.startswith("✕ ") and "bound < τ" in text for text in cells.all_inner_texts()), (
        "a sign beside the colour"
    )
    table.click(position={"x": 90, "y": 48})
    page.wait_for_url("**/map?run=*")
    bar = page.locator(".rs-verdict.red[role=status]")
    bar.get_by_text(told).wait_for()
    page.locator("[data-testid=stSidebarNavLink]", has_text="Trust").click()
    page.locator(".rs-verdict.red").get_by_text(told).wait_for()
    page.get_by_text("What failed or fell back").wait_for()
    settled(page, 400)
    page.locator(".st-key-card-events [data-testid=stDataFrame]").click(position={"x": 60, "y": 50})
    page.wait_for_url(re.compile(r"/map\?run=.*layer=\d"))
    page.get_by_role("radio", name="Certificates").click()
    page.get_by_text("0.300").first.wait_for()
    assert context.failures == [] and context.hosts() == {"127.0.0.1"}


def test_a_point_of_trust_or_a_cell_of_compare_opens_its_head(address, context, page):
    page.goto(f"{address}/trust?run={RUN}&details=true")
    page.locator(".st-key-card-mass .point").first.wait_for()
    settled(page, 400)  # what is drawn last moves what stands below it
    chart = page.locator(".st-key-card-mass .rs-plot")
    chart.focus()
    page.keyboard.press("ArrowRight")
    told = re.match(r"layer (\d), head (\d), segment (\d)", chart.locator(".tip").inner_text())
    said = chart.locator(".rs-said").text_content()
    assert said == chart.locator(".tip").text_content(), "screen readers, too"
    assert chart.get_attribute("role") == "application"
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"/map\?run=.*layer={told[1]}&head={told[2]}"))
    page.get_by_text(f"Layer {told[1]}, head {told[2]}: why").wait_for()
    page.go_back()
    chart.wait_for()

    page.goto(f"{address}/compare?runs={RUN},{AGAIN}")
    grid = page.locator(".st-key-difference .rs-grid")
    grid.locator("svg").wait_for()
    settled(page, 400)
    cell = grid.evaluate("g => [g.g.left + 4.5 * g.g.cell, 34 + 2.5 * g.g.row]")
    grid.locator("svg").click(position=dict(zip("xy", cell, strict=True)))
    page.wait_for_url(re.compile(rf"/map\?run={AGAIN}&layer=2&head=4"))
    page.get_by_text("Layer 2, head 4: why").wait_for()
    page.go_back()
    page.get_by_text("What differs, head by head").wait_for()
    page.wait_for_timeout(1500)
    assert "/compare" in page.url and AGAIN in page.url, "the page stays when one comes back"
    grid.focus()
    page.keyboard.press("ArrowRight")
    assert grid.locator(".rs-said").text_content().startswith("layer "), "screen readers are told"
    assert context.failures == []
