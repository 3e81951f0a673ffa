"""Backup, restore and prune where the runs lie in a lake, and between both stores. PostgreSQL, DuckLake; no GPU."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from routesparse.engine.cli.main import main
from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.operations.backup import back_up, restore
from routesparse.engine.scale import ducklake
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.labels import Label
from routesparse.engine.store.opening import open_store
from routesparse.engine.store.owner_view import OwnerView
from tests.engine.store.all_rows import everything

OLD, NEW, GONE = "01d01d01d01d01d0", "2e2e2e2e2e2e2e2e", "3f3f3f3f3f3f3f3f"
# A dashboard's data access without its pages: takes in what comes, and deletes every third run.
WEB = """
import time
from routesparse.engine import paths
from routesparse.engine.store import spool
from routesparse.engine.store.opening import open_store
store, seen = open_store(), 0
print("open", flush=True)
while True:
    for run in spool.ingest_spool(store).ingested:
        seen += 1
        if seen % 3 == 0:
            store.delete_run(run)
        print(run, flush=True)
    time.sleep(0.01)
"""


def now() -> tuple:
    """Everything in the store that the environment names."""
    with closing(open_store()) as store:
        return everything(store)


def files(*folders: Path) -> dict[str, bytes]:
    """What lies in bundles, trash, spool and prompts."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for folder in folders
        for name in ("bundles", "trash", "spool", "prompts")
        for path in (folder / name).rglob("[!.]*")
        if path.is_file()
    }


def jobs(home: Path) -> list[tuple]:
    with closing(sqlite3.connect(home / "jobs.sqlite3")) as queue:
        return queue.execute("SELECT * FROM job ORDER BY 1").fetchall()


@pytest.fixture
def lived_in(lake_home, tmp_path, make):
    """A label and a pin, a run in the trash, one that waits in the spool, and one that was refused."""
    shared = tmp_path / "lake"
    with closing(open_store()) as store:
        bundle.write_bundle(make(GONE), shared / "spool")
        spool.ingest_spool(store)
        OwnerView(store, None).set_label(OLD, Label("harbour", "notes", ("a", "b"), pinned=True))
        store.delete_run(GONE)
    bundle.write_bundle(make("4a4a4a4a4a4a4a4a"), shared / "spool")
    spool.reject(
        bundle.write_bundle(make("5b5b5b5b5b5b5b5b"), shared / "spool"), "a reason", shared / "spool"
    )
    return lake_home


def test_a_lake_s_backup_comes_back_whole_in_another_lake_and_in_a_file(
    lived_in, tmp_path, make, new_lake, monkeypatch, capsys
):
    rows, kept, queue = now(), files(lived_in, tmp_path / "lake"), jobs(lived_in)
    assert rows[0]["run"].total() == 2 and rows[0]["head_choice"].total() > 4 and all(rows[1])
    assert main(["backup", str(tmp_path / "kept"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 2
    other = tmp_path / "other"
    new_lake(other)
    with closing(open_store()) as store:
        store.adopt(bundle.write_bundle(make("6c6c6c6c6c6c6c6c"), other / "spool"), "spool", move=True)
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "new"))
    assert main(["restore", str(tmp_path / "kept")]) == 2
    told = capsys.readouterr().err
    assert "1 runs that the backup lacks (6c6c" in told and "store --to lake" in told
    assert not (tmp_path / "new").exists()
    other = tmp_path / "empty"
    new_lake(other)
    assert main(["restore", str(tmp_path / "kept")]) == 0
    assert f"in the lake of {other}" in capsys.readouterr().out
    assert now() == rows and files(tmp_path / "new", other) == kept and jobs(tmp_path / "new") == queue
    assert not list((tmp_path / "new").glob("routesparse.duckdb*"))
    for name in ("ROUTESPARSE_STORE", "ROUTESPARSE_SHARED"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "file"))
    assert main(["restore", str(tmp_path / "kept")]) == 0
    assert now() == rows and files(tmp_path / "file") == kept and jobs(tmp_path / "file") == queue


