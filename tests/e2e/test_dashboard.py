"""The journey in a real browser: runs -> map -> click a cell -> its reason -> the reloaded link shows the same."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from routesparse.app.ui import design
from routesparse.app.ui.reason_words import shown
from routesparse.engine.store import bundle

pytestmark = pytest.mark.timeout(180)
# The colour of an element's text and of the first ground behind it that isn't clear, as #rrggbb.
COLORS = """(chosen) => {
  const hex = (css) => "#" + css.match(/[0-9.]+/g).slice(0, 3).map((v) => (+v).toString(16).padStart(2, "0")).join("");
  let behind = document.querySelector(chosen);
  const ink = getComputedStyle(behind).color;
  while (/, 0\\)$|transparent/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  return [hex(ink), hex(getComputedStyle(behind).backgroundColor)];
}"""

# Our own, and Plotly's.
CHARTS = ".rs-plot svg, .js-plotly-plot"


@pytest.fixture(scope="module")
def record(factory):
    return factory.make_record(hardness=0.9)


@pytest.fixture(scope="module")
def address(serve, record, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    bundle.write_bundle(record, home / "spool")
    with serve.dashboard(home) as running:
        yield running


def reason_of(record, layer: int, head: int) -> str:
    """The stored reason in the pages' words."""
    return shown(next(c.reason for c in record.choices if (c.layer, c.head, c.segment) == (layer, head, 0)))


def test_from_runs_to_a_reason_and_back_by_link(address, context, page, record, click_cell):
    page.goto(f"{address}/runs")
    table = page.locator("[data-testid=stDataFrame]")
    table.wait_for()
    # The table is a canvas: the first row's prompt cell lies below the header, right of the tick box.
    table.click(position={"x": 90, "y": 48})
    page.wait_for_url("**/map?run=*")
    page.get_by_text("Candidates of layer").wait_for()

    click_cell(page, 3, 4)
    page.get_by_text("Layer 3, head 4: why").wait_for()
    page.get_by_text(reason_of(record, 3, 4)).first.wait_for()

    # The address follows the click, a moment after the panel.
    page.wait_for_url("**layer=3**")
    assert "head=4" in page.url
    page.reload()
    page.get_by_text("Layer 3, head 4: why").wait_for()
    page.get_by_text(reason_of(record, 3, 4)).first.wait_for()

    page.get_by_role("radio", name="Certified").click()
    page.wait_for_url("**metric=lower_mass**")
    assert context.failures == []


def test_shift_and_arrow_keys_move_and_a_second_click_on_a_cell_returns(address, page, record, click_cell):
    page.goto(f"{address}/map?run={record.run.run_id[:8]}&layer=5&head=5")
    page.get_by_text("Layer 5, head 5: why").wait_for()
    click_cell(page, 2, 2)
    page.get_by_text("Layer 2, head 2: why").wait_for()
    page.keyboard.press("Shift+ArrowRight")
    page.get_by_text("Layer 2, head 3: why").wait_for()
    page.keyboard.press("Shift+ArrowDown")
    page.get_by_text("Layer 3, head 3: why").wait_for()
    click_cell(page, 2, 2)
    page.get_by_text("Layer 2, head 2: why").wait_for()


def test_arrow_keys_alone_scroll_the_page(address, page, record):
    page.goto(f"{address}/map?run={record.run.run_id[:8]}&layer=5&head=5")
    page.get_by_text("Layer 5, head 5: why").wait_for()
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    page.locator(".rs-title").first.click()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.wait_for_function("document.querySelector('[data-testid=stMain]').scrollTop > 0")
    assert page.get_by_text("Layer 5, head 5: why").count() == 1


