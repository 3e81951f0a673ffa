"""A home with two runs of two owners, a job in each state that matters, and a prompt."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import bundle, overview, spool
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.opening import open_store

OLD, NEW = "01d01d01d01d01d0", "2e2e2e2e2e2e2e2e"
OWNER = "a" * 32


@pytest.fixture(scope="session")
def make(factory):
    def small(run_id, **values):
        record = factory.make_record(run_id, layers=2, heads=2, segments=1, tokens=2048, probe_columns=16)
        return replace(record, run=replace(record.run, **values))

    return small


@pytest.fixture
def home(tmp_path, monkeypatch, make):
    folder = tmp_path / "home"
    monkeypatch.setenv("ROUTESPARSE_HOME", str(folder))
    store = Store(folder / "routesparse.duckdb")
    fill_store(store, folder / "spool", make)
    fill_home(folder)
    return folder


def fill_store(store, folder, make):
    bundle.write_bundle(make(OLD, created_at="2026-01-02T03:04:05+00:00"), folder)
    bundle.write_bundle(make(NEW, owner=OWNER, created_at="2099-01-01T00:00:00+00:00"), folder)
    assert len(spool.ingest_spool(store, folder).ingested) == 2
    overview.write(store)
    store.close()


def fill_home(folder):
    queue = JobQueue(folder)
    for label in ("done.txt", "failed.txt", "waits.txt"):
        queue.submit(RunRequest(label=label), f"the text of {label}")
    queue.finish(queue.claim("w1"), OLD)
    queue.mark_published(OLD)
    queue.fail(queue.claim("w1"), "prompt", "too short")
    queue.seen("w1")
    queue.close()
    (folder / "models" / "mine").mkdir(parents=True)
    (folder / "models" / "mine" / "weights").write_bytes(b"large")
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "worker.log").write_text(f"{time.time()}\n")


@pytest.fixture
def lake_home(tmp_path, monkeypatch, make, new_lake):
    """The same home, with its runs in a lake whose shared folder is ``tmp_path / "lake"``."""
    folder, shared = tmp_path / "home", tmp_path / "lake"
    new_lake(shared)
    monkeypatch.setenv("ROUTESPARSE_HOME", str(folder))
    fill_store(open_store(), shared / "spool", make)
    fill_home(folder)
    return folder
