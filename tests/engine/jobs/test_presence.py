"""A worker's lock: held while its process lives, whatever the clock says. CPU, seconds."""

import os
import signal

import pytest

from routesparse.engine.errors import StoreError
from routesparse.engine.jobs import presence
from routesparse.engine.jobs.request import RunRequest


@pytest.fixture
def running(queue, start_worker, until):
    """A worker process inside a job that takes two minutes, by a lease of a day; (process, job id)."""
    job_id = queue.submit(RunRequest(), "a prompt of a few words")
    process = start_worker(layers=1, layer_s=120, lease_s=86_400.0)
    until(lambda: queue.job(job_id).state == "running", "the claim")
    return process, job_id


def test_a_killed_worker_s_job_is_taken_back_long_before_its_lease_ends(queue, running):
    process, job_id = running
    assert queue.requeue_lost() == []
    assert len(queue.workers()) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    assert queue.workers() == []
    assert queue.requeue_lost() == [job_id]
    job = queue.job(job_id)
    assert (job.state, job.losses) == ("queued", 1)
    queue.sweep_workers()
    assert queue.workers() == [], "its file is gone, and it does not count as alive for that"


def test_a_stopped_worker_is_not_gone(queue, home, running):
    process, job_id = running
    os.kill(process.pid, signal.SIGSTOP)
    assert not presence.is_gone(home, queue.job(job_id).worker)
    assert queue.requeue_lost() == []


def test_leftovers_go_and_the_living_and_the_needed_stay(home):
    with presence.present(home, "dead"), presence.present(home, "needed"):
        pass
    with presence.present(home, "alive"):
        presence.forget(home, presence.dead(home, {"needed"}))
        assert sorted(file.name for file in (home / "workers").iterdir()) == ["alive.lock", "needed.lock"]


def test_a_home_that_can_t_be_written_is_refused(home):
    (home / "workers").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="can't be written"), presence.present(home, "w"):
        pass
