"""Workers as processes, killed, stopped and restarted: every job ends exactly once. CPU, about a minute.

Only processes that a test started are signalled, by their pid.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import honcho.manager
import pytest

from routesparse.engine.jobs import signals
from routesparse.engine.jobs.log import tail
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.jobs.worker import run_worker
from routesparse.engine.store import bundle
from tests.engine.jobs.worker_process import staged, visible

REPOSITORY = Path(__file__).resolve().parents[3]
LEASE_ENDS = "UPDATE job SET lease_until = 0"


def submit(queue, **wishes):
    return queue.submit(RunRequest(**wishes), "a prompt of a few words")


def check_spool(home):
    """Whatever readers see is whole."""
    for name in visible(home):
        assert bundle.verify_bundle(home / "spool" / name).run_id == name


@pytest.fixture
def finish_here(queue, home, fakes, until):
    """A new worker, in this process, until the job has ended."""

    def finish(job_id):
        analyze = fakes.fake_analysis(home)

        def ended():
            run_worker(home, once=True, analyze=analyze)
            return queue.job(job_id).ended

        until(ended, "the job's end")

    return finish


def routing(queue, job_id):
    """Whether its first step has begun; the claim comes before the request is read."""
    return lambda: queue.job(job_id).stage == "route"


@pytest.mark.parametrize(
    ("place", "attempts"),
    [("bundle_half_written", 2), ("bundle_staged", 2), ("job_finished", 1), ("bundle_published", 1)],
)
def test_killed_at_the_handover(queue, home, start_worker, until, finish_here, place, attempts):
    job_id = submit(queue)
    process = start_worker(die_at=place)
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert visible(home) == ([f"{job_id}-1"] if place == "bundle_published" else [])
    assert len(staged(home)) == (0 if place == "bundle_published" else 1)
    finish_here(job_id)
    job = queue.job(job_id)
    assert (job.state, job.run_id, job.attempt) == ("done", f"{job_id}-{attempts}", attempts)
    assert visible(home) == [job.run_id]
    assert staged(home) == []
    assert queue.unpublished() == []
    check_spool(home)


def test_a_worker_stopped_while_computing_wakes_up_to_no_harm(
    queue, home, start_worker, until, finish_here, stop_without_locks, alter
):
    job_id = submit(queue)
    process = start_worker(layers=40, layer_s=0.1)
    until(routing(queue, job_id), "the first step")
    stop_without_locks(process)
    alter(LEASE_ENDS)
    finish_here(job_id)
    before = queue.job(job_id)
    assert (before.state, before.run_id, before.losses) == ("done", f"{job_id}-2", 1)
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: "job_lost" in [line["event"] for line in tail(home, job_id)], "the late worker's giving up")
    assert queue.job(job_id) == before
    assert visible(home) == [f"{job_id}-2"]
    assert staged(home) == []
    other = submit(queue)
    until(lambda: queue.job(other).state == "done", "the late worker's next job")


def test_a_worker_stopped_with_its_bundle_staged_wakes_up_to_no_harm(
    queue, home, start_worker, until, finish_here, alter
):
    job_id = submit(queue)
    process = start_worker(stop_when_staged=True)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert staged(home) == [f"{job_id}-1"]
    alter(LEASE_ENDS)
    finish_here(job_id)
    before = queue.job(job_id)
    assert before.run_id == f"{job_id}-2"
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: "job_lost" in [line["event"] for line in tail(home, job_id)], "the late worker's giving up")
    assert queue.job(job_id) == before
    assert visible(home) == [f"{job_id}-2"]
    assert staged(home) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_inside_a_long_step_ends_the_worker_in_good_order_after_its_grace(
    queue, home, start_worker, until, number, finish_here
):
    """The promise of ``routesparse worker``: the job back at once, without a loss, exit code 0, nothing half done."""
    job_id = submit(queue)
    process = start_worker(layers=1, layer_s=120, grace_s=1.0)
    until(routing(queue, job_id), "the step")
    asked = time.monotonic()
    os.kill(process.pid, number)
    until(lambda: queue.job(job_id).state == "queued", "the release")
    assert process.wait(timeout=30) == 0
    assert time.monotonic() - asked >= 1.0
    assert "worker_left_a_step" in (home / "logs" / "worker.jsonl").read_text()
    assert (visible(home), staged(home)) == ([], [])
    finish_here(job_id)
    job = queue.job(job_id)
    assert (job.state, job.losses, job.attempt, visible(home)) == ("done", 0, 2, [f"{job_id}-2"])
    assert queue.workers() == [], "the one that left is no worker any more"


def test_a_worker_between_two_steps_does_not_wait_for_its_grace(queue, home, start_worker, until):
    process = start_worker(grace_s=60.0)
    until(queue.workers, "the start")
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert "worker_left_a_step" not in (home / "logs" / "worker.jsonl").read_text()


def test_a_second_signal_ends_the_worker_at_once(queue, start_worker, until):
    job_id = submit(queue)
    process = start_worker(layers=1, layer_s=120)
    until(routing(queue, job_id), "the step")
    os.kill(process.pid, signal.SIGTERM)
    until(lambda: queue.job(job_id).state == "queued", "the release")
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM


def test_the_procfile_s_runner_kills_later_than_a_worker_needs():
    """honcho, which ``make run`` starts, kills what has not ended so many seconds after Ctrl-C."""
    assert signals.GRACE_S < honcho.manager.KILL_WAIT


def test_the_procfile_s_worker_gives_up_where_no_queue_can_be_opened(tmp_path):
    """A home that is a file: starting again and again would not help."""
    (tmp_path / "home").write_text("not a folder")
    (command,) = [
        line.partition(": ")[2]
        for line in (REPOSITORY / "Procfile").read_text().splitlines()
        if line.startswith("worker: ")
    ]
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=REPOSITORY,
        env={**os.environ, "ROUTESPARSE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ") and "check that its folder is writable" in line
