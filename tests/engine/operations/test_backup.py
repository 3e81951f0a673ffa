"""Backup and restore: every row, file and job comes back; damage and existing homes are told. CPU."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from routesparse.engine import shared_folder
from routesparse.engine.cli.main import main
from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.operations import backup
from routesparse.engine.operations.backup import MANIFEST, back_up, restore
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.duckdb_store import Store

# A dashboard's data access without its pages: takes in bundles as they come, and never closes the database.
WEB = """
import sys, time
from pathlib import Path
from routesparse.engine.store import spool
from routesparse.engine.store.duckdb_store import Store
home = Path(sys.argv[1])
store = Store(home / "routesparse.duckdb")
print("open", flush=True)
while True:
    for run in spool.ingest_spool(store, home / "spool").ingested:
        print(run, flush=True)
    time.sleep(0.01)
"""


def rows_of(home) -> dict[str, list[tuple]]:
    """Every row of every table of the database and of the queue."""
    store = Store(home / "routesparse.duckdb")
    names = [
        row[0]
        for row in store.rows("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' ORDER BY 1")
    ]
    found = {name: store.rows(f"SELECT * FROM main.{name} ORDER BY ALL") for name in names}
    store.close()
    with sqlite3.connect(home / "jobs.sqlite3") as queue:
        for name in ("job", "worker"):
            found[name] = queue.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()
    queue.close()
    return found


def files_of(home) -> dict[str, bytes]:
    return {
        path.relative_to(home).as_posix(): path.read_bytes()
        for folder in ("bundles", "prompts", "logs")
        for path in (home / folder).rglob("*")
        if path.is_file()
    }


def test_round_trip_gives_every_row_and_every_file_back(home, tmp_path):
    rows, files = rows_of(home), files_of(home)
    assert len(rows["run"]) == 2 and len(rows["job"]) == 3 and len(rows["head_choice"]) > 4
    held = back_up(home, tmp_path / "kept")
    assert (held.runs, held.jobs) == (2, 3)
    again, aside = restore(tmp_path / "kept", tmp_path / "new")
    assert again == held and aside is None
    assert rows_of(tmp_path / "new") == rows and files_of(tmp_path / "new") == files
    assert not (tmp_path / "new" / "models").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]


def test_a_backup_of_a_busy_home_holds_every_run_that_was_finished_before_it(home, make, tmp_path):
    """A dashboard takes bundles in, a submitter adds jobs, and backups are made meanwhile."""
    environment = {**os.environ, "ROUTESPARSE_HOME": str(home)}
    web = subprocess.Popen(
        [sys.executable, "-c", WEB, str(home)], stdout=subprocess.PIPE, env=environment, text=True
    )
    try:
        assert web.stdout.readline() == "open\n"
        finished = {path.name for path in (home / "bundles").iterdir()}
        for number in range(3):
            for part in range(3):
                run = f"{number:08d}{part:08d}"
                bundle.write_bundle(make(run), home / "spool")
                finished.add(run)
            target = tmp_path / f"kept{number}"
            back_up(home, target)
            copy = tmp_path / f"home{number}"
            restore(target, copy)
            store = Store(copy / "routesparse.duckdb")
            spool.recover(store)
            spool.ingest_spool(store, copy / "spool")
            assert store.run_ids() == finished
            store.close()
    finally:
        web.kill()
        web.wait(10)
        web.stdout.close()


def test_a_run_that_ends_after_its_job_was_copied_is_met_by_another_try(home, tmp_path, monkeypatch):
    """Otherwise the restored home would hold the run and a job that makes it once more."""
    copy, tries = backup._copy_queue, []

    def copied(file, into):
        jobs, running = copy(file, into)
        tries.append(running)
        done = next(path.name for path in (home / "bundles").iterdir())
        return jobs, [done] if len(tries) == 1 else running

    monkeypatch.setattr(backup, "_copy_queue", copied)
    monkeypatch.setattr(backup, "PAUSE_S", 0.0)
    back_up(home, tmp_path / "kept")
    assert len(tries) == 2


def test_a_home_that_cannot_take_its_place_leaves_the_one_before(home, tmp_path, monkeypatch):
    back_up(home, tmp_path / "kept")
    files, rename = files_of(home), Path.rename

    def refused(path, target):
        if path.name.endswith(".partial"):
            raise OSError(errno.EBUSY, "busy", str(target))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(StoreError, match="nothing was restored"):
        restore(tmp_path / "kept", home, replace=True)
    assert files_of(home) == files


def test_a_job_that_ran_while_it_was_copied_runs_again(home, tmp_path):
    queue = JobQueue(home)
    claim = queue.claim("gone", lease_s=0.01)
    queue.close()
    back_up(home, tmp_path / "kept")
    restore(tmp_path / "kept", tmp_path / "new")
    time.sleep(0.02)
    queue = JobQueue(tmp_path / "new")
    assert queue.requeue_lost() == [claim.job_id]
    assert queue.prompts.read(claim.job_id) == b"the text of waits.txt"
    queue.close()


@pytest.mark.parametrize("harm", ["flip", "missing", "outside", "no manifest", "newer"])
def test_a_damaged_backup_is_refused_and_leaves_no_home(home, tmp_path, harm):
    kept = tmp_path / "kept"
    back_up(home, kept)
    values = json.loads((kept / MANIFEST).read_text())
    file = kept / "routesparse.duckdb"
    if harm == "flip":
        content = bytearray(file.read_bytes())
        content[5000] ^= 1
        file.write_bytes(content)
    elif harm == "missing":
        file.unlink()
    elif harm == "outside":
        values["files"]["../stray"] = "0" * 64
        (kept / MANIFEST).write_text(json.dumps(values))
    elif harm == "newer":
        (kept / MANIFEST).write_text(json.dumps({**values, "version": 2}))
    else:
        (kept / MANIFEST).unlink()
    with pytest.raises(InputError):
        restore(kept, tmp_path / "new")
    assert not (tmp_path / "new").exists() and not (tmp_path / "stray").exists()


def test_an_existing_home_is_kept_unless_asked_and_then_moved_aside(home, tmp_path):
    back_up(home, tmp_path / "kept")
    rows = rows_of(home)
    with pytest.raises(InputError, match="pass --replace to move it aside"):
        restore(tmp_path / "kept", home)
    (home / "mine.txt").write_text("mine")
    _, aside = restore(tmp_path / "kept", home, replace=True)
    assert (aside / "mine.txt").read_text() == "mine" and not (home / "mine.txt").exists()
    assert rows_of(home) == rows == rows_of(aside)


@pytest.mark.parametrize("target", ["kept", "home/kept"])
def test_a_target_that_exists_or_lies_in_the_home_is_refused(home, tmp_path, target):
    (tmp_path / "kept").mkdir()
    with pytest.raises(InputError, match="name a"):
        back_up(home, tmp_path / target)


def test_a_home_that_never_holds_still_is_told_and_nothing_stays(home, tmp_path, monkeypatch):
    monkeypatch.setattr(backup, "TRIES", 2)
    monkeypatch.setattr(backup, "PAUSE_S", 0.0)
    ticks = iter(range(1000))
    monkeypatch.setattr(backup, "_stamp", lambda path: (next(ticks), 0, 0))
    with pytest.raises(StoreError, match="try again later"):
        back_up(home, tmp_path / "kept")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_with_a_shared_queue_both_commands_say_what_is_left_out(home, tmp_path, monkeypatch, capsys):
    shared = tmp_path / "shared"
    monkeypatch.setenv("ROUTESPARSE_SHARED", str(shared))
    shared_folder.mark()
    monkeypatch.setenv("ROUTESPARSE_QUEUE", "postgres:host=nowhere dbname=x user=ann")
    assert main(["backup", str(tmp_path / "kept"), "--json"]) == 0
    out, told = capsys.readouterr()
    assert json.loads(out)["runs"] == 2 and set(json.loads(out)) == {"path", "runs", "jobs", "files"}
    assert "the jobs of ROUTESPARSE_QUEUE are not in this backup" in " ".join(told.split())
    assert str(shared) in "".join(told.split()) and "pg_dump" in told
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "new"))
    assert main(["restore", str(tmp_path / "kept"), "--json"]) == 0
    out, told = capsys.readouterr()
    assert json.loads(out)["runs"] == 2 and "nothing reads them while ROUTESPARSE_QUEUE" in " ".join(
        told.split()
    )
    assert all(str(folder) in "".join(told.split()) for folder in (tmp_path / "new", shared))
    monkeypatch.delenv("ROUTESPARSE_QUEUE")
    assert main(["backup", str(tmp_path / "again"), "--json"]) == 0
    assert not capsys.readouterr().err