def test_back_and_forward_walk_through_the_views_of_the_map(address, page, record, click_cell):
    page.goto(f"{address}/map?run={record.run.run_id[:8]}&layer=5&head=5")
    page.get_by_text("Layer 5, head 5: why").wait_for()
    click_cell(page, 2, 3)
    page.get_by_text("Layer 2, head 3: why").wait_for()
    page.wait_for_url("**layer=2&head=3")
    page.get_by_role("radio", name="Certified").click()
    page.wait_for_url("**metric=lower_mass**")
    page.get_by_text("colour: in-prompt certificate").wait_for()
    page.go_back()
    page.get_by_text("colour: pattern").wait_for()
    assert page.get_by_text("Layer 2, head 3: why").is_visible()
    page.go_back()
    page.get_by_text("Layer 5, head 5: why").wait_for()
    page.go_forward()
    page.get_by_text("Layer 2, head 3: why").wait_for()


def test_every_chart_can_be_saved_as_svg_and_png(address, context, page, record):
    page.goto(f"{address}/map?run={record.run.run_id[:8]}&layer=5&head=5")
    page.locator(".st-key-scatter .rs-plot svg").wait_for()
    page.locator(".rs-map svg").wait_for()
    for chart, inside in (("map", b"font-weight"), ("probe", b"<image"), ("scatter", b"predicted kernel")):
        saved = {}
        for kind in ("svg", "png"):
            with page.expect_download() as waiting:
                page.locator(f".st-key-picture-{chart} .{kind}").click()
            assert waiting.value.suggested_filename.endswith(f"d4e5b678-segment-0.{kind}") or chart != "map"
            saved[kind] = Path(waiting.value.path()).read_bytes()
        tree = ElementTree.fromstring(saved["svg"])
        assert tree.tag.endswith("svg") and inside in saved["svg"]
        assert saved["png"].startswith(b"\x89PNG") and len(saved["png"]) > 5_000
    run = record.run.run_id[:8]
    for path in (f"audit?run={run}", f"fallbacks?run={run}", "calibration?names=prose,code"):
        page.goto(f"{address}/{path}")
        page.locator(CHARTS).first.wait_for()
        page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
        page.wait_for_function(
            "charts => document.querySelectorAll('.rs-picture').length === document.querySelectorAll(charts).length",
            arg=CHARTS,
        )
        pictures = page.locator(".rs-picture .svg").all()
        assert len(pictures) > 1, path
        for picture in pictures:
            with page.expect_download() as waiting:
                picture.click()
            drawn = ElementTree.fromstring(Path(waiting.value.path()).read_bytes())
            assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) > 2, (
                waiting.value.suggested_filename
            )
    assert context.failures == []


def test_plotly_is_loaded_by_who_explores_a_profile_alone(address, context, page):
    loaded = []
    page.on(
        "request", lambda request: loaded.append(request.url) if "plotly" in request.url.lower() else None
    )
    page.goto(f"{address}/calibration?names=prose,code")
    for chart in ("by-length", "residuals", "drift", "curves"):
        page.locator(f".st-key-{chart} .rs-plot svg").wait_for()
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
    assert loaded == []
    page.get_by_text("Explore the times by length and mix").click()
    page.locator(".st-key-surface .main-svg").first.wait_for()
    assert loaded and context.failures == []


def test_the_pointer_reads_the_bar_of_its_own_panel(address, context, page):
    """High above a low bar, the bar of the panel above is nearer."""
    place = """plot => { const low = plot.items.filter((item) => plot.order(item) === 1 && item.box[3] < 20);
      const high = plot.items.filter((item) => plot.order(item) === 0);
      const shared = low.find(({ x }) => high.some(({ box }) => box[0] < x && x < box[0] + box[2]));
      return { x: shared.x, y: plot.ends[0][1] + 12 }; }"""
    page.goto(f"{address}/calibration?names=prose,code")
    plot = page.locator(".st-key-residuals .rs-plot")
    plot.locator("svg").wait_for()
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    plot.locator("svg").hover(position=plot.evaluate(place))
    assert plot.locator(".tip").inner_text().startswith("code: ")
    assert context.failures == []


