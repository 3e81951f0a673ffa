"""A process of many_writers.py, NAME N SAMPLE: makes bundles as a worker does, and takes in what lies in the spool."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.rows import RunRecord
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.opening import open_store


def renamed(record: RunRecord, run_id: str) -> RunRecord:
    """The same run under another id, without its heatmaps, which are most of its bytes."""
    rows = {
        field.name: tuple(replace(row, run_id=run_id) for row in getattr(record, field.name))
        for field in fields(record)
        if field.name not in ("run", "prompt", "probes", "block_reads")
    }
    prompt = replace(record.prompt, run_id=run_id) if record.prompt else None
    return RunRecord(run=replace(record.run, run_id=run_id), prompt=prompt, probes=(), block_reads=(), **rows)


def run_ids(name: str, n: int) -> list[str]:
    return [f"{name}-{number:03d}" for number in range(n)]


def main(arguments: list[str]) -> None:
    """Make the bundles and take in what is there."""
    name, n, sample = arguments[0], int(arguments[1]), Path(arguments[2])
    record = bundle.read_bundle(sample)
    store = open_store()
    taken, rejected, waited = [], [], 0
    print("ready", flush=True)
    sys.stdin.readline()  # until all are ready
    started = time.monotonic()
    for run_id in run_ids(name, n):
        bundle.write_bundle(renamed(record, run_id), paths.spool())
    while True:
        look = spool.ingest_spool(store)
        taken += look.ingested
        rejected += [each.reason for each in look.rejected]
        waited += len(look.waiting)
        left = [path for path in paths.spool().iterdir() if not path.name.startswith(".")]
        if not [path for path in left if path.name != bundle.REJECTED]:
            break
    store.close()
    seconds = round(time.monotonic() - started, 1)
    told = {"name": name, "taken": taken, "rejected": rejected, "waited": waited, "seconds": seconds}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
