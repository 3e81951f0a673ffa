"""Workers of several hosts on one queue: killed, cut off, their server restarted. PostgreSQL; no GPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing

import pytest

from routesparse.engine import shared_folder
from routesparse.engine.jobs import heartbeat, staging
from routesparse.engine.jobs.database import QueueAwayError
from routesparse.engine.jobs.log import JobLog, tail
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.signals import Flag
from routesparse.engine.jobs.worker import run_worker
from routesparse.engine.scale.queue import PREFIX
from routesparse.engine.store import bundle
from tests import own_postgres
from tests.engine.jobs.conftest import submit
from tests.engine.jobs.worker_process import visible


class TestHeartbeat:
    @pytest.fixture
    def away(self, queue, monkeypatch):
        """Make the server unreachable for this host's queue, while others reach it."""

        def refuse(*_):
            raise QueueAwayError("PostgreSQL can't be reached")

        def arm():
            for name in ("rows", "transaction"):
                monkeypatch.setattr(queue.database, name, refuse)

        return arm

    def test_gives_a_job_up_before_another_host_may_take_it(self, queue, away, host, until, tmp_path):
        submit(queue)
        log, taken = JobLog(queue.home, "w"), []
        with closing(JobQueue(host("b"))) as other:
            claim, stop = queue.claim("w", 2.0), Flag()
            with heartbeat.Heartbeat(queue, claim, stop, log, lease_s=2.0, beat_s=0.1) as heart:
                heart.progress("route", 1, 8)
                until(lambda: queue.job(claim.job_id).done == 1, "a beat")
                away()
                with pytest.raises(heartbeat.Interrupted) as caught:
                    while not taken:
                        taken = other.requeue_lost()
                        heart.progress("route", 1, 8)  # once taken, it may not go on
                        time.sleep(0.01)
            assert caught.value.verdict == "lost"
            until(lambda: taken or other.requeue_lost(), "the lease's end")
            assert other.claim("b").attempt == 2
        stop.close()

    def test_goes_on_after_a_short_outage(self, queue, cut, until):
        submit(queue)
        claim, stop = queue.claim("w", 30), Flag()
        log = JobLog(queue.home, "w")
        with heartbeat.Heartbeat(queue, claim, stop, log, lease_s=30, beat_s=0.05) as heart:
            for layer in range(4):
                heart.progress("route", layer, 4)
                cut(queue)
                until(lambda at=layer: queue.job(claim.job_id).done == at, "the next beat")
            heart.check()
        stop.close()
        queue.finish(claim, claim.run_id)
        assert (queue.job(claim.job_id).state, queue.job(claim.job_id).attempt) == ("done", 1)


class TestHosts:
    """Worker processes with homes of their own: what one writes into its home the other does not see."""

    @pytest.fixture
    def start(self, fakes, host, shared):
        started = []

        def begin(name, **options):
            given = json.dumps({"home": str(host(name)), **options})
            started.append(subprocess.Popen([sys.executable, fakes.__file__, given]))
            return started[-1]

        yield begin
        for process in started:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait(timeout=30)

    @staticmethod
    def ran(tmp_path, *names):
        files = [tmp_path / name / "ran.txt" for name in names]
        return [file.read_text().split() if file.exists() else [] for file in files]

    def test_a_killed_one_s_job_is_done_once_by_the_other(self, queue, shared, start, until, tmp_path):
        job_id = submit(queue)
        killed = start("a", layers=2000, layer_s=0.05, lease_s=2.0)
        until(lambda: self.ran(tmp_path, "a") == [[f"{job_id}-1"]], "the analysis")
        os.kill(killed.pid, signal.SIGKILL)
        start("b", once=False)
        until(lambda: queue.job(job_id).ended, "the other's result")
        job = queue.job(job_id)
        assert (job.state, job.attempt, job.losses, job.run_id) == ("done", 2, 1, f"{job_id}-2")
        assert self.ran(tmp_path, "a", "b") == [[f"{job_id}-1"], [f"{job_id}-2"]]
        until(lambda: visible(shared) == [f"{job_id}-2"], "the hand-over")

    def test_another_hands_over_what_a_killed_one_finished(self, queue, shared, host, start, fakes):
        job_id = submit(queue)
        assert start("a", die_at="job_finished").wait(timeout=60) == -signal.SIGKILL
        assert queue.unpublished() == [f"{job_id}-1"] and visible(shared) == []
        other = host("b")
        assert run_worker(other, fakes.fake_analysis(other), once=True) == 0
        assert visible(shared) == [f"{job_id}-1"] and not (other / "ran.txt").exists()
        assert bundle.verify_bundle(shared / "spool" / f"{job_id}-1").run_id == f"{job_id}-1"


