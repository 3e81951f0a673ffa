"""A lake whose rows lie in an object store: moto's server on this machine. PostgreSQL, DuckLake, moto; no GPU."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from routesparse.engine.errors import ConfigError, StoreError
from routesparse.engine.operations.backup import back_up, restore
from routesparse.engine.scale import ducklake, object_store
from routesparse.engine.scale.ducklake import PREFIX
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.opening import open_store
from tests import own_postgres
from tests.engine.store.all_rows import rows_of

MOTO = Path(sys.prefix, "moto", "bin", "python")
ROWS = "s3://lake/rows/"
FOREIGN = "main/candidate_score/foreign.parquet"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
START_S = 120.0


@pytest.fixture
def keys(monkeypatch):
    """Credentials in the environment, and nothing else of AWS's."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "swordfish")


@pytest.fixture
def server(keys, monkeypatch):
    """An object store with an empty bucket ``lake``, which the environment names; its process."""
    if not ducklake.installed((*ducklake.EXTENSIONS, object_store.EXTENSION)):
        pytest.skip("DuckLake is not installed; `make ducklake` does it")
    if not MOTO.exists():
        pytest.skip("moto is not installed; `make moto` does it")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [MOTO, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        try:
            bucket = urllib.request.Request(f"http://127.0.0.1:{port}/lake", method="PUT")
            deadline = time.monotonic() + START_S
            while True:
                try:
                    DIRECT.open(bucket, timeout=10).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline and process.poll() is None
                    time.sleep(0.2)
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            yield process
        finally:
            process.kill()


@pytest.fixture
def lake(server, postgres, home, monkeypatch):
    """An empty lake whose rows lie in the object store; the environment names it."""
    address = PREFIX + own_postgres.new_database(postgres, f"object{secrets.token_hex(6)}")
    monkeypatch.setenv("ROUTESPARSE_STORE", address)
    monkeypatch.setenv("ROUTESPARSE_SHARED", str(home / "shared"))
    monkeypatch.setenv("ROUTESPARSE_HOME", str(home / "host"))
    monkeypatch.setenv("ROUTESPARSE_LAKE", ROWS)
    store = open_store()
    yield store
    store.close()


def put(name: str) -> None:
    """A file that the lake does not know, below its address."""
    url = f"{os.environ['AWS_ENDPOINT_URL']}/lake/rows/{name}"
    DIRECT.open(urllib.request.Request(url, data=b"PAR1", method="PUT"), timeout=10).close()


def objects(lake) -> list[tuple[str, int]]:
    """Files of the object store and their bytes."""
    return lake.rows(f"SELECT filename, size FROM read_blob('{ROWS}**') ORDER BY 1")


def test_rows_go_to_the_object_store_and_come_back_for_every_host(lake, small, factory, home, monkeypatch):
    shared = home / "shared"
    names = [f"run{number}" for number in range(2)]
    for name in names:
        bundle.write_bundle(factory.rename(small, name), shared / "spool")
    assert sorted(spool.ingest_spool(lake).ingested) == names
    made = objects(lake)
    assert made and all(name.startswith(f"{ROWS}main/") for name, _ in made)
    assert not list(shared.rglob("lake/**/*.parquet")), "no row lies in the shared folder"
    with closing(open_store()) as other:
        assert rows_of(other) == rows_of(lake)
        other.delete_runs(names[1:])
    put(FOREIGN)
    before = rows_of(lake)
    assert before["run"].total() == 1
    monkeypatch.setattr(ducklake, "READERS_S", 0.0)
    monkeypatch.setattr(
        ducklake, "_ORPHANS", ("ducklake_delete_orphaned_files('lake', cleanup_all => true)",)
    )
    lake.compact()
    assert f"{ROWS}{FOREIGN}" in dict(objects(lake)), "another lake's, in the same folder"
    size = {kind: sum(size for name, size in found if "candidate" in name) for kind, found in
            (("before", made), ("after", objects(lake)))}  # fmt: skip
    assert 0 < size["after"] < size["before"] and rows_of(lake) == before
    back_up(home / "host", home / "kept")
    for name in ("ROUTESPARSE_STORE", "ROUTESPARSE_SHARED", "ROUTESPARSE_LAKE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("ROUTESPARSE_HOME", str(home / "file"))
    restore(home / "kept", home / "file")
    with closing(open_store()) as file:
        assert rows_of(file) == before and {path.name for path in file.trash.iterdir()} == set(names[1:])


def test_another_place_than_the_catalogue_s_is_refused_and_sql_reads_no_other_bucket(lake, monkeypatch):
    for rows, cure in (
        ("s3://lake/other", f"set ROUTESPARSE_LAKE to {ROWS}"),
        ("", f"set ROUTESPARSE_LAKE to {ROWS}"),
    ):
        monkeypatch.setenv("ROUTESPARSE_LAKE", rows)
        with pytest.raises(StoreError, match=cure):
            open_store()
    with pytest.raises(StoreError, match="disabled by configuration"):
        lake.rows("SELECT * FROM read_blob('s3://lake/**')")


@pytest.mark.parametrize(
    "address",
    [
        "rows",
        "s3://lake",
        "s3://lake/",
        "s3://Lake/rows",
        "s3://lake/../other",
        "s3://lake/a'b",
        "gs://lake/a",
    ],
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigError, match="must be s3://BUCKET/FOLDER"):
        object_store.folder(address)


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_missing_key_is_named_without_the_other(keys, monkeypatch, missing):
    monkeypatch.delenv(missing)
    with pytest.raises(ConfigError, match=f"{missing} is not") as caught:
        object_store.secret(ROWS)
    assert "swordfish" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://host", "https://"])
def test_an_endpoint_that_is_none_is_refused(keys, monkeypatch, endpoint):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL must begin"):
        object_store.secret(ROWS)


def test_the_variables_of_aws_s_tools_become_one_secret_for_this_folder(keys, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "it's")
    assert object_store.secret(ROWS) == (
        f"CREATE SECRET object_store (TYPE s3, SCOPE '{ROWS}', KEY_ID 'a-key', SECRET 'it''s')"
    )
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store.example:9000/")
    told = object_store.secret(ROWS)
    assert "REGION 'eu-1', ENDPOINT 'store.example:9000', URL_STYLE 'path', USE_SSL true" in told
