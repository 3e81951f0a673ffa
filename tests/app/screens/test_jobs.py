"""Jobs on the page Runs: waiting, running, done, failed, cancelled, unknown. No GPU, no browser, no worker process."""

from __future__ import annotations

import errno
import time

import pytest

from routesparse.app.screens.runs import jobs as jobs_card
from routesparse.app.shell import jobs_view, setting_words
from routesparse.engine import errors
from routesparse.engine.jobs import log
from routesparse.engine.jobs.database import QueueBusyError
from routesparse.engine.jobs.estimate import Estimate
from routesparse.engine.jobs.failures import classify
from routesparse.engine.jobs.job import STAGES, FailureKind
from routesparse.engine.jobs.queue import MAX_LOSSES, JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import bundle

TEXT = "The harbour master writes a ledger of vessels. " * 40


@pytest.fixture
def submitted(queue):
    """A waiting job's id."""
    return queue.submit(RunRequest(label="<b>ledger.txt"), TEXT)


def test_a_waiting_job_says_its_place_and_whether_a_worker_runs(home, queue, submitted, open_page):
    page = open_page("runs", job=queue.submit(RunRequest(label="second"), TEXT))
    html = page.told
    assert "second: waiting, place 2 in the queue" in html
    assert "No worker is running" in html and "routesparse worker" in html
    assert "<b>ledger" not in html and "&lt;b&gt;ledger.txt" in html, "the other one stands beside it"
    assert not page.button(key="cancel").disabled
    assert html.count(setting_words.asked(RunRequest())) == 2, "in the card and in the list"
    queue.seen("worker-1")
    assert "No worker is running" not in open_page("runs", job=submitted).told


def test_running_job_shows_layer_elapsed_and_when_it_is_far_over_its_estimate(
    home, queue, submitted, open_page, monkeypatch
):
    queue.seen("worker-1")
    claim = queue.claim("worker-1")
    queue.heartbeat(claim, progress=("route", 3, 8))
    html = open_page("runs", job=submitted).told
    assert "route and execute: layer 3 of 8" in html and "elapsed" in html and "no estimate yet" in html
    assert "No worker is running" not in html, "its lease says that one is"
    monkeypatch.setattr(jobs_view, "elapsed_s", lambda job: 240.0)
    monkeypatch.setattr(jobs_card, "of_job", lambda *_: Estimate(1.0, 2.0, 3))
    html = open_page("runs", job=submitted).told
    assert "Far over the estimate: 4 min 00 s so far, where 3 earlier jobs took" in html
    assert "worker last reported" in html and "s ago" in html


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_asked_to_stop(home, queue, open_page, failing):
    for running in (False, True):
        job = queue.submit(RunRequest(), TEXT)
        if running:
            queue.claim("worker-1")
        page = open_page("runs", job=job)
        page.button(key="cancel").click().run()
        assert queue.job(job).cancel_requested if running else queue.job(job).state == "cancelled"
        assert ("cancelling" if running else "Cancelled") in page.told
    page = open_page("runs", job=queue.submit(RunRequest(), TEXT))

    with failing(JobQueue, "cancel", QueueBusyError("the job queue is busy; try again")):
        page.button(key="cancel").click().run()
    assert not page.exception and "the job queue is busy" in page.told


def test_done_job_waits_for_the_store_and_leads_to_its_map(
    home, queue, submitted, open_page, record, factory, went
):
    claim = queue.claim("worker-1")
    queue.finish(claim, claim.run_id)
    assert "the store is taking the run in" in open_page("runs", job=submitted).told
    bundle.write_bundle(factory.rename(record, claim.run_id), home / "spool")
    time.sleep(1.1)  # a look a moment ago is enough
    page = open_page("runs", job=submitted)
    assert 'class="rs-verdict ' in page.told, "whether the run is safe stands beside the way to its map"
    page.button(key="open-job-map").click().run()
    assert went == [("map", {"run": claim.run_id[-8:]})]


def test_failure_says_what_happened_and_can_be_tried_again(home, queue, submitted, open_page, went):
    queue.fail(queue.claim("worker-1"), "out_of_memory", "out of memory; shorten it", "ab12cd34")
    page = open_page("runs", job=submitted)
    html = page.told
    assert "shorten it" in html and "ab12cd34" in html and "failed: Out of memory" in html
    assert [expander.label for expander in page.expander] == ["Ended jobs: 1, 1 failed"]
    assert f"from_job={submitted}" in html and ">Edit settings</a>" in html
    page.button(key="retry").click().run()
    newest = queue.jobs()[0]
    assert newest.state == "queued" and went == [("runs", {"job": newest.id})]


def test_a_lost_worker_is_told_and_after_some_the_likely_reason(home, queue, submitted, open_page):
    queue.claim("worker-1", lease_s=-1)
    html = open_page("runs", job=submitted).told
    assert "waiting, next in line; 1 worker lost, it will be tried again" in html
    for _ in range(MAX_LOSSES):
        queue.claim("worker-1", lease_s=-1)
        queue.requeue_lost()
    page = open_page("runs", job=submitted)
    assert "The worker was lost" in page.told and "too much memory" in page.told
    assert page.button(key="retry")


@pytest.mark.parametrize(
    ("error", "title", "advice"),
    [
        (MemoryError(), "Out of memory", "shorten it"),
        (OSError(errno.ENOSPC, "full"), "The disk is full", "Free space"),
        (errors.ProfileError("measured elsewhere; run profile"), "The latency profile", "run profile"),
        (ValueError(TEXT), "An unexpected error", "ValueError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_failure_says_what_to_do_and_never_the_prompt(
    home, queue, submitted, open_page, error, title, advice
):
    queue.fail(queue.claim("worker-1"), *classify(error, "ab12cd34"), "ab12cd34")
    html = open_page("runs", job=submitted).told
    assert title in html and advice in html and "ab12cd34" in html
    assert "harbour" not in html, "an unexpected error's own message may quote the prompt"


def test_log_of_the_job_is_at_its_end_and_of_no_other(home, queue, submitted, open_page, monkeypatch):
    queue.claim("elsewhere-1-ab")
    monkeypatch.setattr(JobQueue, "beyond_host", True)
    assert "Another host ran it; the log is in" in open_page("runs", job=submitted).told
    writer = log.JobLog(home, "worker-1")
    writer.write("stage", job=submitted, stage="route")
    writer.write("stage", job="another", stage="dense")
    (shown,) = [block.value for block in open_page("runs", job=submitted).code if "stage" in block.value]
    assert "stage route" in shown and "dense" not in shown


def test_text_that_was_not_kept_can_not_be_tried_again(home, queue, open_page):
    job_id = queue.submit(RunRequest(keep_text=False), TEXT)
    queue.cancel(job_id)
    page = open_page("runs", job=job_id)
    assert not [button for button in page.button if button.key == "retry"]


@pytest.mark.parametrize("job_id", ["deadbeef", "", "../../etc", "' OR 1=1"])
def test_unknown_job_is_explained(home, open_page, job_id):
    page = open_page("runs", job=job_id)
    assert "This link leads nowhere" in page.told


def test_broken_queue_leaves_the_runs_readable(filled, open_page):
    (filled / "jobs.sqlite3").write_bytes(b"no database, but long enough to be looked at" * 50)
    page = open_page("runs")
    assert not page.exception
    assert len(page.dataframe[0].value) == 2


def test_every_stage_and_failure_has_words():
    assert set(jobs_view.STAGE_NAMES) == {stage for stages in STAGES.values() for stage in stages}
    assert all(jobs_card.FAILURES[kind] for kind in FailureKind.__args__)