class TestSharedFolder:
    """It unmounts while a worker has a job, and is mounted again once that job runs no more."""

    @pytest.fixture
    def unmount(self, queue, shared, until):
        away, threads = shared.with_name("away"), []

        def remount():
            try:
                until(lambda: not queue.jobs(("running",)), "the worker to let go of its job")
            finally:
                unmount.left = list(shared.rglob("*"))
                shutil.rmtree(shared)
                away.rename(shared)

        def unmount(run_id):
            if run_id.endswith("-1"):  # the first attempt
                shared.rename(away)
                shared.mkdir()
                threads.append(threading.Thread(target=remount))
                threads[0].start()

        yield unmount
        for thread in threads:
            thread.join()

    @pytest.mark.parametrize("moment", ["claimed", "computed", "staged"])
    def test_that_unmounts_during_a_job_puts_it_back(
        self, queue, shared, host, fakes, unmount, monkeypatch, moment
    ):
        job_id, home = submit(queue), host("a")
        analyze, claim, stage = fakes.fake_analysis(home), JobQueue.claim, staging.stage

        def claimed(*values):
            found = claim(*values)
            if found is not None and moment == "claimed":
                unmount(found.run_id)
            return found

        def computed(request, prompt, run_id, report):
            record = analyze(request, prompt, run_id, report)
            if moment == "computed":
                unmount(run_id)
            return record

        def staged(mine, record):
            stage(mine, record)
            if moment == "staged":
                unmount(record.run.run_id)

        monkeypatch.setattr(JobQueue, "claim", claimed)
        monkeypatch.setattr(staging, "stage", staged)
        assert run_worker(home, computed, once=True, beat_s=0.05, poll_s=0.05) == 0
        job = queue.job(job_id)
        assert (job.state, job.attempt, job.losses) == ("done", 2, 0)
        assert visible(shared) == [f"{job_id}-2"] and queue.unpublished() == [] and unmount.left == []
        assert "job_put_back" in [line["event"] for line in tail(home, job_id)]


def test_a_server_that_restarts_meanwhile_loses_no_job_and_repeats_none(
    postgres, tmp_path, monkeypatch, fakes
):
    """One worker in a job, another waits: it goes on with the first when the server is back, then takes the second."""
    with own_postgres.cluster() as data, ExitStack() as served:
        words = served.enter_context(own_postgres.running(data))
        monkeypatch.setenv("ROUTESPARSE_QUEUE", PREFIX + own_postgres.new_database(words, "again"))
        monkeypatch.setenv("ROUTESPARSE_SHARED", str(tmp_path))
        shared_folder.mark()
        home = tmp_path / "a"
        home.mkdir()
        queue, analysis = JobQueue(home), fakes.fake_analysis(home)
        ids = [submit(queue) for _ in range(2)]

        def analyze(request, prompt, run_id, report):
            if run_id == f"{ids[0]}-1":
                report("route", 0, 2)
                served.close()
                with pytest.raises(QueueAwayError):
                    queue.jobs()
                time.sleep(0.5)
                served.enter_context(own_postgres.running(data))
            return analysis(request, prompt, run_id, report)

        assert run_worker(home, analyze, once=True, beat_s=0.05, poll_s=0.05) == 0
        assert [(job.state, job.attempt, job.losses) for job in queue.jobs()] == [("done", 1, 0)] * 2
        assert (home / "ran.txt").read_text().split() == [f"{job_id}-1" for job_id in ids]
        assert visible(tmp_path) == sorted(f"{job_id}-1" for job_id in ids)
        queue.close()
