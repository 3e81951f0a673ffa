"""The home folder deleted or read-only under an open queue and a worker. CPU; processes are ended by their pid."""

import os
import shutil
import sqlite3

import pytest

from routesparse.engine.errors import StoreError
from routesparse.engine.jobs import database
from routesparse.engine.jobs.database import QueueGoneError
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.jobs.worker import run_worker


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home that can be renamed."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("ROUTESPARSE_HOME", str(folder))
    return folder


def test_a_queue_that_was_deleted_or_replaced_says_so_until_it_is_put_back(home, queue):
    job_id = queue.submit(RunRequest(), "a prompt of a few words")
    away = home.with_name("away")
    home.rename(away)
    for call in (queue.jobs, lambda: queue.cancel(job_id), lambda: queue.claim("w")):
        with pytest.raises(
            QueueGoneError, match="was deleted or replaced while it was in use; put its folder back"
        ):
            call()
    assert not home.exists(), "asking makes no second queue"
    away.rename(home)
    assert queue.job(job_id).state == "queued"


def test_an_idle_worker_ends_where_its_home_was_deleted_and_the_next_one_begins_anew(
    home, queue, start_worker, until
):
    process = start_worker()
    until(lambda: queue.workers(), "the worker")
    shutil.rmtree(home)
    assert process.wait(timeout=30) == 1
    assert not home.exists()
    again = JobQueue(home)
    job_id = again.submit(RunRequest(), "a prompt of a few words")
    assert start_worker(once=True).wait(timeout=60) == 0
    assert again.job(job_id).state == "done"
    again.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="running as root")
def test_a_home_without_write_permission_is_refused(home):
    home.chmod(0o500)
    with pytest.raises(StoreError, match="writable"):
        JobQueue(home)


def test_a_worker_ends_where_its_home_was_deleted_in_the_midst_of_a_job(home, queue, fakes):
    queue.submit(RunRequest(), "a prompt of a few words")

    def analyze(request, prompt, run_id, report):
        shutil.rmtree(home)
        return fakes.fake_analysis(home.parent)(request, prompt, run_id, report)

    with pytest.raises(QueueGoneError):
        run_worker(home, analyze, once=True)


def test_a_read_only_home_is_named_as_such(home):
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    told = database._in_our_words(error, home / "jobs.sqlite3")
    assert isinstance(told, StoreError) and "make the folder writable, or set ROUTESPARSE_HOME" in str(told)
