"""A home with two runs of two owners, a job in each state that matters, and a prompt."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.scale import ducklake
from routesparse.engine.scale.ducklake import PREFIX, LakeStore
from routesparse.engine.store import bundle, overview, spool
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.opening import open_store
from tests import own_postgres

OLD, NEW = "01d01d01d01d01d0", "2e2e2e2e2e2e2e2e"
OWNER = "a" * 32


@pytest.fixture(scope="session")
def make():
    path = Path(__file__).parents[1] / "store" / "factory.py"
    spec = importlib.util.spec_from_file_location("operations_factory", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def small(run_id, **values):
        record = module.make_record(run_id, layers=2, heads=2, segments=1, tokens=2048, probe_columns=16)
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


@pytest.fixture(scope="session")
def postgres():
    """PostgreSQL's words for a server of this session."""
    if not ducklake.installed():
        pytest.skip("DuckLake is not installed; `make ducklake` does it")
    if own_postgres.programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with own_postgres.server() as words:
        yield words


@pytest.fixture(scope="session")
def empty_lake(postgres, tmp_path_factory):
    """The shared folder of a lake without runs in the database ``empty``: making one takes seconds, copying it none."""
    shared = tmp_path_factory.mktemp("empty_lake")
    LakeStore(PREFIX + own_postgres.new_database(postgres, "empty"), shared, shared).close()
    return shared


@pytest.fixture
def new_lake(postgres, empty_lake, tmp_path, monkeypatch):
    """new_lake(name): the environment names a new lake and its shared folder; the folder."""

    def made(name):
        words = own_postgres.new_database(postgres, f"{name}{secrets.token_hex(6)}", like="empty")
        shutil.copytree(empty_lake / "lake", tmp_path / name / "lake")
        monkeypatch.setenv("ROUTESPARSE_STORE", PREFIX + words)
        monkeypatch.setenv("ROUTESPARSE_SHARED", str(tmp_path / name))
        return tmp_path / name

    return made


@pytest.fixture
def lake_home(tmp_path, monkeypatch, make, new_lake):
    """The same home, with its runs in a lake whose shared folder is ``tmp_path / "lake"``."""
    folder, shared = tmp_path / "home", new_lake("lake")
    monkeypatch.setenv("ROUTESPARSE_HOME", str(folder))
    fill_store(open_store(), shared / "spool", make)
    fill_home(folder)
    return folder
