"""The Jobs pages: waiting, running, done, failed, cancelled, unknown. No GPU, no browser, no worker process."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from routesparse.app.screens.job import page as page_module
from routesparse.app.shell import jobs_view, setting_words
from routesparse.app.shell.jobs_view import STAGE_NAMES, failure_title
from routesparse.engine import errors
from routesparse.engine.config import RouterConfig
from routesparse.engine.jobs import log
from routesparse.engine.jobs.database import QueueBusyError
from routesparse.engine.jobs.estimate import Estimate
from routesparse.engine.jobs.failures import classify
from routesparse.engine.jobs.job import STAGES, FailureKind
from routesparse.engine.jobs.queue import MAX_LOSSES, JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import bundle

TEXT = "The harbour master writes a ledger of vessels. " * 40


def text_of(page) -> str:
    return " ".join(str(element.proto.body) for element in page.get("html"))


@pytest.fixture
def submitted(queue):
    """A waiting job's id."""
    return queue.submit(RunRequest(label="<b>ledger.txt"), TEXT)


def test_no_jobs_say_what_to_do(home, open_page):
    page = open_page("job")
    assert not page.exception
    assert "No jobs yet" in text_of(page) and "No worker is running" in text_of(page)


def test_waiting_job_shows_its_place_and_the_missing_worker(home, queue, submitted, open_page):
    second = queue.submit(RunRequest(), TEXT)
    page = open_page("job", job=second)
    html = text_of(page)
    assert "waiting, place 2 in the queue" in html
    assert "No worker is running" in html and "routesparse worker" in html
    assert not page.button(key="cancel").disabled


def test_live_worker_is_not_missed(home, queue, submitted, open_page):
    queue.seen("worker-1")
    assert "No worker is running" not in text_of(open_page("job", job=submitted))


def test_running_job_shows_layer_elapsed_and_settings(home, queue, submitted, open_page):
    claim = queue.claim("worker-1")
    queue.heartbeat(claim, progress=("route", 3, 8))
    html = text_of(open_page("job", job=submitted))
    assert "route and execute: layer 3 of 8" in html
    assert "elapsed" in html and "no estimate yet" in html and f"policy {RouterConfig.policy}" in html
    assert "No worker is running" not in html, "its lease says that one is"
    assert "<b>ledger" not in html and "&lt;b&gt;ledger.txt" in html


def test_a_job_far_over_its_estimate_says_so_and_when_its_worker_was_heard(
    home, queue, submitted, open_page, monkeypatch
):
    queue.seen("worker-1")
    queue.claim("worker-1")
    monkeypatch.setattr(jobs_view, "elapsed_s", lambda job: 240.0)
    monkeypatch.setattr(page_module, "job_estimate", lambda *_: Estimate(1.0, 2.0, 3))
    html = text_of(open_page("job", job=submitted))
    assert "Far over the estimate: 4 min 00 s so far, where 3 earlier jobs took" in html
    assert "worker last reported" in html and "s ago" in html
    monkeypatch.setattr(jobs_view, "elapsed_s", lambda job: 3.0)
    assert "Far over" not in text_of(open_page("job", job=submitted))


def test_the_list_says_why_a_job_failed(home, queue, submitted, open_page):
    queue.fail(queue.claim("worker-1"), "numerics", "NaN in layer 3")
    assert "<br>The model produced NaN or infinity<br>" in text_of(open_page("job"))


def test_settings_read_as_on_every_other_page(home, queue, open_page):
    asked = RunRequest(policy="priced", tau=0.7, price=0.3, budget="0.35")
    told = text_of(open_page("job", job=queue.submit(asked, TEXT)))
    assert "policy priced, price 0.3, τ layer 0.70, Tℓ 35 %, segment" in told
    assert ", ".join(setting_words.router_asked(asked).values()) in told
    assert "τ 0.90, no time limit, segment" in text_of(
        open_page("job", job=queue.submit(RunRequest(policy="certified", tau=0.9), TEXT))
    )