def test_a_backup_of_a_busy_lake_holds_every_run_that_was_finished_before_it(
    lake_home, tmp_path, make, monkeypatch
):
    shared = tmp_path / "lake"
    web = subprocess.Popen([sys.executable, "-c", WEB], stdout=subprocess.PIPE, env=os.environ, text=True)
    try:
        assert web.stdout.readline() == "open\n"
        runs = [f"{part:016d}" for part in range(3)]
        for run in runs:
            bundle.write_bundle(make(run), shared / "spool")
        web.stdout.readline()
        back_up(lake_home, tmp_path / "kept")
        for name in ("ROUTESPARSE_STORE", "ROUTESPARSE_SHARED"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "copy"))
        restore(tmp_path / "kept", tmp_path / "copy")
        with closing(open_store()) as store:
            spool.recover(store)
            spool.ingest_spool(store)
            thrown = {path.name for path in store.trash.iterdir()}
            assert store.run_ids() | thrown == {OLD, NEW, *runs}
            assert store.rows("SELECT run_id FROM stored GROUP BY 1 HAVING count(*) > 1") == []
    finally:
        web.kill()
        web.wait(10)
        web.stdout.close()


def test_a_bundle_that_a_backup_caught_before_its_rows_comes_back_also_at_a_second_try(
    lake_home, tmp_path, new_lake, make, monkeypatch
):
    deleted = make("3a3a3a3a3a3a3a3a")
    for folder in ("bundles", "trash"):  # deleted while the backup was made: the copy has it in both
        bundle.write_bundle(deleted, tmp_path / "lake" / folder)
    bundle.write_bundle(make(GONE), tmp_path / "lake" / "bundles")
    for place in ("lake", "home"):
        with pytest.raises(InputError, match="hold its own backups"):
            back_up(lake_home, tmp_path / place / "kept")
    back_up(lake_home, tmp_path / "kept")
    new_lake(tmp_path / "other")
    with closing(open_store()) as dashboard:
        bundle.write_bundle(make("5a5a5a5a5a5a5a5a"), tmp_path / "samples")
        spool.ingest_samples(dashboard, tmp_path / "samples")
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path))
    with pytest.raises(InputError, match="ROUTESPARSE_SHARED lies in the home"):
        restore(tmp_path / "kept", tmp_path, replace=True)
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "new"))
    rename = Path.rename

    def refused(path, target):
        if path.name == ".new.partial":
            raise OSError(28, "No space left on device", str(target))
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        with pytest.raises(StoreError, match="call it again"):
            restore(tmp_path / "kept", tmp_path / "new")
    with closing(open_store()) as dashboard:
        assert spool.ingest_spool(dashboard).ingested == [GONE]
    restore(tmp_path / "kept", tmp_path / "new")
    with closing(open_store()) as dashboard:
        spool.ingest_spool(dashboard)
        assert dashboard.run_ids() == {OLD, NEW, GONE, "5a5a5a5a5a5a5a5a"}, "a sample is nobody's"
        assert {path.name for path in dashboard.trash.iterdir()} == {deleted.run.run_id}


def test_a_shared_spool_of_one_dashboard_is_in_the_backup_and_comes_back(home, tmp_path, make, monkeypatch):
    shared = tmp_path / "shared"
    monkeypatch.setenv("ROUTESPARSE_SHARED", str(shared))
    with pytest.raises(StoreError, match="is the shared folder mounted"):
        back_up(home, tmp_path / "early")
    open_store().close()
    waiting = bundle.write_bundle(make(GONE), shared / "spool")
    before = "6c6c6c6c6c6c6c6c"  # from the time without a shared folder
    bundle.write_bundle(make(before), home / "spool")
    back_up(home, tmp_path / "kept")
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "new"))
    shutil.rmtree(waiting)
    restore(tmp_path / "kept", tmp_path / "new")
    with closing(open_store()) as store:
        assert sorted(spool.ingest_spool(store).ingested) == [GONE, before]
        assert store.run_ids() == {OLD, NEW, GONE, before}


def text_anywhere(text: str, shared: Path) -> bool:
    """Whether PostgreSQL's tables or a file of the shared folder hold it."""
    with closing(open_store()) as lake, lake._cursor() as cursor:
        sql = "SELECT table_name FROM routesparse.ducklake_inlined_data_tables"
        names = [row[0] for row in cursor.execute(f"FROM postgres_query('catalogue', '{sql}')").fetchall()]
        names += ["ducklake_table_column_stats", "ducklake_file_column_stats"]
        told = "".join(
            str(
                cursor.execute(
                    f"FROM postgres_query('catalogue', 'SELECT * FROM routesparse.{name}')"
                ).fetchall()
            )
            for name in names
        )
        for file in (shared / "lake" / "main" / "prompt").glob("*.parquet"):
            told += str(ducklake.duckdb.sql(f"SELECT * FROM read_parquet('{file}')").fetchall())
    return text in told


