"""Real jobs by a real worker: three settings tried as a sweep, and several tabs that watch, cancel and repeat a job."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest

SAMPLE = "source=Sample&sample=prose.txt&take=first&take_tokens=2048&break_even=0&segment=1024&dense=true"
TEXT = "The harbour master writes a ledger of vessels, pier by pier, until the evening bell. "

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def address(serve, home):
    with serve.worker(home), serve.dashboard(home) as running:
        yield running


def test_three_prices_are_tried_and_the_cheapest_is_named(address, context, page):
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
    page.wait_for_url("**/compare?sweep=*")
    page.locator(".st-key-card-progress").get_by_text(re.compile("[0-3] of 3 done")).wait_for()
    page.locator(".st-key-fronts .rs-plot svg").wait_for(timeout=150_000)
    page.locator(".st-key-card-progress").wait_for(state="detached", timeout=150_000)
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    sides = page.locator(".st-key-card-sides").inner_text()
    assert all(f"price {price}" in sides for price in ("0.01", "0.3", "1"))

    chart = page.locator(".st-key-fronts .rs-plot")
    chart.focus()
    read = []
    for _ in range(6):
        page.keyboard.press("ArrowRight")
        read.append((chart.locator(".rs-said").text_content() or "")[0])
    assert sorted(read[:3]) == sorted(read[3:]) == list("ABC"), "one panel after the other"

    below = page.get_by_role("spinbutton", name="Accepted KL of the next token")
    below.fill("100")
    below.press("Enter")
    page.get_by_text("The cheapest by area below 100 nats is").wait_for()
    below.fill("0")  # no divergence is less
    below.press("Enter")
    told = "No setting keeps the KL of the next token below 0 nats. The closest is"
    page.get_by_text(told).wait_for()
    page.reload()
    page.get_by_text(told).wait_for()
    with page.expect_download() as saved:
        page.locator(".st-key-card-front").get_by_role("button", name="CSV").click()
    header = saved.value.path().read_text().splitlines()[0]
    assert "kl_nats" in header and "front_area" in header
    page.locator(".st-key-card-cheapest").get_by_text("Open its routing map").click()
    page.wait_for_url("**/map?run=*")
    page.get_by_text("One setting of a sweep: see the others").click()
    page.wait_for_url("**/compare?sweep=*")
    page.locator(".st-key-fronts .rs-plot svg").wait_for()
    assert context.failures == [] and context.hosts() == {"127.0.0.1"}


def test_two_tabs_watch_one_job_and_a_third_the_job_behind_it(address, context, home):
    queue = JobQueue(home)
    request = RunRequest(label="ledger.txt", segment=1024, break_even=256)
    running, waiting = queue.submit(request, TEXT * 500), queue.submit(request, TEXT)
    watchers = [context.new_page(), context.new_page()]
    for page in watchers:
        page.goto(f"{address}/job?job={running}")  # as older links name it
    behind = context.new_page()
    behind.goto(f"{address}/?job={waiting}")
    behind.locator(".st-key-card-job").get_by_text("waiting, next in line").wait_for()
    for page in watchers:
        page.locator(".st-key-card-job").get_by_text("route and execute: layer").wait_for(timeout=90_000)
    behind.locator(".st-key-cancel button:visible").click()
    behind.get_by_text("Nothing was stored").wait_for()
    assert queue.job(running).state == "running"
    watchers[0].locator(".st-key-cancel button:visible").click()
    for page in watchers:
        page.get_by_text("Nothing was stored").wait_for(timeout=90_000)
    assert [queue.job(job).state for job in (running, waiting)] == ["cancelled"] * 2
    watchers[1].locator(".st-key-retry button:visible").click()
    watchers[1].wait_for_url(lambda url: "job=" in url and running not in url)
    watchers[1].locator(".st-key-cancel button:visible").click()
    watchers[1].get_by_text("Nothing was stored").wait_for(timeout=90_000)
    assert watchers[0].url.endswith(running), "the other tab stays where it is"
    assert context.failures == []
    queue.close()
