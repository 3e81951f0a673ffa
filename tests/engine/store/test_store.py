"""The DuckDB store: ingest, deletion, versions, threads, kill -9. No GPU."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from routesparse.engine import shared_folder
from routesparse.engine.errors import StoreError
from routesparse.engine.store import bundle, duckdb_store, label_queries, queries, spool
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.labels import Label
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.tables import FACT_TABLES

# What the lake does in another way is held to the same; it takes a second to open.
both = pytest.mark.parametrize("opened", ["file", "lake"], indirect=True)


def counts(store):
    return {table: store.rows(f"SELECT count(*) FROM {table}")[0][0] for table in ("run", *FACT_TABLES)}


@both
def test_ingest_keeps_every_row_and_the_bundle(store, record, home):
    path = bundle.write_bundle(record, home / "spool")
    assert spool.ingest_spool(store).ingested == [record.run.run_id]
    assert not path.exists()
    bundle.verify_bundle(store.bundles / record.run.run_id)
    found = counts(store)
    assert found["candidate_score"] == len(record.candidates)
    assert found["probe_meta"] == len(record.probes)
    assert found["prompt"] == 1
    assert queries.run(OwnerView(store, None), record.run.run_id) == record.run


def test_bundles_are_taken_in_together_and_a_bad_one_alone_is_set_aside(store, small, factory, home):
    together = store.AT_ONCE
    for number in range(2 * together - 1):
        bundle.write_bundle(factory.rename(small, f"good{number}"), home / "spool")
    bad = bundle.write_bundle(factory.rename(small, "bad"), home / "spool")
    (bad / "run.parquet").unlink()
    before = store.generation
    report = spool.ingest_spool(store)
    assert sorted(report.ingested) == sorted(f"good{number}" for number in range(2 * together - 1))
    assert [each.name for each in report.rejected] == ["bad"] and not report.waiting
    assert store.generation == before + 2, "one change for each transaction"
    assert counts(store)["run"] == 2 * together - 1
    assert store.rows("SELECT count(*) FROM run_summary") == [(2 * together - 1,)]


def test_of_four_bundles_the_one_whose_insert_fails_alone_is_left_behind(
    store, small, factory, home, monkeypatch
):
    """The transaction of all fails half-way, by what the tables refuse and by what nobody thought of."""
    listed = duckdb_store._list_bundle

    def fail(cursor, manifest, origin):
        if manifest.run_id == "refused":
            raise duckdb.DataError("no")
        if manifest.run_id == "unexpected":
            raise ValueError
        listed(cursor, manifest, origin)

    monkeypatch.setattr(duckdb_store, "_list_bundle", fail)
    for wrong in ("refused", "unexpected"):
        names = [f"{name}-{wrong}" for name in ("a", "b", "c")]
        for name in (*names, wrong):
            bundle.write_bundle(factory.rename(small, name), home / "spool")
        report = spool.ingest_spool(store)
        assert sorted(report.ingested) == names
        assert [one.name for one in report.rejected] == [wrong] and not report.waiting
        assert "a-" not in report.rejected[0].reason, "it does not name the others"
        assert not store.unlisted
    assert counts(store)["run"] == 6


def test_a_bundle_whose_columns_may_all_be_null_comes_in_beside_another(store, small, factory, home):
    """As polars or DuckDB write them."""
    for name in ("one", "two"):
        path = bundle.write_bundle(factory.rename(small, name), home / "spool")
    manifest = json.loads((path / bundle.MANIFEST).read_text())
    for file in path.glob("*.parquet"):
        data = pq.read_table(file)
        loose = pa.schema([field.with_nullable(True) for field in data.schema])
        pq.write_table(data.cast(loose), file)
        manifest["files"][file.name]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (path / bundle.MANIFEST).write_text(json.dumps(manifest))
    before = store.generation
    assert sorted(spool.ingest_spool(store).ingested) == ["one", "two"]
    assert store.generation == before + 1, "in one transaction"


def visible(folder):
    """What lies there beside the mark of a shared folder."""
    return {path.name for path in folder.iterdir()} - {shared_folder.MARK}


@both
def test_same_id_with_other_contents_is_rejected(store, take_in, small, home):
    take_in(small)
    bundle.write_bundle(replace(small, run=replace(small.run, tau=0.5)), home / "spool")
    report = spool.ingest_spool(store)
    assert "other contents" in report.rejected[0].reason
    assert queries.run(OwnerView(store, None), small.run.run_id).tau == small.run.tau


def test_bad_bundle_is_set_aside_with_its_reason_and_the_store_unchanged(store, small, factory, home):
    bundle.write_bundle(small, home / "spool")
    bad = bundle.write_bundle(factory.rename(small, "bad0bad0"), home / "spool")
    (bad / "layer_run.parquet").write_bytes(b"cut off")
    report = spool.ingest_spool(store)
    assert report.ingested == [small.run.run_id]
    assert [rejection.name for rejection in report.rejected] == ["bad0bad0"]
    assert "checksum" in (home / "spool" / "rejected" / "bad0bad0.txt").read_text()
    assert (home / "spool" / "rejected" / "bad0bad0" / "manifest.json").exists()
    assert counts(store)["run"] == 1
    assert not spool.ingest_spool(store)
    spool.discard_rejection("bad0bad0")
    assert spool.rejections() == []


@pytest.mark.parametrize("link", [True, False])
def test_what_a_manifest_does_not_name_is_not_taken_in(store, small, home, link):
    path = bundle.write_bundle(small, home / "spool")
    (home / "secret").write_text("elsewhere")
    if link:
        (path / "notes").symlink_to(home / "secret")
    else:
        (path / "notes").write_text("of somebody")
    (rejection,) = spool.ingest_spool(store).rejected
    assert "also holds 'notes', which its manifest does not name; remove it" in rejection.reason
    assert not list(store.bundles.iterdir()) and (home / "secret").read_text() == "elsewhere"
    back = home / "spool" / small.run.run_id
    (home / "spool" / "rejected" / small.run.run_id).rename(back)
    (back / "notes").unlink()
    assert spool.ingest_spool(store).ingested == [small.run.run_id]


def test_a_sample_is_copied_without_what_lies_beside_it(store, small, home):
    path = bundle.write_bundle(small, home / "samples")
    (path / "notes").symlink_to("/etc/hostname")
    assert spool.ingest_samples(store, home / "samples").ingested == [small.run.run_id]
    taken = {file.name for file in (store.bundles / small.run.run_id).iterdir()}
    assert taken == {file.name for file in path.iterdir()} - {"notes"}


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_bad_bundle_is_set_aside_where_the_disk_has_no_room_for_its_reason(
    store, small, factory, home, monkeypatch
):
    good, bad = (bundle.write_bundle(factory.rename(small, name), home / "spool") for name in ("bb", "aa"))
    (bad / "run.parquet").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full_disk)
        report = spool.ingest_spool(store)
        assert "run.parquet is missing" in report.rejected[0].reason
        (listed,) = spool.rejections()
    assert (listed.name, report.ingested) == ("aa", ["bb"]) and "could not be written" in listed.reason
    assert not bad.exists() and not good.exists()
    spool.discard_rejection("aa")
    assert not list((home / "spool" / "rejected").iterdir())


def test_a_bad_bundle_waits_where_it_can_not_even_be_moved_and_the_others_come_in(
    store, small, factory, home
):
    good, bad = (bundle.write_bundle(factory.rename(small, name), home / "spool") for name in ("bb", "aa"))
    (bad / "run.parquet").unlink()
    (home / "spool" / "rejected").write_text("a file where the folder should be")
    report = spool.ingest_spool(store)
    assert report.ingested == ["bb"] and not good.exists() and bad.exists()
    (waiting,) = report.waiting
    assert "run.parquet is missing" in waiting.reason and "could not be set aside (File" in waiting.reason
    (home / "spool" / "rejected").unlink()
    assert spool.ingest_spool(store).rejected[0].name == "aa"


def test_whatever_lies_in_the_spool_is_set_aside_and_the_others_come_in(store, small, home):
    folder = home / "spool"
    bundle.write_bundle(small, folder)
    (folder / "new\nline").mkdir()
    os.mkdir(os.fsencode(folder) + b"/no text \xff")
    (folder / ("ü" * 127)).mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "notes.txt").write_text("hello")
    os.mkfifo(folder / "pipe")
    (folder / "piped").mkdir()
    os.mkfifo(folder / "piped" / bundle.MANIFEST)
    report = spool.ingest_spool(store)
    assert report.ingested == [small.run.run_id]
    assert visible(folder) == {"rejected"}
    names = {rejection.name for rejection in spool.rejections()}
    assert names == {"new?line", "no text ?", "ü" * 100, "loop", "notes.txt", "pipe", "piped"}
    for name in names:
        spool.discard_rejection(name)
    assert list((folder / "rejected").iterdir()) == []


@both
def test_deleted_run_can_be_restored(store, take_in, small):
    take_in(small)
    before = counts(store)
    store.delete_run(small.run.run_id)
    assert set(counts(store).values()) == {0}
    assert not (store.bundles / small.run.run_id).exists()
    view = OwnerView(store, None)
    view.restore_run(small.run.run_id)
    assert counts(store) == before
    with pytest.raises(StoreError, match="not in the store"):
        view.delete_run("unknown1")


@both
def test_deleted_sample_does_not_come_back_by_itself(store, small, home):
    samples = home / "samples"
    bundle.write_bundle(small, samples)
    assert spool.ingest_samples(store, samples).ingested == [small.run.run_id]
    assert (samples / small.run.run_id).exists()
    assert not spool.ingest_samples(store, samples)
    store.delete_run(small.run.run_id)
    assert not spool.ingest_samples(store, samples)


def test_bundle_that_reached_the_folder_but_not_the_tables_is_recovered(store, small):
    bundle.write_bundle(small, store.bundles)
    assert spool.recover(store).ingested == [small.run.run_id]


def test_old_leftovers_and_old_trash_are_swept(store, small, home):
    fresh, stale = (home / "spool" / f"{bundle.TEMPORARY_PREFIX}{name}" for name in ("fresh", "stale"))
    trashed = store.trash / "deleted-long-ago"
    for folder in (fresh, stale, trashed):
        folder.mkdir(parents=True)
    for folder in (stale, trashed):
        os.utime(folder, (0, 0))
    spool.sweep(store)
    assert fresh.exists() and not stale.exists() and not trashed.exists()


def test_a_file_of_a_newer_version_is_refused_untouched(home):
    path = home / "routesparse.duckdb"
    Store(path).close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE schema_migration SET version = 99")
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(StoreError, match=r"schema 99.*upgrade RouteSparse"):
        Store(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_a_store_of_an_older_version_is_made_anew_and_loses_nothing(store, take_in, opened, small, home):
    """Every row is there again, and what people added; the old file lies beside the new one."""
    take_in(small)
    OwnerView(store, None).set_label(small.run.run_id, Label("kept", "a note", ("one", "two"), True))
    before = counts(store)
    store.close()
    with duckdb.connect(str(store.database)) as connection:
        connection.execute("UPDATE schema_migration SET version = 15")
    again = opened()
    assert spool.recover(again).ingested == [small.run.run_id] and counts(again) == before
    assert label_queries.label(OwnerView(again, None), small.run.run_id).notes == "a note"
    again.close()
    assert (home / "routesparse.schema15.duckdb").exists() and not list(home.glob("*.new*"))


def test_file_that_is_no_database_is_refused_and_untouched(home):
    path = home / "routesparse.duckdb"
    path.write_bytes(b"no database")
    with pytest.raises(StoreError, match="can't be opened"):
        Store(path)
    assert path.read_bytes() == b"no database"


def test_second_process_is_told_that_the_file_is_held(home):
    code = "from routesparse.engine.store.duckdb_store import Store; import sys; Store(sys.argv[1])"
    with contextlib.closing(Store(home / "routesparse.duckdb")):
        result = subprocess.run(
            [sys.executable, "-c", code, str(home / "routesparse.duckdb")], capture_output=True, text=True
        )
    assert "held by another process" in result.stderr


@pytest.fixture
def no_space(monkeypatch):
    """A context in which no insert succeeds, as on a full disk."""

    @contextmanager
    def full():
        insert = Store._insert_all

        def fail(self, given, origin):
            wrong = [
                (manifest, {**data, "run": data["run"].append_column("no_column", [[1]])})
                for manifest, data in given
            ]
            with pytest.raises(StoreError) as caught:
                insert(self, wrong, origin)
            raise caught.value

        with monkeypatch.context() as patch:
            patch.setattr(Store, "_insert_all", fail)
            yield

    return full


@both
def test_failed_insert_survives_a_restart(store, opened, small, home, no_space):
    bundle.write_bundle(small, home / "spool")
    with no_space():
        assert spool.ingest_spool(store).waiting
    store.close()
    again = opened()
    with no_space():
        assert spool.recover(again).waiting and spool.ingest_spool(again).waiting
    assert spool.ingest_spool(again).ingested == [small.run.run_id]


def test_a_sample_that_had_to_wait_is_a_sample_when_it_comes_in(store, small, home, no_space):
    """Everybody sees samples, whose runs have no owner."""
    bundle.write_bundle(small, home / "samples")
    with no_space():
        assert spool.ingest_samples(store, home / "samples").waiting
    assert spool.ingest_spool(store).ingested == [small.run.run_id]
    assert OwnerView(store, "somebody").run_ids() == {small.run.run_id}
    assert not spool.ingest_samples(store, home / "samples")


def test_an_unexpected_failure_after_the_move_waits_and_is_told(store, small, home, monkeypatch):
    bundle.write_bundle(small, home / "spool")

    def fail(*arguments):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_insert_all", fail)
        report = spool.ingest_spool(store)
    assert "unexpected MemoryError" in report.waiting[0].reason and not report.rejected
    assert spool.ingest_spool(store).ingested == [small.run.run_id]


def test_a_waiting_bundle_that_broke_meanwhile_is_set_aside(store, small, home, no_space):
    bundle.write_bundle(small, home / "spool")
    with no_space():
        assert spool.ingest_spool(store).waiting
    (store.bundles / small.run.run_id / "run.parquet").write_bytes(b"")
    assert [r.name for r in spool.ingest_spool(store).rejected] == [small.run.run_id]
    assert not spool.ingest_spool(store).waiting and not store.unlisted


@both
def test_threads_read_while_another_writes(store, take_in, small, factory, home):
    take_in(small)
    problems = []
    reads, runs = (40, 10) if type(store) is Store else (5, 3)  # a lake's take fifty times as long

    def read():
        for _ in range(reads):
            try:
                assert len(queries.choices(OwnerView(store, None), small.run.run_id, 0)) == 4
                assert len(queries.runs(OwnerView(store, None))) >= 1
            except Exception as error:  # noqa: BLE001  (collected, asserted below)
                problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(runs):
        bundle.write_bundle(factory.rename(small, f"more{i}"), home / "spool")
        spool.ingest_spool(store)
    for thread in threads:
        thread.join()
    assert not problems
    assert counts(store)["run"] == runs + 1


INGESTER = """
import sys
from pathlib import Path
from routesparse.engine.store import spool
from routesparse.engine.store.opening import open_store
store = open_store()
store.AT_ONCE = 4
print("ready", flush=True)
while True:
    spool.ingest_spool(store, Path(sys.argv[1]) / "spool")
"""


@both
def test_kill_while_ingesting_leaves_whole_runs_only(opened, small, factory, home):
    ids = [f"kill{i:03d}" for i in range(9)]
    for run_id in ids:
        bundle.write_bundle(factory.rename(small, run_id), home / "ready")
    shutil.copytree(home / "ready", home / "spool", dirs_exist_ok=True)
    process = subprocess.Popen([sys.executable, "-c", INGESTER, str(home)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    # With the fifth, one transaction is over.
    while len(list((home / "bundles").glob("kill*"))) <= 4:
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(0.15)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    store = opened()
    found = counts(store)
    assert found["run"] > 0
    for table, per_run in (("layer_run", 2), ("head_choice", 4), ("candidate_score", 84), ("audit", 4)):
        assert found[table] == found["run"] * per_run
    spool.recover(store)
    spool.ingest_spool(store)
    assert store.run_ids() == set(ids)
    assert counts(store)["candidate_score"] == 84 * len(ids)
