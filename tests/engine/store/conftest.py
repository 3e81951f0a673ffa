"""Fixtures of the store's tests: synthetic runs and an open store in a temporary folder."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest

from routesparse.engine import shared_folder
from routesparse.engine.scale.ducklake import LakeStore
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.owner_view import OwnerView


@pytest.fixture(scope="session")
def record(factory):
    """One full run: 8 layers, 8 heads, 2 segments, 21 candidates."""
    return factory.make_record()


@pytest.fixture(scope="session")
def small(factory):
    """A run that is quick to write."""
    return factory.make_record("5a11a11a11a1", layers=2, heads=2, segments=1, tokens=2048, probe_columns=16)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A ROUTESPARSE_HOME of its own."""
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def lake_address(new_lake, home):
    """The address of an empty lake of this test's own; the environment names it, and the home as the shared folder."""
    address = new_lake(home)
    shared_folder.mark()
    return address


@pytest.fixture
def opened(request, home):
    """Opens the store of this test, also a second time: in a DuckDB file, or in DuckLake on PostgreSQL."""
    kind, *where = Store, home / "routesparse.duckdb"
    if getattr(request, "param", "file") == "lake":
        kind, *where = LakeStore, request.getfixturevalue("lake_address"), home, home
    with ExitStack() as stores:
        yield lambda: stores.enter_context(closing(kind(*where)))


@pytest.fixture
def take_in(store, home):
    """take_in(record...): the local person's view of the store with these runs and certificates in it."""

    def taken(*records):
        for record in records:
            bundle.write_bundle(record, home / "spool")
        report = spool.ingest_spool(store)
        assert len(report.ingested) == len(records) and not report.rejected, report
        return OwnerView(store, None)

    return taken


@pytest.fixture
def store(opened):
    """An empty store."""
    return opened()
