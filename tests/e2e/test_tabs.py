"""Several tabs of one browser: on two runs, on one job, on the jobs around it. None disturbs another."""

from __future__ import annotations

import pytest

from routesparse.app.ui.reason_words import shown
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import bundle

TEXT = "The harbour master writes a ledger of vessels, pier by pier, until the evening bell. "

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def records(factory):
    """Two runs of different shape."""
    return (
        factory.make_record(hardness=0.9, name="first.txt"),
        factory.make_record("c0de17aa90e1f003", name="second.txt", layers=4, heads=4, hardness=0.2, seed=5),
    )


@pytest.fixture(scope="module")
def home(records, tmp_path_factory):
    home = tmp_path_factory.mktemp("tabs")
    for record in records:
        bundle.write_bundle(record, home / "spool")
    return home


@pytest.fixture(scope="module")
def address(serve, home):
    with serve.worker(home), serve.dashboard(home) as running:
        yield running


@pytest.fixture
def queue(home, address):
    queue = JobQueue(home)
    yield queue
    queue.close()


def reason_of(record, layer: int, head: int) -> str:
    """The stored reason in the pages' words."""
    return shown(next(c.reason for c in record.choices if (c.layer, c.head, c.segment) == (layer, head, 0)))


def shows(page, record, layer: int, head: int) -> None:
    page.get_by_text(f"Layer {layer}, head {head}: why").wait_for()
    page.get_by_text(reason_of(record, layer, head)).first.wait_for()


def test_two_tabs_on_two_runs_go_their_own_ways(address, context, records, click_cell):
    first, second = context.new_page(), context.new_page()
    first.goto(f"{address}/map?run={records[0].run.run_id[:8]}&layer=3&head=4")
    second.goto(f"{address}/map?run={records[1].run.run_id[:8]}&layer=1&head=2")
    shows(first, records[0], 3, 4)
    shows(second, records[1], 1, 2)
    click_cell(second, 3, 0)
    shows(second, records[1], 3, 0)
    shows(first, records[0], 3, 4)
    click_cell(first, 6, 1)
    shows(first, records[0], 6, 1)
    shows(second, records[1], 3, 0)
    for page, record, view in ((first, records[0], "layer=6&head=1"), (second, records[1], "layer=3&head=0")):
        page.wait_for_url(f"**/map?run={record.run.run_id[:8]}&{view}*")
    assert context.failures == []


def test_back_leads_from_the_head_to_the_map_as_it_was(address, context, records, click_cell):
    page = context.new_page()
    page.goto(f"{address}/map?run={records[0].run.run_id[:8]}&layer=5&head=5&segment=1&metric=lower_mass")
    page.get_by_text("Layer 5, head 5: why").wait_for()
    click_cell(page, 2, 6)
    page.get_by_text("Layer 2, head 6: why").wait_for()
    page.wait_for_url("**layer=2&head=6**")
    left = page.url
    page.get_by_text("Open this head").click()
    page.get_by_text("Certificates and the truth").wait_for()
    page.go_back()
    page.get_by_text("Layer 2, head 6: why").wait_for()
    assert page.url == left
    assert page.get_by_role("radio", name="Certified").is_checked()


def test_two_tabs_watch_one_job_and_a_third_the_job_behind_it(address, context, queue):
    request = RunRequest(label="ledger.txt", segment=1024, break_even=256)
    running, waiting = queue.submit(request, TEXT * 500), queue.submit(request, TEXT)
    watchers = [context.new_page(), context.new_page()]
    for page in watchers:
        page.goto(f"{address}/job?job={running}")
    behind = context.new_page()
    behind.goto(f"{address}/job?job={waiting}")
    behind.get_by_text("waiting, next in line").wait_for()
    for page in watchers:
        page.get_by_text("route and execute: layer").wait_for(timeout=90_000)
    behind.get_by_role("button", name="Cancel").click()
    behind.get_by_text("Nothing was stored").wait_for()
    assert queue.job(running).state == "running"

    watchers[0].get_by_role("button", name="Cancel").click()
    for page in watchers:
        page.get_by_text("Nothing was stored").wait_for(timeout=90_000)
    assert [queue.job(job).state for job in (running, waiting)] == ["cancelled"] * 2

    watchers[1].get_by_role("button", name="Try again").click()
    watchers[1].wait_for_url(lambda url: "job=" in url and running not in url)
    watchers[1].get_by_role("button", name="Cancel").click()
    watchers[1].get_by_text("Nothing was stored").wait_for(timeout=90_000)
    assert watchers[0].url.endswith(running), "the other tab stays where it is"
    assert context.failures == []