def test_a_job_names_the_quality_target_also_where_it_fails_for_it(home, queue, open_page):
    job_id = queue.submit(RunRequest(policy="priced", price=1.4, quality="prose-kl"), TEXT)
    assert "policy priced, price 1.4, quality prose-kl, τ layer 0.30," in text_of(
        open_page("job", job=job_id)
    )
    queue.fail(queue.claim("worker-1"), "calibration", "the quality target 'prose-kl' changed")
    assert "The calibration or the quality target" in text_of(open_page("job", job=job_id))


def test_a_job_on_rescaled_positions_says_so(home, queue, open_page):
    asked = RunRequest(rope='{"rope_type": "yarn", "factor": 4.0}')
    assert "model demo, RoPE yarn ×4, policy" in text_of(open_page("job", job=queue.submit(asked, TEXT)))


def test_waiting_job_is_cancelled_at_once(home, queue, submitted, open_page):
    page = open_page("job", job=submitted)
    page.button(key="cancel").click().run()
    assert queue.job(submitted).state == "cancelled"
    assert "Cancelled" in text_of(page)


def test_running_job_is_asked_to_stop(home, queue, submitted, open_page):
    queue.claim("worker-1")
    page = open_page("job", job=submitted)
    page.button(key="cancel").click().run()
    assert queue.job(submitted).cancel_requested
    assert "cancelling" in text_of(page)
    assert page.button(key="cancel").disabled


def test_cancel_in_a_busy_queue_says_so_and_the_page_stays(home, queue, submitted, open_page, monkeypatch):
    page = open_page("job", job=submitted)
    monkeypatch.setattr(
        JobQueue,
        "cancel",
        lambda *_: (_ for _ in ()).throw(QueueBusyError("the job queue is busy; try again")),
    )
    page.button(key="cancel").click().run()
    assert not page.exception and "the job queue is busy" in text_of(page)


def test_done_job_leads_to_its_map(home, queue, submitted, open_page, record, factory, went):
    claim = queue.claim("worker-1")
    bundle.write_bundle(factory.rename(record, claim.run_id), home / "spool")
    queue.finish(claim, claim.run_id)
    page = open_page("job", job=submitted)
    assert 'class="rs-verdict ' in text_of(page), "whether the run is safe stands beside the way to its map"
    page.button(key="open-map").click().run()
    assert went == [("map", {"run": claim.run_id[-8:]})]


def test_done_job_waits_for_the_store(home, queue, submitted, open_page):
    claim = queue.claim("worker-1")
    queue.finish(claim, claim.run_id)
    assert "the store is taking the run in" in text_of(open_page("job", job=submitted))


def test_failure_says_what_happened_and_can_be_tried_again(home, queue, submitted, open_page, went):
    claim = queue.claim("worker-1")
    queue.fail(claim, "out_of_memory", "out of memory; shorten it", "ab12cd34")
    page = open_page("job", job=submitted)
    html = text_of(page)
    assert "Out of memory" in html and "shorten it" in html and "ab12cd34" in html
    assert f"from_job={submitted}" in html and ">Edit settings</a>" in html
    page.button(key="retry").click().run()
    newest = queue.jobs()[0]
    assert newest.state == "queued" and went == [("job", {"job": newest.id})]


def test_lost_worker_shows_and_the_job_waits_again(home, queue, submitted, open_page):
    queue.claim("worker-1", lease_s=-1)
    html = text_of(open_page("job", job=submitted))
    assert "waiting, next in line; 1 worker lost, it will be tried again" in html


def test_job_that_loses_its_workers_fails_with_the_likely_reason(home, queue, submitted, open_page):
    for _ in range(MAX_LOSSES):
        queue.claim("worker-1", lease_s=-1)
        queue.requeue_lost()
    page = open_page("job", job=submitted)
    html = text_of(page)
    assert "The worker was lost" in html and "too much memory" in html
    assert page.button(key="retry")


