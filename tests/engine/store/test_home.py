"""The home folder deleted, moved away, read-only or full under an open store. CPU."""

import errno
import os
import shutil

import duckdb
import pytest

from routesparse.engine.errors import StoreError
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.duckdb_store import Store


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def test_a_store_whose_home_was_deleted_or_replaced_says_so_until_it_is_put_back(home, small):
    bundle.write_bundle(small, home / "spool")
    store = Store(home / "routesparse.duckdb")
    spool.ingest_spool(store, home / "spool")
    away = home.with_name("away")
    home.rename(away)
    with pytest.raises(
        StoreError, match="was deleted or replaced while the dashboard ran; put its folder back"
    ):
        store.check_there()
    shutil.copytree(away, home)
    with pytest.raises(StoreError, match="was deleted or replaced"):
        store.check_there()
    shutil.rmtree(home)
    away.rename(home)
    store.check_there()
    assert store.run_ids() == {small.run.run_id}
    store.close()


def test_a_deleted_folder_of_bundles_is_made_again(home, small):
    store = Store(home / "routesparse.duckdb")
    bundle.write_bundle(small, home / "spool")
    shutil.rmtree(store.bundles)
    assert spool.ingest_spool(store, home / "spool").ingested == [small.run.run_id]
    assert bundle.verify_bundle(store.bundles / small.run.run_id).run_id == small.run.run_id
    store.close()


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_home_that_can_t_be_written_is_not_taken_for_a_broken_store(home, monkeypatch, code):
    def fail(*_, **__):
        raise duckdb.IOException(f'IO Error: Cannot open file "routesparse.duckdb": {os.strerror(code)}')

    monkeypatch.setattr(duckdb, "connect", fail)
    with pytest.raises(
        StoreError, match="make the folder writable, with some space, or set ROUTESPARSE_HOME"
    ) as told:
        Store(home / "routesparse.duckdb")
    assert "move it away" not in str(told.value)


@pytest.mark.parametrize("first", [True, False])
def test_a_disk_that_fills_up_within_a_start_is_told_as_full_and_only_the_beginning_of_a_store_goes(
    home, monkeypatch, first
):
    connect, file = duckdb.connect, home / "routesparse.duckdb"

    class NearlyFull:
        """A connection to a disk without room for a commit."""

        def __init__(self, *given, **more):
            self.connection = connect(*given, **more)

        def __getattr__(self, name):
            return getattr(self.connection, name)

        def __enter__(self):
            return self.connection.__enter__()

        def __exit__(self, *error):
            return self.connection.__exit__(*error)

        def commit(self):
            raise duckdb.TransactionException(f"Failed to commit: {os.strerror(errno.ENOSPC)}")

    if not first:
        Store(file).close()
    with monkeypatch.context() as patch:
        patch.setattr(duckdb, "connect", NearlyFull)
        with pytest.raises(StoreError, match="with some space"):
            Store(file)
    assert [path.name for path in home.glob("routesparse*")] == ([] if first else [file.name])
    store = Store(file)
    assert store.run_ids() == set()
    store.close()
