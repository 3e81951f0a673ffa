"""``routesparse prune``: names first, removes what is older and nothing else, shrinks the database. CPU."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys

import pytest

from routesparse.engine.cli.main import main
from routesparse.engine.jobs.database import SqliteFile
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.duckdb_file import compact
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.labels import Label
from routesparse.engine.store.owner_view import OwnerView

OLD, NEW = "01d01d01d01d01d0", "2e2e2e2e2e2e2e2e"


def run_ids(home) -> set[str]:
    store = Store(home / "routesparse.duckdb")
    try:
        return store.run_ids()
    finally:
        store.close()


def jobs(home) -> dict[str, str]:
    with sqlite3.connect(home / "jobs.sqlite3") as connection:
        found = dict(connection.execute("SELECT label, state FROM job").fetchall())
    connection.close()
    return found


@pytest.fixture
def aged(home):
    """All ended jobs ended long ago."""
    with sqlite3.connect(home / "jobs.sqlite3") as connection:
        connection.execute("UPDATE job SET finished_at = 1e9 WHERE finished_at IS NOT NULL")
    connection.close()
    return home


def test_a_dry_run_names_and_removes_nothing(aged, capsys):
    assert main(["prune", "--older-than", "30d", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == [OLD] and len(found["jobs"]) == 2 and found["freed_bytes"] is None
    assert run_ids(aged) == {OLD, NEW} and len(jobs(aged)) == 3


def test_old_runs_ended_jobs_and_their_prompts_go_for_good_and_the_rest_stays(aged, capsys):
    assert len(list((aged / "prompts").glob("*.txt"))) == 2
    assert main(["prune", "--older-than", "4w"]) == 0
    assert "1 runs and 2 jobs older than 4w removed" in capsys.readouterr().out
    assert run_ids(aged) == {NEW}
    assert not (aged / "bundles" / OLD).exists() and not list((aged / "trash").iterdir())
    assert jobs(aged) == {"waits.txt": "queued"}
    assert [path.read_text() for path in (aged / "prompts").glob("*.txt")] == ["the text of waits.txt"]


def test_ages_are_told_by_the_queue_s_clock(aged, capsys, monkeypatch):
    """Where hosts share a queue its server timed the jobs; this host's clock may be wrong."""
    for hours, jobs_found in ((23, 0), (25, 2)):
        monkeypatch.setattr(SqliteFile, "now", lambda _, hours=hours: 1e9 + hours * 3600)
        assert main(["prune", "--older-than", "1d", "--dry-run", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (len(found["jobs"]), found["runs"]) == (jobs_found, [])


def test_a_kept_run_and_the_samples_stay(aged, make):
    store = Store(aged / "routesparse.duckdb")
    bundle.write_bundle(make("5a5a5a5a5a5a5a5a", created_at="2026-01-01T00:00:00+00:00"), aged / "samples")
    spool.ingest_samples(store, aged / "samples")
    store.close()
    assert main(["prune", "--older-than", "1h", "--keep", OLD]) == 0
    assert run_ids(aged) == {OLD, NEW, "5a5a5a5a5a5a5a5a"}


def test_a_run_that_somebody_pinned_stays_until_it_is_asked_for(aged, capsys):
    store = Store(aged / "routesparse.duckdb")
    OwnerView(store, None).set_label(OLD, Label(pinned=True))
    store.close()
    assert main(["prune", "--older-than", "30d", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == [] and found["pinned"] == [OLD] and run_ids(aged) == {OLD, NEW}
    assert main(["prune", "--older-than", "30d", "--pinned", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == [OLD] and found["pinned"] == [] and run_ids(aged) == {NEW}


@pytest.mark.parametrize("arguments", [["--older-than", "soon"], ["--older-than", "1d", "--keep", "nobody"]])
def test_wrong_input_is_told_and_removes_nothing(aged, capsys, arguments):
    assert main(["prune", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert run_ids(aged) == {OLD, NEW} and len(jobs(aged)) == 3


def test_compacting_keeps_every_row_and_gives_room_back(home, make):
    store = Store(home / "routesparse.duckdb")
    for number in range(8):
        bundle.write_bundle(make(f"{number:016d}"), home / "spool")
    assert len(spool.ingest_spool(store).ingested) == 8
    for number in range(8):
        store.delete_run(f"{number:016d}")
    rows = store.rows("SELECT * FROM head_choice ORDER BY ALL")
    store.close()
    file = home / "routesparse.duckdb"
    before = file.stat().st_size
    compact(file)
    assert file.stat().st_size < before and not list(home.glob("*.compact"))
    store = Store(home / "routesparse.duckdb")
    assert store.rows("SELECT * FROM head_choice ORDER BY ALL") == rows and rows
    bundle.write_bundle(make("ffffffffffffffff"), home / "spool")
    assert spool.ingest_spool(store).ingested == ["ffffffffffffffff"]  # keys go on where they were
    store.close()


def test_a_dashboard_that_runs_must_be_stopped_first(aged, capsys):
    code = "import sys; from routesparse.engine.store.duckdb_store import Store; from pathlib import Path\n"
    code += "store = Store(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(aged / "routesparse.duckdb")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as web:
        assert web.stdout.readline() == "open\n"
        assert main(["prune", "--older-than", "1d"]) == 2
        web.stdin.close()
    assert "held by another process" in capsys.readouterr().err
    assert run_ids(aged) == {OLD, NEW} and len(jobs(aged)) == 3
