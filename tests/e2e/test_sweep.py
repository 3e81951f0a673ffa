"""Try three settings: from New run over three real jobs to the named cheapest setting, its map, and the way back."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

SAMPLE = "source=Sample&sample=prose.txt&take=first&take_tokens=2048&break_even=0&segment=1024&dense=true"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def address(serve, tmp_path_factory):
    home = tmp_path_factory.mktemp("sweep")
    with serve.worker(home), serve.dashboard(home) as running:
        yield running


def test_a_stranger_tries_three_prices_and_learns_which_is_the_cheapest(address, context, page):
    page.goto(f"{address}/new?{SAMPLE}")
    page.get_by_text("estimated time").wait_for()
    page.get_by_role("radio", name="price", exact=True).click()
    page.get_by_text("a sweep of 0 settings").wait_for()
    prices = page.get_by_label("Prices")
    prices.fill("0.01, cheap, 0.3, 1")
    prices.press("Enter")
    page.get_by_text("price 'cheap' is no number").wait_for()
    page.get_by_role("button", name="Leave it out").click()
    page.get_by_text("estimated time, 3 settings").wait_for()
    assert parse_qs(urlsplit(page.url).query)["prices"] == ["0.01, 0.3, 1"], "a link repeats the sweep"

    page.get_by_role("button", name="Analyse with 3 settings").click()
    page.wait_for_url("**/sweep?sweep=*")
    link = page.url
    page.goto(f"{address}/job")
    page.get_by_text(re.compile("sweep, [0-3] of 3 done")).wait_for()
    page.get_by_text("Open sweep").click()
    page.wait_for_url("**/sweep?sweep=*")
    assert page.url == link

    picture = page.locator(".st-key-fronts .rs-plot svg")
    picture.wait_for(timeout=150_000)
    rows = page.locator(".st-key-card-settings-table tr")
    page.locator(".st-key-card-progress").wait_for(state="detached", timeout=150_000)
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    rows.nth(3).wait_for()
    assert [text.split("\t")[1] for text in rows.all_inner_texts()[1:]] == [
        "price 0.01",
        "price 0.3",
        "price 1",
    ]
    kept = [float(row.locator("td").nth(3).inner_text().split()[0]) for row in rows.all()[1:]]
    assert kept[0] > kept[-1], "a higher price reads less"

    chart = page.locator(".st-key-fronts .rs-plot")
    chart.focus()
    read = []
    for _ in range(6):
        page.keyboard.press("ArrowRight")
        read.append((chart.locator(".rs-said").text_content() or "")[0])
    assert sorted(read[:3]) == sorted(read[3:]) == list("ABC"), "one panel after the other"

    named = page.locator(".st-key-card-cheapest .rs-plain")
    below = page.get_by_role("spinbutton", name="Accepted KL of the next token")
    below.fill("100")
    below.press("Enter")
    page.get_by_text("The cheapest by area below 100 nats is").wait_for()
    told = named.inner_text()
    # Shares are shown rounded, so that two settings may look alike.
    least = [letter for letter, share in zip("ABC", kept, strict=True) if share == min(kept)]
    assert any(f"{letter}, price" in told for letter in least) and "3 of 3 measured settings" in told
    assert "This is one prompt" in page.locator(".st-key-card-cheapest").inner_text()
    below.fill("0")  # no divergence is less
    below.press("Enter")
    page.get_by_text("No setting keeps the KL of the next token below 0 nats. The closest is").wait_for()
    page.get_by_role("radio", name="cheapest by time").click()
    page.wait_for_url("**by=time**")

    page.reload()
    page.get_by_text("No setting keeps the KL of the next token below 0 nats. The closest is").wait_for()
    page.locator(".st-key-card-cheapest").get_by_text("Open its routing map").click()
    page.wait_for_url("**/map?run=*")
    page.get_by_text("One setting of a sweep: see the others").click()
    page.wait_for_url("**/sweep?sweep=*")
    page.locator(".st-key-fronts .rs-plot svg").wait_for()

    with page.expect_download() as svg:
        page.locator(".st-key-card-front").get_by_role("button", name="SVG").click()
    assert svg.value.suggested_filename.endswith(".svg")
    with page.expect_download() as rows_csv:
        page.locator(".st-key-card-front").get_by_role("button", name="CSV").click()
    header = rows_csv.value.path().read_text().splitlines()[0]
    assert "kl_nats" in header and "front_area" in header
    assert context.failures == [] and context.hosts() == {"127.0.0.1"}