def test_prune_removes_old_runs_of_a_lake_for_good_under_a_dashboard_that_reads_on(
    lake_home, tmp_path, make, monkeypatch, capsys
):
    monkeypatch.setattr(ducklake, "READERS_S", 0.0)
    shared, secret = (
        tmp_path / "lake",
        "~swordfish in the harbour",
    )  # the last of all texts, which DuckLake notes
    dashboard = open_store()
    for number in range(6):
        made = make(f"{number:016d}", created_at="2026-01-03T00:00:00+00:00")
        with_text = replace(made.prompt, text=secret + made.prompt.text[len(secret) :])
        bundle.write_bundle(replace(made, prompt=with_text), shared / "spool")
    assert len(spool.ingest_spool(dashboard).ingested) == 6
    kept = OwnerView(dashboard, "a" * 32)
    before = kept.frame("SELECT * FROM candidate_score ORDER BY ALL")
    assert text_anywhere(secret, shared) and len(before)
    assert main(["prune", "--older-than", "30d", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert sorted(found) == sorted([OLD, *(f"{number:016d}" for number in range(6))])
    assert len(dashboard.run_ids()) == 8
    scores = shared / "lake" / "main" / "candidate_score"
    parquet = sum(path.stat().st_size for path in scores.iterdir())
    assert main(["prune", "--older-than", "30d", "--keep", OLD, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] > 0
    assert sum(path.stat().st_size for path in scores.iterdir()) < parquet
    assert dashboard.run_ids() == {OLD, NEW} and {path.name for path in (shared / "bundles").iterdir()} == {
        OLD,
        NEW,
    }
    assert not list((shared / "trash").iterdir()) and not text_anywhere(secret, shared)
    monkeypatch.setattr(ducklake, "_LOOK_S", 0.0)
    assert kept.frame("SELECT * FROM candidate_score ORDER BY ALL").equals(before)
    bundle.write_bundle(make("ffffffffffffffff"), shared / "spool")
    assert spool.ingest_spool(dashboard).ingested == ["ffffffffffffffff"]
    assert dashboard.rows("SELECT max(run_key) FROM run") == [(9,)], "numbers go on where they were"
    assert not text_anywhere(secret, shared), "an open dashboard does not write it again"
    with closing(open_store()) as other:
        for store in (dashboard, other):
            assert store.rows("SELECT run_id FROM run WHERE run_id >= ? ORDER BY 1", ["2"]) == [
                (NEW,), ("ffffffffffffffff",)]  # fmt: skip
    dashboard.close()


def test_a_lake_that_could_not_be_compacted_is_told_with_what_was_done(lake_home, monkeypatch, capsys):
    monkeypatch.setattr(ducklake, "_STEPS", ("no_such_function('lake')",))
    assert main(["prune", "--older-than", "30d"])
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "the runs were removed, but the lake was not compacted" in told and "next prune does the rest" in told
    )
    assert "nothing was changed" not in told
    with closing(open_store()) as store:
        assert store.run_ids() == {NEW}


def test_prune_takes_the_files_of_writers_that_died_and_leaves_those_that_write(
    lake_home, tmp_path, monkeypatch
):
    monkeypatch.setattr(ducklake, "READERS_S", 0.0)
    folder = tmp_path / "lake" / "lake" / "main" / "run"
    folder.mkdir(parents=True, exist_ok=True)
    dead, alive = folder / "dead.parquet", folder / "alive.parquet"
    for file in (dead, alive):
        file.write_bytes(b"PAR1")
    live = [file for file in (tmp_path / "lake" / "lake").rglob("*.parquet") if file not in (dead, alive)]
    assert live, "old files with rows, which are nobody's orphans"
    for file in (dead, *live):
        os.utime(file, (1e9, 1e9))
    rows = now()
    with closing(open_store()) as lake:
        lake.compact()
    assert not dead.exists() and alive.exists() and now() == rows
    assert (tmp_path / "lake" / "lake" / "identity").is_file()
