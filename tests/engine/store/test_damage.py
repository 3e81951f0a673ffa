"""A store whose file is damaged says so, keeps every bundle, and comes back from the bundles. No GPU."""

from __future__ import annotations

import os
import shutil
from itertools import product

import pytest

from routesparse.engine.errors import StoreError
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.duckdb_store import Store

HEADER_BYTES, BLOCK_BYTES = 3 * 4096, 262_144
ADVICE = "move routesparse.duckdb and routesparse.duckdb.wal out of"


@pytest.fixture(scope="module")
def closed(tmp_path_factory, small, factory):
    """A home whose store was closed in good order, so that its rows are in the file's blocks, and a bundle to come."""
    home = tmp_path_factory.mktemp("closed")
    store = Store(home / "routesparse.duckdb")
    bundle.write_bundle(small, home / "spool")
    assert len(spool.ingest_spool(store, home / "spool").ingested) == 1
    store.close()
    bundle.write_bundle(
        factory.make_record("6b22b22b22b2", layers=2, heads=2, segments=1, tokens=2048, probe_columns=16),
        home / "spool",
    )
    return home


def blocks(home) -> range:
    """Where every fifth block begins: among them are one to open, one to read and one to write."""
    return range(HEADER_BYTES, (home / "routesparse.duckdb").stat().st_size, 5 * BLOCK_BYTES)


def told(home) -> list[str]:
    """What a dashboard that starts, takes the next bundle in and reads its runs says is wrong."""
    try:
        store = Store(home / "routesparse.duckdb")
    except StoreError as error:
        return [str(error)]
    try:
        spool.recover(store)
        looks = [spool.ingest_spool(store, home / "spool") for _ in range(2)]
        assert not any(look.rejected for look in looks), "a good bundle was set aside for a damaged store"
        waiting = [each.reason for look in looks for each in look.waiting]
        assert waiting or len(store.run_ids()) == 2
        for table in ("head_choice", "candidate_score", "audit", "probe_meta"):
            store.rows(f"SELECT * FROM {table}")
        return waiting
    except StoreError as error:
        return [str(error)]
    finally:
        store.close()


def flip(file, start):
    with open(file, "r+b") as handle:
        handle.seek(start + 100)
        byte = handle.read(1)[0] ^ 1
        handle.seek(start + 100)
        handle.write(bytes([byte]))


def test_wherever_a_bit_flips_or_the_file_ends_no_bundle_is_lost_and_what_to_do_is_said(
    closed, tmp_path, monkeypatch
):
    said, places = [], blocks(closed)
    for number, (harm, start) in enumerate([*product([flip], places), *product([os.truncate], places[1::3])]):
        home = tmp_path / str(number)
        monkeypatch.setenv("ROUTESPARSE_HOME", str(home))
        shutil.copytree(closed, home)
        harm(home / "routesparse.duckdb", start)
        problems = told(home)
        said += problems
        assert all(ADVICE in problem for problem in problems), problems
        if problems:
            for file in home.glob("routesparse.duckdb*"):
                file.unlink()
        assert told(home) == [], f"{harm} at {start} after the advice"
    assert any("was not stored" in each for each in said), said
    assert any("could not be read" in each for each in said), said
    assert any("can't be opened" in each for each in said), said
