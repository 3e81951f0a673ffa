"""Sweeps in the queue: all or nothing, in order, one owner's, retried and cancelled together. No GPU, no torch."""

from __future__ import annotations

import pytest

from routesparse.engine.errors import ConfigError, InputError, StoreError
from routesparse.engine.jobs import owner_jobs, sweep
from routesparse.engine.jobs.prompt_files import PromptFiles
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import bundle

ANN, BOB = "a" * 32, "b" * 32
TEXT = "the ledger of the harbour master"


def of_prices(*prices):
    return sweep.with_values(RunRequest(label="ledger.txt"), "price", prices)


def test_one_call_queues_a_job_for_each_setting_in_order(queue):
    sweep_id = queue.submit_sweep(of_prices(0.5, 0.1, 2.0), TEXT)
    jobs = queue.sweep(sweep_id)
    assert [RunRequest.from_json(job.request_json).price for job in jobs] == [0.5, 0.1, 2.0]
    assert {job.sweep for job in jobs} == {sweep_id} and {job.label for job in jobs} == {"ledger.txt"}
    assert [queue.prompts.read(job.id).decode() for job in jobs] == [TEXT] * 3
    assert [queue.position(job.id) for job in jobs] == [1, 2, 3]


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        (of_prices(0.5), "1 value is given; a sweep needs from 2 to 12"),
        (of_prices(*(i / 10 for i in range(1, 14))), "13 values are given; a sweep needs from 2 to 12"),
        (of_prices(0.5, 0.1, 0.5), "are the same"),
    ],
    ids=["one", "thirteen", "equal"],
)
def test_a_sweep_of_a_wrong_size_queues_nothing(queue, requests, message):
    with pytest.raises(ConfigError, match=message):
        queue.submit_sweep(requests, TEXT)
    assert queue.jobs() == [] and queue.prompts.names() == []


def test_a_disk_that_fills_up_between_two_prompts_queues_nothing(queue, monkeypatch):
    write, written = PromptFiles.write, []

    def until_full(files, job_id, content):
        if len(written) == 2:
            raise StoreError("the disk is full")
        written.append(job_id)
        write(files, job_id, content)

    monkeypatch.setattr(PromptFiles, "write", until_full)
    with pytest.raises(StoreError, match="full"):
        queue.submit_sweep(of_prices(0.5, 0.1, 2.0), TEXT)
    assert len(written) == 2 and queue.jobs() == [] and queue.prompts.names() == []


def test_a_row_that_can_not_be_written_takes_the_others_with_it(queue, monkeypatch):
    ids = iter(["the sweep", "one", "two", "one"])
    monkeypatch.setattr(owner_jobs.secrets, "token_hex", lambda _: next(ids))
    with pytest.raises(StoreError, match=r"(?i)unique"):
        queue.submit_sweep(of_prices(0.5, 0.1, 2.0), TEXT)
    assert queue.jobs() == [] and queue.prompts.names() == []


def test_cancelling_a_sweep_ends_what_waits_asks_what_runs_and_leaves_what_is_done(queue):
    sweep_id = queue.submit_sweep(of_prices(0.5, 0.1, 2.0), TEXT)
    alone = queue.submit(RunRequest(), TEXT)
    done = queue.claim("worker-1")
    queue.finish(done, done.run_id)
    queue.claim("worker-1")
    queue.cancel_sweep(sweep_id)
    jobs = queue.sweep(sweep_id)
    assert [job.state for job in jobs] == ["done", "running", "cancelled"]
    assert [job.cancel_requested for job in jobs] == [False, True, False]
    assert queue.job(alone).state == "queued"


def test_another_s_sweep_is_like_one_that_does_not_exist(queue):
    sweep_id = queue.of(ANN).submit_sweep(of_prices(0.5, 0.1), TEXT)
    for owner in (BOB, None):
        assert queue.of(owner).sweep(sweep_id) == [] and queue.of(owner).sweeps() == []
        with pytest.raises(InputError, match="no sweep is called"):
            queue.of(owner).cancel_sweep(sweep_id)
    assert [job.state for job in queue.of(ANN).sweep(sweep_id)] == ["queued", "queued"]
    assert queue.of(ANN).sweeps() == [sweep_id]


def test_a_setting_that_is_tried_again_stays_in_its_sweep_and_counts_once(queue):
    sweep_id = queue.submit_sweep(of_prices(0.5, 0.1), TEXT)
    queue.fail(queue.claim("worker-1"), "out_of_memory", "shorten it")
    first, second = queue.sweep(sweep_id)
    again = queue.retry(first.id)
    assert queue.job(again).sweep == sweep_id
    assert [job.id for job in sweep.newest(queue.sweep(sweep_id))] == [again, second.id]


def test_the_runs_carry_the_sweep_and_a_single_run_none(queue, home, work):
    sweep_id = queue.submit_sweep(of_prices(0.5, 0.1), TEXT)
    queue.submit(RunRequest(), TEXT)
    work()
    runs = [bundle.read_bundle(home / "spool" / job.run_id).run for job in reversed(queue.jobs())]
    assert [run.sweep for run in runs] == [sweep_id, sweep_id, None]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("price", " 0.30 ", 0.3),
        ("budget", "0.250", "0.25"),
        ("budget", "800 us", "800us"),
        ("budget", "None", None),
        ("calibration", "none", None),
        ("calibration", "robust", "robust"),
    ],
)
def test_values_are_read_as_requests_take_them(name, text, value):
    assert sweep.value_of(name, text) == value


@pytest.mark.parametrize(("name", "text"), [("price", "cheap"), ("price", ""), ("budget", "soon")])
def test_a_value_that_is_no_number_or_limit_is_named(name, text):
    with pytest.raises(ConfigError, match=repr(text)):
        sweep.value_of(name, text)
