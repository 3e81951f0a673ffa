"""The queue's file: locked, full, damaged, of another version. No GPU."""

import sqlite3
import stat
import time

import pytest

from routesparse.engine.errors import StoreError
from routesparse.engine.jobs import database
from routesparse.engine.jobs.database import QueueBusyError
from routesparse.engine.jobs.opening import FILE
from routesparse.engine.jobs.queue import JobQueue
from tests.engine.jobs.conftest import TEXT, open_at_once, submit


def test_a_locked_file_refuses_a_job_after_the_timeout(home):
    queue = JobQueue(home, busy_timeout_s=0.05)
    other = sqlite3.connect(home / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(QueueBusyError, match="try again"):
            submit(queue)
        assert queue.prompts.names() == []
        assert queue.jobs() == [], "readers don't wait for writers"
    finally:
        other.close()
    submit(queue)
    queue.close()


@pytest.mark.parametrize(("free", "kind"), [(0, database.QueueFullError), (10**9, StoreError)])
def test_no_room_for_the_wal_s_index_is_a_full_disk(home, monkeypatch, free, kind):
    """SQLite reports an I/O error then; with room on the disk it is one."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE

    def fail(connection):
        raise error

    monkeypatch.setattr(database, "_use_wal", fail)
    usage = database.shutil.disk_usage(home)._replace(free=free)
    monkeypatch.setattr(database.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(StoreError) as raised:
        JobQueue(home)
    assert type(raised.value) is kind


def test_the_prompt_is_nowhere_in_the_file(queue, home):
    submit(queue)
    queue.close()
    assert TEXT.encode() not in (home / FILE).read_bytes()


def test_leases_are_told_by_a_clock_that_nobody_sets(queue, monkeypatch):
    clock = queue.database.lease_clock()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert queue.now() == 0.0 and 0.0 <= queue.database.lease_clock() - clock < 60.0


class TestFile:
    def test_is_for_its_user_only(self, queue, home):
        assert stat.S_IMODE((home / FILE).stat().st_mode) == 0o600

    @pytest.mark.parametrize(
        ("version", "cure"), [(99, "update RouteSparse"), (4, "Move .* away and start again")]
    )
    def test_of_another_schema_is_refused_unchanged(self, queue, home, version, cure):
        queue.close()
        with sqlite3.connect(home / FILE) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"schema {version}.*{cure}"):
                JobQueue(home)

    def test_that_is_no_database_is_refused(self, home):
        (home / FILE).write_text("not a database at all, but long enough to have a header " * 20)
        with pytest.raises(StoreError, match="damaged or no job queue"):
            JobQueue(home)

    def test_in_an_impossible_place_is_refused(self, home):
        (home / "file").write_text("")
        with pytest.raises(StoreError, match="can't be created"):
            JobQueue(home / "file")

    def test_opened_by_many_at_once_is_made_once(self, home):
        open_at_once(lambda: JobQueue(home, busy_timeout_s=60))
