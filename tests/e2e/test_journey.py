"""A prompt's way through the dashboard with a real worker: upload -> job -> map -> head -> the reloaded link.

The prompt is hostile (HTML, a Markdown image, a script, right-to-left and zero-width characters) and so is its file
name: it must be analysed like any other, fetch nothing and write nowhere else.
"""

from __future__ import annotations

import re

import pytest

CANARY = "http://127.0.0.1:18999/canary"
HOSTILE = (
    f"The ledger <img src='{CANARY}-img.png'> ![vessel]({CANARY}-md.png) <script>window.pwned = 1</script> "
    f"\u202eSLESSEV\u202c ze\u200bro\ufeff [link](javascript:window.pwned=1) <iframe src='{CANARY}-frame'></iframe> "
    "$$\\frac{1}{2}$$ :material/home: `code` lists tonnage and master, pier by pier, until the evening bell.\n"
)
# A name is a label: the last part of a path, and text wherever it is shown.
NAME = "<img src=canary-name onerror=window.pwned=1> ![](canary-md) :material\u2215home: x.txt"
SETTINGS = "break_even=1024&segment=1024"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("journey") / "home"


@pytest.fixture(scope="module")
def address(serve, home):
    home.mkdir()
    with serve.worker(home), serve.dashboard(home) as running:
        yield running


def upload(page, address: str, name: str, text: str) -> None:
    page.goto(f"{address}/new?{SETTINGS}")
    chosen = {"name": name, "mimeType": "text/plain", "buffer": text.encode()}
    page.locator("input[type=file]").set_input_files(chosen)


def submit(page) -> str:
    """Press Analyse; the address of the job."""
    page.get_by_role("button", name="Analyse").click()
    page.wait_for_url("**/?job=*")
    return page.url


def test_hostile_prompt_from_upload_to_the_reason_of_a_head(serve, address, context, home, click_cell):
    page = context.new_page()
    upload(page, address, f"../../etc/{NAME}", HOSTILE * 16)
    page.get_by_text("What it will take").wait_for()
    job = submit(page)
    page.get_by_text("x.txt").first.wait_for()
    assert "etc" not in page.locator("[data-testid=stMainBlockContainer]").inner_text()

    # Nobody looks; another tab finds the job by its link.
    page.close()
    page = context.new_page()
    page.goto(job)
    page.get_by_role("button", name="Open the routing map").click(timeout=120_000)
    page.wait_for_url("**/map?run=*")
    page.get_by_text("Candidates of layer").wait_for()

    click_cell(page, 3, 4)
    page.get_by_text("Layer 3, head 4: why").wait_for()
    page.get_by_text("Certificates and the truth").wait_for()
    reason = page.locator(".st-key-card-reason .rs-sub").first.inner_text()
    page.locator(".st-key-card-candidates tr.pick").wait_for()
    page.wait_for_url(re.compile(r"/map\?.*layer=3&head=4"))
    link = page.url
    page.reload()
    page.locator(".st-key-card-candidates tr.pick").wait_for()
    assert reason and page.locator(".st-key-card-reason .rs-sub").first.inner_text() == reason
    assert page.url == link

    assert not [url for url in context.seen if "canary" in url]
    assert context.hosts() == {"127.0.0.1"}
    assert page.evaluate("window.pwned") is None
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
    (run,) = (home / "bundles").iterdir()
    made = [home / "jobs.sqlite3", *(home / "prompts").iterdir(), run, *run.iterdir()]
    assert not [path for path in made if path.stat().st_mode & 0o077], "prompts are for their user only"
    logs = [home / "dashboard.log", home / "worker.log", *(home / "logs").iterdir()]
    assert not any("tonnage" in log.read_text() for log in logs), "no prompt text in a log"


@pytest.mark.parametrize("path", ["", "new?from=RUN", "map?run=RUN", "text?run=RUN", "trust?run=RUN"])
def test_hostile_run_is_text_on_every_page(address, context, home, path):
    """The run of the test before, by its link."""
    (run,) = (home / "bundles").iterdir()
    page = context.new_page()
    page.goto(f"{address}/{path.replace('RUN', run.name[:8])}")
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    page.locator(".rs-title").first.wait_for()
    page.wait_for_timeout(1000)
    assert page.locator("[data-testid=stException], .rs-state.bad").count() == 0
    assert page.evaluate("window.pwned") is None
    assert not [url for url in context.seen if "canary" in url]
    assert context.hosts() == {"127.0.0.1"}
    assert context.failures == []


def test_running_job_is_cancelled_and_leaves_no_run(address, context, home):
    page = context.new_page()
    upload(page, address, "long.txt", HOSTILE * 90)
    submit(page)
    page.get_by_text("route and execute: layer").wait_for(timeout=90_000)
    page.locator(".st-key-cancel button:visible").click()
    page.get_by_text("Nothing was stored").wait_for(timeout=90_000)
    assert len(list((home / "bundles").iterdir())) == 1, "the first test's run only"


def test_a_line_of_a_megabyte_is_counted_and_refused_in_place(address, context):
    page = context.new_page()
    upload(page, address, "line.txt", HOSTILE.replace("\n", " ") * 3_000)
    page.get_by_text("the model reads at most 131,072").wait_for()
    assert page.get_by_role("button", name="Analyse").is_disabled()
    assert not [url for url in context.seen if "canary" in url]
    assert context.failures == []
