"""Real jobs by one real worker: a hostile prompt's way from upload to a head's reason, a sweep, several tabs that
watch, cancel and repeat a job, and a model of one's own, profiled, calibrated and analysed with.

The prompt is hostile (HTML, a Markdown image, a script, right-to-left and zero-width characters) and so is its file
name: it must be analysed like any other, fetch nothing and write nowhere else. The own model is a tiny random Llama of
one token per byte; its calibration has three prompts, which is too few for a claim and enough for the whole way.
"""

from __future__ import annotations

import re
from contextlib import closing
from urllib.parse import parse_qs, urlsplit

import pytest

from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from tests.e2e import serve
from tests.e2e.serve import click_cell, settled
from tests.engine import shipped_profile, tiny_model

CANARY = "http://127.0.0.1:18999/canary"
HOSTILE = (
    f"The ledger <img src='{CANARY}-img.png'> ![vessel]({CANARY}-md.png) <script>window.pwned = 1</script> "
    f"\u202eSLESSEV\u202c ze\u200bro\ufeff [link](javascript:window.pwned=1) <iframe src='{CANARY}-frame'></iframe> "
    "$$\\frac{1}{2}$$ :material/home: `code` lists tonnage and master, pier by pier, until the evening bell.\n"
)
# A name is a label: the last part of a path, and text wherever it is shown.
NAME = "<img src=canary-name onerror=window.pwned=1> ![](canary-md) :material\u2215home: x.txt"
SWEEP = "source=Sample&sample=prose.txt&take=first&take_tokens=1024&break_even=0&segment=1024&dense=true&audit=none"
TEXT = "The harbour master writes a ledger of vessels, pier by pier, until the evening bell. "
LEDGERS = [f"Ledger {place}: the harbour master counts vessels, pier by pier. " * 14 for place in range(4)]
JOB_MS = 180_000  # of a job on a machine that others use, too

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with a tiny model and a folder that is broken in its models folder."""
    home = tmp_path_factory.mktemp("jobs") / "home"
    tiny_model.save(home / "models" / "tiny")
    shipped_profile.keep(home)
    (home / "models" / "broken").mkdir()
    return home


@pytest.fixture(scope="module")
def address(home):
    with serve.worker(home), serve.dashboard(home) as running:
        yield running


def upload(page, address: str, name: str, text: str) -> None:
    page.goto(f"{address}/new?break_even=1024&segment=1024&audit=none")
    chosen = {"name": name, "mimeType": "text/plain", "buffer": text.encode()}
    page.locator("input[type=file]").set_input_files(chosen)


def analyse(page) -> str:
    """Press Analyse; the address of the job."""
    page.get_by_role("button", name="Analyse", exact=True).click()
    page.wait_for_url("**/?job=*")
    return page.url


def test_hostile_prompt_from_upload_to_the_reason_of_a_head(address, context, home):
    page = context.new_page()
    upload(page, address, f"../../etc/{NAME}", HOSTILE * 6)
    page.get_by_text("What it will take").wait_for()
    job = analyse(page)
    page.get_by_text("x.txt").first.wait_for()
    assert "etc" not in page.locator("[data-testid=stMainBlockContainer]").inner_text()

    # Nobody looks; another tab finds the job by its link.
    page.close()
    page = context.new_page()
    page.goto(job)
    page.get_by_role("button", name="Open the routing map").click(timeout=JOB_MS)
    page.wait_for_url("**/map?run=*")
    page.get_by_role("radio", name="Candidates").click()

    click_cell(page, 3, 4)
    page.get_by_text("Layer 3, head 4: why").wait_for()
    reason = page.locator(".st-key-card-reason .rs-sub").first.inner_text()
    page.locator(".st-key-card-candidates tr.pick").wait_for()
    page.wait_for_url(re.compile(r"/map\?.*layer=3&head=4"))
    link = page.url
    page.reload()
    page.locator(".st-key-card-candidates tr.pick").wait_for()
    assert reason and page.locator(".st-key-card-reason .rs-sub").first.inner_text() == reason
    assert page.url == link
    (run,) = (home / "bundles").iterdir()
    for path in ("", f"new?from={run.name[:8]}", f"text?run={run.name[:8]}", f"trust?run={run.name[:8]}"):
        page.goto(f"{address}/{path}")
        page.locator(".rs-title").first.wait_for()
        settled(page, 700)
        assert page.locator("[data-testid=stException], .rs-state.bad").count() == 0, path
        assert page.evaluate("window.pwned") is None, path

    assert not [url for url in context.seen if "canary" in url]
    assert context.hosts() == {"127.0.0.1"}
    assert context.failures == []
    assert not any("tonnage" in url for url in context.seen), "no prompt text in an address"
    assert [path.name for path in home.parent.iterdir()] == ["home"]
    assert not list(home.rglob("*x.txt"))
    folders = (home, home / "prompts", home / "spool", serve.REPOSITORY)
    assert not any(list((folder / "../../etc").glob("*x.txt")) for folder in folders)
    # The control: shown as HTML, the same text does fetch, and this test sees it.
    page.set_content(HOSTILE)
    page.wait_for_function("window.pwned === 1")
    assert [url for url in context.seen if "canary" in url]
    made = [home / "jobs.sqlite3", *(home / "prompts").iterdir(), run, *run.iterdir()]
    assert not [path for path in made if path.stat().st_mode & 0o077], "prompts are for their user only"
    logs = [home / "dashboard.log", home / "worker.log", *(home / "logs").iterdir()]
    assert not any("tonnage" in log.read_text() for log in logs), "no prompt text in a log"


def test_a_line_of_a_megabyte_is_counted_and_refused_in_place(address, context, page):
    upload(page, address, "line.txt", HOSTILE.replace("\n", " ") * 3_000)
    page.get_by_text("the model reads at most 131,072").wait_for()
    assert page.get_by_role("button", name="Analyse").is_disabled()
    assert not [url for url in context.seen if "canary" in url]
    assert context.failures == []


def test_prices_are_tried_and_the_cheapest_is_named(address, context, page):
    page.goto(f"{address}/new?{SWEEP}")
    page.get_by_text("estimated time").wait_for()
    page.get_by_role("radio", name="price", exact=True).click()
    page.get_by_text("no values are given").wait_for()
    prices = page.get_by_label("Prices")
    prices.fill("0.01, cheap, 1")
    prices.press("Enter")
    page.get_by_text("price 'cheap' is no number").wait_for()
    page.get_by_role("button", name="Leave it out").click()
    page.get_by_text("estimated time, 2 settings").wait_for()
    assert parse_qs(urlsplit(page.url).query)["prices"] == ["0.01, 1"], "a link repeats the sweep"

    page.get_by_role("button", name="Analyse with 2 settings").click()
    page.wait_for_url("**/compare?sweep=*")
    page.locator(".st-key-card-progress").get_by_text(re.compile("[0-2] of 2 done")).wait_for()
    page.locator(".st-key-fronts .rs-plot svg").wait_for(timeout=JOB_MS)
    page.locator(".st-key-card-progress").wait_for(state="detached", timeout=JOB_MS)
    settled(page)
    sides = page.locator(".st-key-card-sides").inner_text()
    assert all(f"price {price}" in sides for price in ("0.01", "1"))

    chart = page.locator(".st-key-fronts .rs-plot")
    chart.focus()
    read = []
    for _ in range(4):
        page.keyboard.press("ArrowRight")
        read.append((chart.locator(".rs-said").text_content() or "")[0])
    assert sorted(read[:2]) == sorted(read[2:]) == list("AB"), "one panel after the other"

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
    page.locator(".st-key-card-cheapest").get_by_text("Open its routing map").click()
    page.wait_for_url("**/map?run=*")
    page.get_by_text("One setting of a sweep: see the others").click()
    page.wait_for_url("**/compare?sweep=*")
    assert context.failures == [] and context.hosts() == {"127.0.0.1"}


def test_two_tabs_watch_one_job_and_a_third_the_job_behind_it(address, context, home):
    with closing(JobQueue(home)) as queue:
        request = RunRequest(label="ledger.txt", segment=1024, break_even=256)
        running, waiting = queue.submit(request, TEXT * 350), queue.submit(request, TEXT)
        watchers = [context.new_page(), context.new_page()]
        for page in watchers:
            page.goto(f"{address}/job?job={running}")  # as older links name it
        behind = context.new_page()
        behind.goto(f"{address}/?job={waiting}")
        behind.locator(".st-key-card-job").get_by_text("waiting, next in line").wait_for()
        for page in watchers:
            page.locator(".st-key-card-job").get_by_text("route and execute: layer").wait_for(timeout=JOB_MS)
        stored = len(list((home / "bundles").iterdir()))
        behind.locator(".st-key-cancel button:visible").click()
        behind.get_by_text("Nothing was stored").wait_for()
        assert queue.job(running).state == "running"
        watchers[0].locator(".st-key-cancel button:visible").click()
        for page in watchers:
            page.get_by_text("Nothing was stored").wait_for(timeout=JOB_MS)
        assert [queue.job(job).state for job in (running, waiting)] == ["cancelled"] * 2
        watchers[1].locator(".st-key-retry button:visible").click()
        watchers[1].wait_for_url(lambda url: "job=" in url and running not in url)
        watchers[1].locator(".st-key-cancel button:visible").click()
        watchers[1].get_by_text("Nothing was stored").wait_for(timeout=JOB_MS)
        assert watchers[0].url.endswith(running), "the other tab stays where it is"
        assert len(list((home / "bundles").iterdir())) == stored, "a cancelled job leaves no run"
    assert context.failures == []


def number(page, label, value, shows):
    """Enter a number and wait for what it changes: a field that is typed in during a rerun may lose it."""
    settled(page)
    field = page.get_by_label(label, exact=True)
    field.fill(str(value))
    field.press("Enter")
    page.get_by_text(shows).wait_for()


def state(page, check):
    """What the list says about one thing."""
    return page.locator(f".st-key-check-{check}").inner_text()


def test_use_my_own_model_folder(address, page, context):
    page.goto(f"{address}/models?named=broken")
    page.get_by_text("has no config.json").first.wait_for()
    assert page.get_by_role("button", name="Analyse with this model").count() == 0

    page.goto(f"{address}/models?named=tiny")
    page.get_by_text("Reads up to 1,000 tokens").wait_for()
    assert "None for head size 16" in state(page, "latency-profile")
    assert "None for these weights" in state(page, "calibrations")

    page.get_by_role("button", name="Measure a quick profile").click()
    page.wait_for_url("**/?job=*")
    page.get_by_text("measure this machine").first.wait_for()
    page.get_by_role("link", name="Back to the model").click(timeout=JOB_MS)
    page.wait_for_url("**/models?named=tiny")
    page.locator(".st-key-check-latency-profile .green").wait_for()

    page.get_by_text("Calibrate: kept mass").click()
    number(page, "Shortest prompt, tokens", 520, "84 prompts of 520 to 1,000 tokens")
    number(page, "Longest prompt, tokens", 600, "84 prompts of 520 to 600 tokens")
    number(page, "Prompts to fit on", 1, "61 prompts of 520")
    number(page, "Prompts to take δ from", 2, "3 prompts of 520")
    files = [
        {"name": f"{place}.txt", "mimeType": "text/plain", "buffer": text.encode()}
        for place, text in enumerate(LEDGERS)
    ]
    page.get_by_role("region", name="Texts").locator("input").set_input_files(files)
    # The list of files is the browser's; this line says that the page has them.
    page.get_by_text("Name the domain of these texts to begin").wait_for()
    page.get_by_label("Domain", exact=True).fill("harbour")
    page.get_by_label("Domain", exact=True).press("Enter")
    page.get_by_role("button", name="Calibrate", exact=True).click()
    page.wait_for_url("**/?job=*")
    page.get_by_role("link", name="Open the calibration").wait_for(timeout=JOB_MS)
    page.get_by_role("link", name="Back to the model").click()
    page.locator(".st-key-check-calibrations .green").wait_for()
    assert "harbour (520 to 600 tokens, made today)" in state(page, "calibrations")

    page.get_by_role("button", name="Analyse with this model").click()
    page.wait_for_url("**/new?with_model=tiny")
    page.get_by_text("What it will take").wait_for()
    assert page.get_by_text("Prepare this model").count() == 0, "nothing is missing"
    page.goto(f"{address}/new?with_model=tiny&calibration=harbour&break_even=0&source=Paste")
    page.get_by_text("No usable prompt yet").wait_for()
    page.get_by_placeholder("Paste the prompt here").fill(LEDGERS[0][:560])
    page.get_by_placeholder("Paste the prompt here").dispatch_event("paste")
    page.get_by_text("the model reads up to").wait_for()
    analyse(page)
    page.get_by_role("button", name="Open the routing map").click(timeout=JOB_MS)
    page.wait_for_url("**/map?run=*")
    page.get_by_text("harbour").first.wait_for()
    assert context.failures == []
    assert context.hosts() == {"127.0.0.1"}
