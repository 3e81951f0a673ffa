"""The queue of several hosts: what PostgreSQL alone has to promise. A server of these tests' own; no GPU."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import closing

import pytest

from routesparse.engine import shared_folder
from routesparse.engine.cli import main as cli
from routesparse.engine.doctor import checks as doctor
from routesparse.engine.errors import ConfigError, StoreError
from routesparse.engine.jobs import staging
from routesparse.engine.jobs.database import (
    QueueAwayError,
    QueueBusyError,
    QueueGoneError,
    QueuePlaceError,
)
from routesparse.engine.jobs.queue import JobQueue, _back_in_line
from routesparse.engine.operations import metrics, places
from routesparse.engine.scale import postgres as named
from routesparse.engine.scale import queue as postgres
from routesparse.engine.scale.queue import IDENTITY, PREFIX
from tests.engine.jobs.conftest import claimed, open_at_once, submit


class TestAddress:
    @pytest.mark.parametrize(
        ("address", "told"),
        [
            ("postgresql://u:secret@db", "must be postgres:"),
            (PREFIX, "must be words"),
            (f"{PREFIX}host=h password=secret", "~/.pgpass"),
            (f"{PREFIX}host=h oauth_client_secret=secret", "service=SECTION"),
            (f"{PREFIX}hots=h", "can't be read"),
        ],
    )
    def test_that_can_t_be_used_is_refused_without_its_password(self, shared, monkeypatch, address, told):
        monkeypatch.setenv("ROUTESPARSE_QUEUE", address)
        with pytest.raises(ConfigError, match=told) as caught:
            JobQueue(shared)
        assert "ROUTESPARSE_QUEUE" in str(caught.value) and "secret" not in str(caught.value)

    def test_without_a_shared_folder_says_which_variable_is_missing(self, shared, monkeypatch):
        monkeypatch.delenv("ROUTESPARSE_SHARED")
        with pytest.raises(ConfigError, match="ROUTESPARSE_SHARED is not"):
            JobQueue(shared)

    def test_without_psycopg_says_what_installs_it(self, shared, monkeypatch):
        monkeypatch.setattr(named, "FOLDER", shared / "nowhere")
        with pytest.raises(StoreError, match="`make ducklake`"):
            JobQueue(shared)

    def test_of_a_server_that_is_not_there_says_so_without_the_address(self, shared, monkeypatch):
        monkeypatch.setenv("ROUTESPARSE_QUEUE", f"{PREFIX}host={shared} dbname=x user=ann")
        with pytest.raises(QueueAwayError, match=r"can't be reached.*correct ROUTESPARSE_QUEUE") as caught:
            JobQueue(shared)
        assert str(shared) not in str(caught.value)

    @pytest.mark.parametrize(
        "said",
        [
            "the database system is starting up",
            "sorry, too many clients already",
            "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        ],
    )
    def test_of_a_server_that_takes_nobody_now_is_not_blamed(self, shared, said):
        """Scripted: what PostgreSQL says for a moment."""
        told = str(
            postgres._unreachable(postgres._driver().OperationalError(f"connection failed: FATAL:  {said}"))
        )
        assert said in told and "Try again in a moment" in told
        assert "PGPASSWORD" not in told and "ROUTESPARSE_QUEUE" not in told


class TestTables:
    @pytest.mark.parametrize(("version", "cure"), [(99, "update RouteSparse"), (4, "Name another database")])
    def test_of_another_version_are_refused_unchanged(self, queue, version, cure):
        with queue.database.transaction() as transaction:
            transaction.execute("UPDATE about SET version = ?", (version,))
        with pytest.raises(StoreError, match=rf"schema {version}.*{cure}"):
            JobQueue(queue.home)
        assert queue.database.rows("SELECT version FROM about") == [{"version": version}]

    def test_are_made_once_by_many_at_once(self, shared):
        open_at_once(lambda: JobQueue(shared))

    def test_that_are_gone_say_so_and_a_new_worker_begins_anew(self, queue):
        with queue.database.transaction() as transaction:
            transaction.execute("DROP SCHEMA routesparse_queue CASCADE")
        for call in (queue.jobs, lambda: queue.claim("w"), lambda: submit(queue)):
            with pytest.raises(QueueGoneError, match="start again"):
                call()
        with pytest.raises(StoreError, match="of another job queue"):
            JobQueue(queue.home)
        (queue.place / IDENTITY).unlink()
        with closing(JobQueue(queue.home)) as again:
            assert again.jobs() == []

    def test_keep_a_name_with_a_character_that_postgresql_has_no_place_for(self, queue):
        claim = claimed(queue)
        queue.fail(claim, "model", "model 'a\0b' is unknown")
        assert queue.job(claim.job_id).failure.message == "model 'a\N{REPLACEMENT CHARACTER}b' is unknown"


class TestFolder:
    def test_of_another_queue_is_refused(self, queue, shared, tmp_path, monkeypatch):
        monkeypatch.setenv("ROUTESPARSE_SHARED", str(tmp_path / "elsewhere"))
        with pytest.raises(StoreError, match="is the shared folder mounted"):
            JobQueue(queue.home)

    def test_that_is_not_mounted_keeps_jobs_waiting(self, queue, shared):
        job_id = submit(queue)
        shared.rename(shared.with_name("away"))
        for call in (lambda: queue.claim("w"), lambda: submit(queue)):
            with pytest.raises(StoreError, match="is the shared folder mounted"):
                call()
        shared.with_name("away").rename(shared)
        assert queue.claim("w").job_id == job_id and len(queue.jobs()) == 1

    def test_that_unmounts_takes_no_result_and_hands_none_over(self, queue, shared, factory):
        """Even where what lies there now looks like a spool: it is not this queue's folder."""
        failed = submit(queue)
        queue.fail(queue.claim("w"), "model", "no")
        claim = claimed(queue)
        record = factory.make_record(claim.run_id, layers=1, heads=2, segments=1, tokens=2048, probe=False)
        staging.stage(queue, record)
        queue.finish(claim, claim.run_id)
        shared.rename(shared.with_name("away"))
        shared_folder.mark()
        before = sorted(shared.rglob("*"))
        for call in (
            lambda: staging.stage(queue, record),
            lambda: staging.home_of(queue, claim.run_id),
            lambda: staging.publish_finished(queue),
            lambda: queue.retry(failed),
        ):
            with pytest.raises(QueuePlaceError, match="is the shared folder mounted"):
                call()
        assert sorted(shared.rglob("*")) == before and queue.unpublished() == [claim.run_id]
        shutil.rmtree(shared)
        shared.with_name("away").rename(shared)
        staging.publish_finished(queue)
        assert (shared / "spool" / claim.run_id).is_dir() and queue.unpublished() == []


