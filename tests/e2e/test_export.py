"""Send it to a colleague: ZIP and report from the menu Export, opened without a server; the link; saved figures."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from routesparse.engine.rows import PromptRow
from routesparse.engine.verdict import of_record
from tests.e2e.serve import settled

pytestmark = pytest.mark.timeout(240)
HOSTILE = '<img src="http://127.0.0.1:9/x" onerror="document.title=1">\u2028\u202e.txt'
# No block of 64 tokens is without it.
WORDS = '<script>document.title=2</script><img src="http://127.0.0.1:9/y"></td></div>\u202e ' * 2_000


@pytest.fixture(scope="module")
def record(factory):
    made = factory.make_record("e4b07e4b07e4b07a", hardness=0.9)
    starts = np.linspace(0, len(WORDS), made.run.tokens + 1).astype("<i4")
    prompt = PromptRow(made.run.run_id, WORDS, starts[::64].tobytes(), starts.tobytes())
    return replace(made, run=replace(made.run, prompt_name=HOSTILE), prompt=prompt)


@pytest.fixture(scope="module")
def address(site, record):
    return site(record)


@pytest.fixture
def menu(address, page, record):
    """The page Routing map with the menu Export open."""
    page.goto(f"{address}/map?run={record.run.run_id[:8]}&layer=3&head=4&metric=lower_mass&segment=1")
    page.get_by_text("Layer 3, head 4: why").wait_for()
    page.get_by_role("button", name="Export").click()
    page.get_by_role("button", name="Copy link").wait_for()
    return page


def saved(page, kind: str, target: Path) -> Path:
    """Make a file, save it, and put it where it belongs under its own name."""
    page.get_by_role("button", name=f"Make {kind}").click()
    button = page.get_by_role("button", name="Save,")
    button.wait_for()
    with page.expect_download() as waiting:
        button.click()
    file = target / waiting.value.suggested_filename
    waiting.value.save_as(file)
    return file


def test_the_zip_holds_the_run_and_its_text_only_where_it_is_ticked(menu, record, tmp_path):
    file = saved(menu, "ZIP", tmp_path)
    names = {Path(name).name for name in zipfile.ZipFile(file).namelist()}
    assert (
        file.name == f"{record.run.run_id}.zip" and {"load.py", "DATA_DICTIONARY.md", "run.parquet"} <= names
    )
    assert "prompt.parquet" not in names
    menu.get_by_text("Include the prompt’s text").click()
    menu.get_by_role("button", name="Save,").wait_for(state="detached")  # what was made has no text in it
    file = saved(menu, "ZIP", tmp_path)
    assert "prompt.parquet" in {Path(name).name for name in zipfile.ZipFile(file).namelist()}


def test_the_report_opens_from_the_disk_without_a_network(browser, menu, record, tmp_path):
    menu.get_by_text("Include the prompt’s text").click()
    settled(menu)
    file = saved(menu, "report", tmp_path)
    size = {"width": 1024, "height": 800}
    elsewhere = browser.new_context(offline=True, color_scheme="light", viewport=size)
    seen, told = [], []
    elsewhere.on("request", lambda request: seen.append(request.url))
    elsewhere.on("weberror", lambda error: told.append(str(error.error)))
    report = elsewhere.new_page()
    report.on("console", lambda message: told.append(message.text))
    report.goto(file.as_uri())
    assert report.title().startswith("RouteSparse report: <img src=") and "⟨U+2028⟩" in report.title()
    assert report.locator("h1").inner_text().startswith("<img src=")
    assert of_record(record).sentence in report.get_by_role("region", name="Verdict").inner_text()
    maps = report.get_by_role("group", name="Routing map of segment")
    assert maps.count() == record.run.segments and maps.first.bounding_box()["height"] > 100
    words = report.locator("body").inner_text()
    assert "<script>document.title=2</script>" in words.replace("\n", "") and "\u202e" not in words
    assert report.locator("script, img, link, iframe").count() == 0
    # The styles are let through by the policy, and nothing is cut off at the side.
    ground = "getComputedStyle(document.body).backgroundColor"
    light = report.evaluate(ground)
    report.emulate_media(color_scheme="dark")
    assert (light != "rgb(27, 31, 35)") and report.evaluate(ground) == "rgb(27, 31, 35)"
    assert report.evaluate("document.documentElement.scrollWidth") <= 1024
    assert (seen, told) == ([file.as_uri()], [])
    elsewhere.close()


def test_a_copied_link_opens_the_same_view(context, menu, address):
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    menu.get_by_role("button", name="Copy link").focus()
    menu.keyboard.press("Enter")
    menu.get_by_text("Copied: the link opens this view.").wait_for()
    link = menu.evaluate("navigator.clipboard.readText()")
    assert link == menu.url and "metric=lower_mass" in link
    other = context.new_page()
    other.goto(link)
    other.get_by_text("Layer 3, head 4: why").wait_for()
    other.get_by_text("Segment 2 of 2").wait_for()
    assert other.get_by_role("radio", name="Certified").is_checked()
