"""Several processes write runs into one store at once, and two stores are compared row by row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.tables import FACT_TABLES

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
    """What each writer says, all having begun together. Errors: AssertionError for one that failed."""
    command = [sys.executable, str(Path(__file__).with_name("one_writer.py"))]
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
                raise AssertionError("a writer could not begin; it said why above")
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in started:
            assert process.stdout is not None
            lines = process.stdout.read().splitlines()
            if process.wait():
                raise AssertionError("a writer failed; it said why above")
            said.append(json.loads(lines[-1]))
    return said