class TestClock:
    def test_is_the_server_s(self, queue, monkeypatch):
        """A host whose clocks are hours wrong ends no lease, prolongs none, and writes right times."""
        submit(queue)
        right = time.time()
        for wrong in (lambda: 1e9, lambda: 5e9):
            monkeypatch.setattr(time, "time", wrong)
            monkeypatch.setattr(time, "monotonic", wrong)
            claim = queue.claim("elsewhere", 30)
            assert abs(queue.job(claim.job_id).started_at - right) < 60
            assert queue.requeue_lost() == [] and queue.held()
            queue.release(claim)
        monkeypatch.undo()


class TestOperations:
    def test_doctor_metrics_and_readiness_see_the_queue_of_all_hosts(self, queue, host):
        submit(queue)
        queue.seen("elsewhere-1-ab")
        home = host("metrics")
        (told,) = doctor._queue()
        assert told.status == "ok" and told.detail.startswith("PostgreSQL, 1 jobs, 1 live workers")
        said = metrics.text(home)
        assert 'routesparse_jobs{state="queued"} 1.0' in said and "routesparse_workers 1.0" in said
        assert not [problem for problem in metrics.problems(home) if "worker" in problem]

    def test_count_the_room_of_the_shared_folder_also_without_a_home(
        self, queue, shared, tmp_path, monkeypatch
    ):
        home, asked = tmp_path / "nowhere", []
        assert "routesparse_disk_free_bytes " in metrics.text(home)
        assert "less than 256 MiB free" not in metrics.problems(home)
        full = shutil.disk_usage(shared)._replace(free=(256 << 20) - 1)
        monkeypatch.setattr(places.shutil, "disk_usage", lambda folder: asked.append(folder) or full)
        assert "less than 256 MiB free" in metrics.problems(home)
        assert asked == [shared] and not home.exists()


class TestTaking:
    def test_a_job_that_somebody_is_taking_is_passed_over(self, queue, host):
        first, second = submit(queue), submit(queue)
        sql = "SELECT id FROM job WHERE state = 'queued' ORDER BY seq LIMIT 1 FOR UPDATE"
        with (
            closing(JobQueue(host("a"), busy_timeout_s=0.2)) as other,
            queue.database.transaction() as taking,
        ):
            assert taking.execute(sql).fetchone()["id"] == first
            assert other.claim("w").job_id == second
            assert other.claim("w") is None
            with pytest.raises(QueueBusyError, match="try again"):
                other.cancel(first)

    def test_a_host_that_stops_in_a_transaction_gives_its_locks_back(self, queue, host, monkeypatch, until):
        monkeypatch.setattr(postgres, "_STOPPED_S", 1)
        submit(queue)
        with (
            closing(JobQueue(host("a"))) as stopped,
            pytest.raises(QueueAwayError),
            stopped.database.transaction() as transaction,
        ):
            transaction.execute("SELECT id FROM job FOR UPDATE")
            until(lambda: queue.claim("w"), "the locks")
            transaction.execute("UPDATE job SET label = 'late'")


class TestCancel:
    def test_of_a_job_that_another_host_puts_back_meanwhile_holds(self, queue, host, until):
        claim = claimed(queue)
        cancelling = threading.Thread(target=queue.cancel, args=(claim.job_id,))
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid = ?"
        with closing(JobQueue(host("a"))) as other:
            with other.database.transaction() as change:
                other._fenced(change, claim, _back_in_line(), (1.0,))
                cancelling.start()
                pid = queue.database._connection.info.backend_pid
                until(
                    lambda: change.execute(waits, (pid,)).fetchone(), "the cancel to wait for the other host"
                )
            cancelling.join()
            assert queue.job(claim.job_id).state == "cancelled" and other.claim("b") is None


def test_the_command_says_that_the_server_is_away_and_that_another_start_may_help(
    shared, monkeypatch, capsys
):
    """Exit code 1: the Procfile's loop starts a new worker until the server is there."""
    monkeypatch.setenv("ROUTESPARSE_QUEUE", f"{PREFIX}host={shared} dbname=x user=ann")
    assert cli.main(["worker", "--once"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("warning: PostgreSQL") and "ROUTESPARSE_QUEUE" in told
