"""Fixtures of the store's tests: synthetic runs and an open store in a temporary folder."""

from __future__ import annotations

import pytest

from routesparse.engine.store.duckdb_store import Store


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
def store(home):
    """An empty store."""
    store = Store(home / "routesparse.duckdb")
    yield store
    store.close()