def test_deleted_run_comes_back_with_undo(address, page):
    page.goto(f"{address}/runs")
    page.locator("[data-testid=stDataFrame] canvas").first.wait_for()
    page.locator("[data-testid=stDataFrame]").click(position={"x": 17, "y": 48})
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Move to the trash").click()
    page.get_by_text("Deleted run d4e5b678").wait_for()
    page.get_by_text(" in the trash, below").wait_for()
    page.get_by_role("button", name="Undo").click()
    page.locator("[data-testid=stDataFrame] canvas").first.wait_for()


def test_runs_table_fits_1280_pixels_also_with_a_baseline_and_says_where_it_does_not(address, page):
    page.goto(f"{address}/runs?baseline=d4e5b678")
    page.get_by_text("Baseline:").wait_for()
    scroller = page.locator("[data-testid=stDataFrame] .dvn-scroller")
    scroller.wait_for()
    page.wait_for_timeout(500)
    wide, seen = scroller.evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert wide <= seen + 2
    told = page.get_by_text("Columns without room in this window stand to the right")
    assert not told.is_visible()
    page.set_viewport_size({"width": 1024, "height": 900})
    told.wait_for()


def test_a_window_of_1024_pixels_shows_every_column_of_a_heads_tables(address, page, record):
    page.set_viewport_size({"width": 1024, "height": 900})
    run = record.run.run_id[:8]
    for path in ("map", "head"):
        page.goto(f"{address}/{path}?run={run}&layer=5&head=2")
        page.locator("[class*=candidates] .rs-table th").get_by_text("g ≥ λ").wait_for()
        page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
        tables = page.locator(".rs-table")
        assert tables.count() >= 2
        for table in tables.all():
            wide, seen = table.evaluate("e => [e.scrollWidth, e.clientWidth]")
            assert wide <= seen, table.inner_text()[:60]
    # Beside or below another, but never over it.
    texts = page.locator("[class*=candidates] .rs-table td.l").evaluate_all(
        "cells => cells.map((cell) => cell.scrollWidth - cell.clientWidth)"
    )
    assert max(texts) <= 0


def test_runs_page_stays_when_one_comes_back_from_the_map(address, page):
    page.goto(f"{address}/runs")
    page.locator("[data-testid=stDataFrame]").click(position={"x": 90, "y": 48})
    page.wait_for_url("**/map?run=*")
    page.get_by_text("Candidates of layer").wait_for()
    page.locator("[data-testid=stSidebarNavLink]").filter(has_text="Runs").click()
    page.locator("[data-testid=stDataFrame] canvas").first.wait_for()
    page.wait_for_timeout(1500)
    assert "/map" not in page.url


def test_a_deep_link_into_an_older_table_of_results_opens_it_and_leads_to_the_main_one(
    address, context, page
):
    asked = "set=main-ruler%402&length=32768&method=xattention%3D0.9"
    page.goto(f"{address}/results?{asked}")
    page.get_by_text("Methods at 32,768 tokens").wait_for()
    assert page.get_by_text("source: data/results/evaluations_main.json").count()
    assert page.get_by_text("There is no").count() == 0 and asked in page.url
    page.get_by_role("button", name="Open the main table").click()
    page.wait_for_url(re.compile(r"/results\?set=kept-ruler$"))
    page.get_by_text("Methods at 65,536 tokens").wait_for()
    page.reload()
    page.get_by_text("Methods at 65,536 tokens").wait_for()
    assert page.get_by_text("source: data/results/evaluations_kept.json").count()
    assert page.get_by_text("Shipped earlier").count() == 0 and context.failures == []


def test_page_talks_to_the_loopback_interface_only(address, context, page, record):
    page.goto(f"{address}/map?run={record.run.run_id[:8]}")
    page.get_by_text("Candidates of layer").wait_for()
    assert context.hosts() == {"127.0.0.1"}


def test_a_link_to_home_leads_home(address, page):
    """Streamlit serves its default page at "/" alone."""
    page.goto(f"{address}/home")
    page.get_by_role("button", name="Tour a sample").or_(
        page.get_by_role("link", name="Tour a sample")
    ).wait_for()
    assert page.get_by_text("Page not found").count() == 0
    page.goto(f"{address}/nowhere")
    page.get_by_text("Page not found").wait_for()


