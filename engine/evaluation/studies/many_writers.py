"""Eight processes write runs into one store on DuckLake and PostgreSQL at once: is every run there once, and whole?

    python -m routesparse.engine.evaluation.studies.many_writers --out FILE.json --writers 8 --n 50

Each process makes its bundles from a shipped sample run, puts them into the shared spool and takes in whatever lies
there, its own or another's, until the spool is empty. A DuckDB file then takes in the same bundles alone, and each
table of both stores is compared row by row, the numbers that a store gives to its runs and the clock apart. Three
controls spoil a copy of the lake's rows, by leaving a run out, doubling one and altering one, and the comparison has to
notice each.

The server is the study's own (own_postgres.py), in a temporary folder; PostgreSQL and `make ducklake` are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.errors import InputError
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies.one_writer import run_ids
from routesparse.engine.evaluation.studies.own_postgres import new_database, server
from routesparse.engine.provenance import git_commit, versions
from routesparse.engine.store.duckdb_store import FACT_TABLES, Store
from routesparse.engine.store.ducklake import PREFIX, LakeStore

TABLES = ("run", "run_summary", "ingested_bundle", *FACT_TABLES)
_CLOCKS = ("ingested_at",)
Rows = dict[str, Counter[str]]  # table -> its rows as text, with how often each is there


def rows_of(store: Store) -> Rows:
    """All rows, with the run's id in the place of its key."""
    found = {}
    for table in TABLES:
        columns = [row[0] for row in store.rows(f"SELECT column_name FROM (DESCRIBE {table})")]
        kept = ", ".join(f't."{name}"' for name in columns if name not in ("run_key", *_CLOCKS))
        source = (
            f"{table} t" if table in ("run", "ingested_bundle") else f"{table} t JOIN run r USING (run_key)"
        )
        run_id = "t.run_id" if table in ("run", "ingested_bundle") else "r.run_id"
        found[table] = Counter(repr(row) for row in store.rows(f"SELECT {run_id}, {kept} FROM {source}"))
    return found


def differences(one: Rows, other: Rows) -> list[str]:
    """What two stores do not have in common, by table; nothing where they are equal."""
    told = []
    for table in TABLES:
        missing, more = one[table] - other[table], other[table] - one[table]
        if missing or more:
            told.append(
                f"{table}: {missing.total()} rows are in the first alone, {more.total()} in the other"
            )
    return told


def spoiled(made: Rows) -> dict[str, Rows]:
    """The same rows with one fault each."""
    first = next(iter(made["run"]))
    return {
        "one lost": {**made, "run": made["run"] - Counter([first])},
        "one doubled": {**made, "run": made["run"] + Counter([first])},
        "one altered": {**made, "run": made["run"] - Counter([first]) + Counter([f"{first} "])},
    }


def write(
    environment: dict[str, str], homes: Path, writers: int, n: int, sample: Path
) -> list[dict[str, Any]]:
    """What each writer says, all having begun together. Errors: InputError for one that failed."""
    command = [sys.executable, "-m", "routesparse.engine.evaluation.studies.one_writer"]
    said = []
    with ExitStack() as running:
        started = [
            running.enter_context(
                subprocess.Popen(
                    [*command, f"writer{number}", str(n), str(sample)],
                    env={**environment, "ROUTESPARSE_HOME": str(homes / str(number))},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(writers)
        ]
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise InputError("a writer could not begin; it said why above")
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in started:
            assert process.stdout is not None
            lines = process.stdout.read().splitlines()
            if process.wait():
                raise InputError("a writer failed; it said why above")
            said.append(json.loads(lines[-1]))
    return said


def main(argv: Sequence[str] | None = None) -> None:
    """Write, compare, and write down what came of it. Exit code 1 where a run is missing or a control passes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--n", type=int, default=50, help="runs a writer")
    parser.add_argument("--sample", type=Path, help="the run's bundle; the first shipped one")
    arguments = parser.parse_args(argv)
    sample = arguments.sample or min((paths.DATA / "samples" / "runs").iterdir())
    with server() as words, tempfile.TemporaryDirectory() as scratch:
        address = PREFIX + new_database(words, "lake")
        shared = Path(scratch, "shared")
        LakeStore(address, shared, Path(scratch, "home")).close()
        environment = {**os.environ, "ROUTESPARSE_STORE": address, "ROUTESPARSE_SHARED": str(shared)}
        began = time.monotonic()
        said = write(environment, Path(scratch), arguments.writers, arguments.n, sample)
        seconds = round(time.monotonic() - began)
        lake = LakeStore(address, shared, Path(scratch, "home"))
        alone = Store(Path(scratch, "alone", "routesparse.duckdb"))
        study.note(f"{len(lake.run_ids())} runs written in {seconds} s; comparing")
        for place in sorted(lake.bundles.iterdir()):
            alone.adopt(place, "spool", move=False)
        stored, expected = rows_of(lake), rows_of(alone)
        wanted = {run for one in said for run in run_ids(one["name"], arguments.n)}
        times = Counter(run for (run,) in lake.rows("SELECT run_id FROM run"))
        lake.close()
        alone.close()
    found = {
        "command": study.command(),
        "created_at": study.now(),
        "git_commit": git_commit(),
        "versions": versions(),
        "load_average": os.getloadavg(),
        "writers": arguments.writers,
        "asked": len(wanted),
        "stored_once": sum(times[run] == 1 for run in wanted),
        "others": len(times.keys() - wanted),
        "seconds": seconds,
        "by_another_writer": sum(
            not run.startswith(f"{one['name']}-") for one in said for run in one["taken"]
        ),
        "taken": sum(len(one["taken"]) for one in said),
        "rejected": [reason for one in said for reason in one["rejected"]],
        "waited": sum(one["waited"] for one in said),
        "rows": {table: rows.total() for table, rows in stored.items()},
        "differences": differences(expected, stored),
        "controls": {name: len(differences(expected, rows)) for name, rows in spoiled(stored).items()},
    }
    study.save(arguments.out, found)
    print(json.dumps(found))
    whole = found["stored_once"] == found["asked"] and not found["others"]
    if not whole or found["differences"] or not all(found["controls"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    study.run(main)
