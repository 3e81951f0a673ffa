"""The store of many writers: what a lake alone has to promise. PostgreSQL and `make ducklake`; no GPU."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from dataclasses import replace

import pytest

from routesparse.engine.errors import ConfigError, StoreError
from routesparse.engine.scale import ducklake
from routesparse.engine.scale.ducklake import PREFIX, LakeStore, catalogue
from routesparse.engine.scale.moving import copy_store
from routesparse.engine.store import bundle, spool, trash
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.labels import Label
from routesparse.engine.store.opening import open_store
from routesparse.engine.store.owner_view import OwnerView
from tests import own_postgres
from tests.engine.store.all_rows import everything, rows_of


@pytest.fixture
def lake(lake_address, home):
    """An empty lake."""
    store = LakeStore(lake_address, home, home)
    yield store
    store.close()


@pytest.mark.parametrize(
    "address, told",
    [
        ("postgresql://u:secret@db", "must be ducklake:postgres:"),
        (f"{PREFIX}postgresql://ann:secret@host/db", "must be words"),
        (f"{PREFIX}host='h' password = 'se cret'", "~/.pgpass"),
    ],
)
def test_an_address_that_can_t_be_used_is_refused_without_its_password(address, told):
    with pytest.raises(ConfigError, match=told) as caught:
        catalogue(address)
    assert "secret" not in str(caught.value) and "se cret" not in str(caught.value)


def test_an_address_without_a_shared_folder_says_which_variable_is_missing(home, monkeypatch):
    monkeypatch.setenv("ROUTESPARSE_STORE", f"{PREFIX}dbname=lake")
    monkeypatch.delenv("ROUTESPARSE_SHARED", raising=False)
    with pytest.raises(ConfigError, match="ROUTESPARSE_SHARED is not"):
        open_store()


def test_without_the_extensions_the_error_says_what_installs_them(home, monkeypatch):
    monkeypatch.setattr(ducklake, "FOLDER", home / "nowhere")
    with pytest.raises(StoreError, match="`make ducklake`"):
        LakeStore(f"{PREFIX}dbname=lake", home, home)


def test_a_server_that_is_not_there_is_told_without_its_address(postgres, home):
    with pytest.raises(StoreError, match=r"PostgreSQL can't be reached.*correct ROUTESPARSE_STORE"):
        LakeStore(f"{PREFIX}host={home} dbname=lake", home, home)


def test_another_folder_than_the_lake_s_own_is_refused(lake, lake_address, home, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    with pytest.raises(StoreError, match="not the shared folder of this catalogue"):
        LakeStore(lake_address, other, home)
    elsewhere = shutil.copytree(home / "lake", other / "moved" / "lake").parent
    LakeStore(lake_address, elsewhere, home).close()
    lake.check_there()
    file = home / "lake" / "identity"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match="is the shared folder mounted"):
        lake.check_there()
    with pytest.raises(StoreError, match="not the shared folder"):
        LakeStore(lake_address, home, home)
    file.unlink()
    file.mkdir()
    with pytest.raises(StoreError, match="is the shared folder mounted"):
        lake.check_there()
    with lake.writing("") as cursor:
        cursor.execute("DELETE FROM lake_identity")
    with pytest.raises(StoreError, match="identity can't be used"):
        LakeStore(lake_address, home, home)


def test_another_process_s_run_is_seen_and_no_number_is_given_twice(
    lake, lake_address, small, factory, home, monkeypatch
):
    monkeypatch.setattr(ducklake, "_LOOK_S", 0.0)
    other = LakeStore(lake_address, home, home)
    try:
        before = lake.generation
        for store, run_id in ((lake, "mine"), (other, "theirs")):
            bundle.write_bundle(factory.rename(small, run_id), home / "spool")
            assert spool.ingest_spool(store).ingested == [run_id]
        assert OwnerView(lake, None).run_ids() == {"mine", "theirs"} and lake.generation > before
        other.delete_run("theirs")
        bundle.write_bundle(factory.rename(small, "third"), home / "spool")
        assert spool.ingest_spool(lake).ingested == ["third"]
        keys = dict(lake.rows("SELECT run_id, run_key FROM run"))
        assert keys == {"mine": 1, "third": 3}
    finally:
        other.close()


def test_one_bundle_that_two_take_in_at_once_is_stored_once(lake, lake_address, small, home, monkeypatch):
    """Both have read it before either writes."""
    other = LakeStore(lake_address, home, home)
    path = bundle.write_bundle(small, home / "spool")
    both = threading.Barrier(2, timeout=60)
    read = bundle.verified_tables

    def together(folder):
        found = read(folder)
        both.wait()
        return found

    monkeypatch.setattr(bundle, "verified_tables", together)
    said = []
    threads = [
        threading.Thread(target=lambda store=store: said.append(store.adopt(path, "spool", move=True)))
        for store in (lake, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    monkeypatch.undo()
    assert sorted(said, key=str) == ["5a11a11a11a1", None]
    assert (
        lake.rows("SELECT count(*) FROM run") == lake.rows("SELECT count(*) FROM ingested_bundle") == [(1,)]
    )
    bundle.verify_bundle(home / "bundles" / small.run.run_id)


def test_a_writer_that_lost_the_lock_commits_nothing(lake, small, home, monkeypatch):
    """The server ends the connection that holds it, so that another process could have it."""
    commit = LakeStore._commit
    path = bundle.write_bundle(small, home / "spool")

    def cut(self, cursor):
        with self._connection.cursor() as killer:
            sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            assert ducklake._asked(killer, sql) == "1"
        commit(self, cursor)

    with monkeypatch.context() as patch:
        patch.setattr(LakeStore, "_commit", cut)
        with pytest.raises(StoreError, match="was not stored"):
            lake.adopt(path, "spool", move=True)
    assert lake.rows("SELECT count(*) FROM run") == [(0,)]
    assert spool.ingest_spool(lake).ingested == [small.run.run_id]


def test_bundles_are_taken_in_together_and_a_bad_one_alone_is_set_aside(lake, small, factory, home):
    for number in range(4):
        bundle.write_bundle(factory.rename(small, f"good{number}"), home / "spool")
    bad = bundle.write_bundle(factory.rename(small, "bad"), home / "spool")
    (bad / "run.parquet").unlink()
    worse = replace(small, prompt=replace(small.prompt, text=small.prompt.text[:-1] + "\0"))
    bundle.write_bundle(factory.rename(worse, "nul"), home / "spool")
    before = lake.generation
    report = spool.ingest_spool(lake)
    assert sorted(report.ingested) == [f"good{number}" for number in range(4)] and not report.waiting
    assert lake.generation == before + 1
    reasons = {each.name: each.reason for each in report.rejected}
    assert "run.parquet is missing" in reasons["bad"] and "prompt.text holds a NUL" in reasons["nul"]
    assert lake.rows("SELECT count(*) FROM run_summary") == [(4,)]


def test_a_torn_or_missing_file_is_named_with_what_to_do_and_its_advice_brings_all_back(
    lake, lake_address, postgres, small, home
):
    lake.adopt(bundle.write_bundle(small, home / "spool"), "spool", move=True)
    before = rows_of(lake)
    file = min((home / "lake" / "main" / "candidate_score").glob("*.parquet"))
    for harm in (lambda: os.truncate(file, 20), file.unlink):
        harm()
        started = LakeStore(lake_address, home, home)
        with pytest.raises(
            StoreError, match=rf"{file.name} of the lake is damaged.*another database"
        ) as told:
            started.table("FROM candidate_score")
        started.close()
        assert "\n" not in str(told.value)
    (home / "lake").rename(home / "away")
    again = LakeStore(PREFIX + own_postgres.new_database(postgres, "again"), home, home)
    assert spool.recover(again).ingested == [small.run.run_id]
    assert rows_of(again) == before
    again.close()


def test_another_schema_is_refused(lake, lake_address, home):
    for version, cure in ((99, "upgrade"), (14, "name another database")):
        with lake.writing("") as cursor:
            cursor.execute("UPDATE schema_migration SET version = ?", [version])
        with pytest.raises(StoreError, match=f"schema {version}.*{cure}"):
            LakeStore(lake_address, home, home)


def test_labels_pins_and_trash_of_one_host_are_seen_by_the_other(
    lake, lake_address, small, factory, home, monkeypatch
):
    monkeypatch.setattr(ducklake, "_LOOK_S", 0.0)
    other = LakeStore(lake_address, home, home / "host 2")
    for name in ("one", "two"):
        lake.adopt(bundle.write_bundle(factory.rename(small, name), home / "made"), "spool", move=True)
    here, there = OwnerView(lake, None), OwnerView(other, None)

    def seen(view):
        labels = view.rows("SELECT run_id, name, pinned FROM run_label ORDER BY run_id")
        return view.run_ids(), labels, view.rows("SELECT run_id FROM trashed_run")

    here.set_label("one", Label("harbour", "notes", pinned=True))
    assert seen(there) == ({"one", "two"}, [("one", "harbour", True)], [])
    there.set_label("two", Label(pinned=True))
    assert seen(here)[1] == [("one", "harbour", False), ("two", None, True)]
    here.delete_run("one")
    assert seen(there)[::2] == ({"two"}, [("one",)])
    with pytest.raises(StoreError, match="not in the store"):
        there.delete_run("one")
    there.restore_run("one")
    assert seen(here)[::2] == ({"one", "two"}, [])
    there.delete_run("one")
    there.empty_trash(["one"])
    assert seen(here)[::2] == ({"two"}, []) and not (home / "trash" / "one").exists()
    other.close()


def test_a_store_goes_to_the_lake_and_back_whole(lake, small, factory, home):
    file = Store(home / "a" / "routesparse.duckdb")
    for run_id in ("one", "two", "gone", "bare"):
        file.adopt(bundle.write_bundle(factory.rename(small, run_id), home / "made"), "spool", move=True)
    file.adopt(bundle.write_bundle(factory.rename(small, "sample"), home / "made"), "sample", move=False)
    view = OwnerView(file, None)
    view.set_label("one", Label("harbour", "notes", ("a", "b"), pinned=True))
    file.delete_run("gone")
    file.delete_run("sample")
    trash.empty(file, ["sample"])
    shutil.rmtree(file.bundles / "bare")
    before = everything(file)
    there = copy_store(file, lake)
    assert (there.runs, there.already_there, there.trashed, there.without_bundle) == (3, 0, 1, ("bare",))
    assert everything(lake) == before == everything(file)
    assert copy_store(file, lake).runs == 0, "a second copy finds everything there"
    back = Store(home / "b" / "routesparse.duckdb")
    assert copy_store(lake, back).runs == 3
    assert everything(back) == before
    assert Counter(path.name for path in back.trash.iterdir()) == {"gone": 1}
    assert not spool.ingest_samples(back, home / "made"), "a deleted sample stays away"
    OwnerView(back, None).restore_run("gone")
    assert back.rows("SELECT count(*) FROM head_choice") == [(16,)]
    for store in (file, back):
        store.close()


def test_the_commands_say_where_runs_lie_and_copy_them(lake, small, factory, home, run, monkeypatch):
    lake.adopt(bundle.write_bundle(small, home / "made"), "spool", move=True)
    code, said, _ = run("store")
    assert (code, said.split(",")[0]) == (0, "lake: 1 runs")
    monkeypatch.setenv("ROUTESPARSE_HOME", str(home / "host"))
    waiting = bundle.write_bundle(factory.rename(small, "waiting"), home / "spool")
    code, _, told = run("store", "--to", "file")
    assert code != 0 and "waiting" in told and "Start the dashboard" in told
    shutil.rmtree(waiting)
    code, said, told = run("store", "--to", "file")
    assert code == 0 and said.startswith("1 runs copied and compared"), told
    monkeypatch.delenv("ROUTESPARSE_STORE")
    assert run("store")[1].startswith("file: 1 runs")
    assert run("store", "--to", "lake")[0] == 2