def test_first_visit_of_a_fresh_server_may_be_a_deep_link(serve, page, record, tmp_path):
    """A folder app/pages would make Streamlit answer the very first one with "Page not found"."""
    bundle.write_bundle(record, tmp_path / "spool")
    with serve.dashboard(tmp_path) as fresh:
        page.goto(f"{fresh}/map?run={record.run.run_id[:8]}&layer=3&head=4")
        page.get_by_text("Layer 3, head 4: why").wait_for(timeout=30_000)
        assert page.get_by_text("Page not found").count() == 0


def test_dragging_over_a_probe_fetches_that_part_at_full_resolution(address, context, page, record):
    page.goto(f"{address}/map?run={record.run.run_id[:8]}&layer=2&head=3&segment=1")
    legend = page.locator(".st-key-card-probe .rs-legend")
    legend.get_by_text("max over 5 rows").wait_for()
    # The picture stays where it is while the rest of the page is drawn.
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    plot = page.locator(".st-key-probe .rs-plot image")
    plot.scroll_into_view_if_needed()
    page.wait_for_timeout(1000)
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.7, steps=8)
    page.mouse.up()
    legend.get_by_text("max over one row").wait_for()
    page.wait_for_url("**zoom=**")
    shown = page.locator(".st-key-card-probe").get_by_text("Probe, rows").inner_text()
    page.reload()
    page.locator(".st-key-card-probe").get_by_text("Probe, rows").wait_for()
    assert page.locator(".st-key-card-probe").get_by_text("Probe, rows").inner_text() == shown
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    page.wait_for_timeout(1500)
    plot.scroll_into_view_if_needed()
    page.wait_for_timeout(1000)
    box = plot.bounding_box()
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    legend.get_by_text("max over 5 rows").wait_for()
    page.wait_for_function("!location.search.includes('zoom')")
    assert context.failures == []


def test_the_hover_over_a_probe_says_which_plan_reads_the_key(address, context, page, record):
    place = """(plot, number) => { const { box, shape: [rows, columns], raw } = plot.cover, at = raw.indexOf(number);
      return [plot.g.x(box[0] + ((at % columns + .5) * (box[1] - box[0])) / columns),
        plot.g.y(box[2] + ((Math.floor(at / columns) + .5) * (box[3] - box[2])) / rows)]; }"""
    page.goto(f"{address}/head?run={record.run.run_id[:8]}&layer=5&head=2&mask=5&against=11")
    plot = page.locator(".st-key-probe .rs-plot")
    plot.locator("image").first.wait_for()
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
    tip, seen = plot.locator(".tip"), set()
    for number, told in enumerate(("read by neither", "", "only V · 128 columns", "only B · 16 blocks")):
        if not plot.evaluate("(plot, number) => plot.cover.raw.includes(number)", number):
            continue
        plot.locator("svg").hover(position=dict(zip("xy", plot.evaluate(place, number), strict=True)))
        if told:
            expect(tip).to_contain_text(told)
        else:
            expect(tip).not_to_contain_text("read by neither")  # the tip before
        lines = tip.inner_text().splitlines()
        assert told in lines[-1] and len(lines) == (4 if told else 3)
        seen.add(told)
    assert "read by neither" in seen and any(told.startswith("only ") for told in seen), seen
    assert context.failures == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chips_and_the_main_button_can_be_read_in_both_themes(address, browser, scheme):
    context = browser.new_context(color_scheme=scheme)
    context.set_default_timeout(60_000)
    page = context.new_page()
    for path, chosen in (
        ("/calibration", "[data-tag] span"),
        ("/new?source=Sample", ".st-key-submit button:not(:disabled) p"),
    ):
        page.goto(address + path)
        page.locator(chosen).first.wait_for()
        ink, ground = page.evaluate(COLORS, chosen)
        assert design.contrast(ink, ground) >= 4.5, f"{ink} on {ground}"
    context.close()