@pytest.mark.parametrize(
    ("error", "title", "advice"),
    [
        (MemoryError(), "Out of memory", "shorten it"),
        (OSError(errno.ENOSPC, "full"), "The disk is full", "Free space"),
        (errors.UnsupportedModelError("family x; use y"), "This model family is not supported", "use y"),
        (errors.ProfileError("measured elsewhere; run profile"), "The latency profile", "run profile"),
        (errors.CalibrationError("another model; recalibrate"), "The calibration", "recalibrate"),
        (ValueError(TEXT), "An unexpected error", "ValueError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_failure_has_a_title_and_says_what_to_do(
    home, queue, submitted, open_page, error, title, advice
):
    claim = queue.claim("worker-1")
    queue.fail(claim, *classify(error, "ab12cd34"), "ab12cd34")
    html = text_of(open_page("job", job=submitted))
    assert title in html and advice in html and "ab12cd34" in html
    assert "harbour" not in html, "an unexpected error's own message may quote the prompt"


def test_log_of_the_job_is_at_its_end_and_of_no_other(home, queue, submitted, open_page):
    writer = log.JobLog(home, "worker-1")
    writer.write("stage", job=submitted, stage="route")
    writer.write("stage", job="another", stage="dense")
    page = open_page("job", job=submitted)
    (shown,) = [block.value for block in page.code]
    assert "stage route" in shown and "dense" not in shown


def test_a_job_of_another_host_says_where_its_log_is(home, queue, submitted, open_page, monkeypatch):
    queue.claim("elsewhere-1-ab")
    assert "Another host" not in text_of(open_page("job", job=submitted))
    monkeypatch.setattr(JobQueue, "beyond_host", True)
    assert "Another host ran it; the log is in" in text_of(open_page("job", job=submitted))


def test_text_that_was_not_kept_can_not_be_tried_again(home, queue, open_page):
    job_id = queue.submit(RunRequest(keep_text=False), TEXT)
    queue.cancel(job_id)
    page = open_page("job", job=job_id)
    assert not [button for button in page.button if button.key == "retry"]


@pytest.mark.parametrize("job_id", ["deadbeef", "", "../../etc", "' OR 1=1"])
def test_unknown_job_is_explained(home, open_page, job_id):
    page = open_page("job", job=job_id)
    assert not page.exception
    assert "This link leads nowhere" in text_of(page)


def test_jobs_are_listed_active_ones_first(home, queue, submitted, open_page):
    queue.cancel(queue.submit(RunRequest(label="old.txt"), TEXT))
    html = text_of(open_page("job"))
    assert html.index("ledger.txt") < html.index("old.txt")
    assert "cancelled" in html and "waiting, next in line" in html


def test_broken_queue_leaves_the_runs_readable(filled, open_runs):
    (filled / "jobs.sqlite3").write_bytes(b"no database, but long enough to be looked at" * 50)
    page = open_runs()
    assert not page.exception
    assert len(page.dataframe[0].value) == 2


def test_every_stage_and_failure_has_words():
    assert set(STAGE_NAMES) == {stage for stages in STAGES.values() for stage in stages}
    assert all(failure_title(kind) for kind in FailureKind.__args__)


def test_a_finished_job_shows_what_runs_shows_of_its_run(home, queue, submitted, factory, open_page):
    queue.submit(RunRequest(label="other"), TEXT)
    claim = queue.claim("worker-1")
    made = factory.make_record(claim.run_id, layers=4, heads=4, tokens=4096, hardness=0.9)
    choices = [replace(c, lower_mass=None) if c.pattern != "dense" else c for c in made.choices[:3]]
    bundle.write_bundle(replace(made, choices=(*choices, *made.choices[3:])), home / "spool")
    queue.finish(claim, claim.run_id)
    row = open_page("runs").dataframe[0].value.iloc[0]
    html = text_of(open_page("job"))
    assert row["certified"] < 100
    for shown in (row["verdict"], f"{row['error']:.2g}", f"{row['certified']:.1f} %"):
        assert f">{shown}</span>" in html
    assert html.count('class="rs-came"') == 2, "the heads, and one run"


def test_jobs_without_a_run_have_no_columns_for_one(home, queue, submitted, open_page):
    assert "rs-came" not in text_of(open_page("job"))
