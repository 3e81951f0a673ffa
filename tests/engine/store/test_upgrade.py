"""A store as the first version left it, with every row of a run, under today's code: nothing is lost. No GPU."""

from __future__ import annotations

import duckdb
import pytest

from routesparse.engine.store import bundle, queries, verdicts
from routesparse.engine.store.duckdb_store import FACT_TABLES, Store
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.schema import migrations
from routesparse.engine.store.tables import RENAMED
from routesparse.engine.store.thumbnail import probe_meta


@pytest.fixture(scope="module")
def old_rows(factory, tmp_path_factory):
    """Table -> rows of one full run, as today's bundle has them."""
    folder = tmp_path_factory.mktemp("bundles")
    manifest, tables = bundle.verified_tables(bundle.write_bundle(factory.make_record(), folder))
    return manifest, {**tables, "probe_meta": probe_meta(tables["probe"])}


@pytest.fixture(params=[1, 2, 3, 5, 8, 11])
def old_store(request, old_rows, tmp_path):
    """The file of a store of an older schema, and what was written into it: table -> old column names and count."""
    manifest, tables = old_rows
    file, written = tmp_path / "routesparse.duckdb", {}
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            "CREATE TABLE schema_migration (version INTEGER PRIMARY KEY, name TEXT, applied_at TIMESTAMP)"
        )
        for number, name, sql in migrations():
            if number <= request.param:
                connection.execute(sql)
                connection.execute("INSERT INTO schema_migration VALUES (?, ?, now())", [number, name])
        connection.execute(
            "INSERT INTO ingested_bundle VALUES (?, ?, 'spool', 1, 100, now(), NULL)",
            [manifest.digest, manifest.run_id],
        )
        for table in ("run", *FACT_TABLES):
            sql = "SELECT column_name FROM duckdb_columns() WHERE table_name = ? AND schema_name = 'main'"
            known = {row[0] for row in connection.execute(sql, [table]).fetchall()}
            if not known or table not in tables:
                continue
            older = {new: old for old, new in RENAMED.get(table, {}).items() if old in known}
            data = tables[table]
            data = data.rename_columns([older.get(name, name) for name in data.column_names])
            data = data.select([name for name in data.column_names if name in known])
            connection.register("incoming", data)
            extra = "1 AS run_key, " + (f"'{manifest.digest}' AS bundle_id, " if table == "run" else "")
            columns = "* EXCLUDE (run_id)" if table != "run" and "run_id" in data.column_names else "*"
            connection.execute(f"INSERT INTO {table} BY NAME SELECT {extra}{columns} FROM incoming")
            written[table] = (data.column_names, data.num_rows)
            connection.unregister("incoming")
    return file, manifest.run_id, written


def test_every_row_of_an_older_store_is_there_and_pages_can_read_it(old_store, old_rows):
    file, run_id, written = old_store
    assert {"run", "head_choice", "candidate_score", "audit", "layer_run"} <= written.keys()
    assert all(rows for _, rows in written.values())
    for _ in range(2):  # the second start finds everything made
        store = Store(file)
        assert store.rows("SELECT max(version) FROM schema_migration") == [(migrations()[-1][0],)]
        for table, (names, rows) in written.items():
            today = [RENAMED.get(table, {}).get(name, name) for name in names if name != "run_id"]
            found = store.rows(f"SELECT {', '.join(today)} FROM main.{table} ORDER BY ALL")
            assert len(found) == rows
            wanted = old_rows[1][table].select(today)
            columns = list(zip(*found, strict=True))
            for name, values in zip(today, columns, strict=True):
                if isinstance(values[0], float):
                    assert sum(v or 0 for v in values) == pytest.approx(
                        sum(v or 0 for v in wanted[name].to_pylist())
                    )
                else:
                    assert sorted(map(str, values)) == sorted(map(str, wanted[name].to_pylist()))
        view = OwnerView(store, None)
        assert len(queries.runs(view)) == 1
        found = verdicts.of_run(view, run_id)
        assert found.short and "rows lost" not in [one.reason for one in found.findings]
        store.close()


OLDER_SUMMARY = "CREATE OR REPLACE TABLE {} AS SELECT run_key, 0::BIGINT AS uncertified_units FROM run"


def test_a_run_that_lost_rows_is_red_once_its_store_is_brought_up_to_date(tmp_path, factory):
    """Its summary was made before summaries counted rows, as was that of a run that lost none."""
    store = Store(tmp_path / "routesparse.duckdb")
    for name in ("whole", "less"):
        path = bundle.write_bundle(factory.rename(factory.small_record(), name), tmp_path / "made")
        store.adopt(path, "spool", move=True)
    with store.writing("") as cursor:
        of_less = "run_key IN (SELECT run_key FROM run WHERE run_id = 'less')"
        cursor.execute(f"DELETE FROM head_choice WHERE layer = 0 AND {of_less}")
        cursor.execute(f"DELETE FROM layer_run WHERE layer = 0 AND {of_less}")
        cursor.execute("DELETE FROM schema_migration WHERE version = 15")
        cursor.execute(OLDER_SUMMARY.format("main.run_summary"))
    store.close()
    store = Store(store.database)
    view = OwnerView(store, None)
    found = {name: verdicts.of_run(view, name) for name in ("whole", "less")}
    listed = dict(zip(queries.runs(view)["run_id"], verdicts.of_rows(queries.runs(view)), strict=True))
    store.close()
    assert found == listed
    assert found["less"].level == "red" and found["less"].findings[0].reason == "rows lost"
    assert not [one for one in found["whole"].findings if one.level == "red"]
