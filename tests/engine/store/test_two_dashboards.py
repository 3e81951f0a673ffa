"""What another dashboard does to a shared store between two steps of this one. CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from routesparse.engine.store import bundle, duckdb_store, spool, trash


@pytest.fixture
def vanishing(monkeypatch):
    """Every entry of this name is gone when it is looked at."""
    look = Path.lstat

    def gone(self):
        if self.name.endswith("gone"):
            raise FileNotFoundError(self)
        return look(self)

    monkeypatch.setattr(Path, "lstat", gone)


def test_entries_that_another_has_moved_meanwhile_end_no_look(store, small, factory, home, vanishing):
    old = f"{bundle.TEMPORARY_PREFIX}gone"
    for folder in (home / "spool", store.bundles, store.trash):
        (folder / "gone").mkdir(parents=True)
        (folder / old).mkdir()
    bundle.write_bundle(factory.rename(small, "stays"), home / "spool")
    assert spool.ingest_spool(store).ingested == ["stays"]
    assert not spool.recover(store) and not spool.ingest_samples(store, home / "spool")
    spool.sweep(store)
    trash.sync(store)
    assert store.run_ids() == {"stays"}


def test_a_run_deleted_by_another_since_it_was_read_does_not_come_back(store, small, home, monkeypatch):
    path = bundle.write_bundle(small, store.bundles)
    read = duckdb_store.verified

    def deleted(path, *, whole):
        found = read(path, whole=whole)
        path.rename(store.trash / path.name)
        return found

    monkeypatch.setattr(duckdb_store, "verified", deleted)
    store.unlisted[path.name] = "spool"
    assert store.adopt(path, "spool", move=False) is None
    assert not store.run_ids() and not store.unlisted and (store.trash / path.name).is_dir()


def test_a_run_that_another_has_listed_is_tried_no_more(store, small, home):
    store.adopt(bundle.write_bundle(small, home / "spool"), "spool", move=True)
    store.unlisted[small.run.run_id] = "spool"
    spool.ingest_spool(store)
    assert not store.unlisted
