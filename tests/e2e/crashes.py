"""``kill -9`` of worker, web or both at random moments of jobs: ``python tests/e2e/crashes.py [KILLS] [SEED]``.

The Procfile's own commands with the engine and the bundled model, and a visitor's page in Chromium that waits for each
run. After every kill whatever readers of the spool see is whole; at the end every job has ended once and its run is in
the store once. ``make test`` does ten kills (test_crashes.py).
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store.bundle import verify_bundle
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.tables import FACT_TABLES

# The web process starts faster than a worker and its engine, and is killed more often.
VICTIMS = (("worker",), ("web",), ("worker", "web"), ("web",))
REQUEST = RunRequest(label="ledger.txt", segment=1024, break_even=256, audit="none")
TEXT = "The harbour master writes a ledger of vessels, pier by pier, until the evening bell. " * 40
PATIENCE_S = 180.0


def rehearse(house: Any, page: Any, kills: int, seed: int) -> Counter[str]:
    """Kill that often; how often a kill met a job in each of its states. Errors: AssertionError."""
    moments = random.Random(seed)
    queue = JobQueue(house.home)
    met: Counter[str] = Counter()
    try:
        house.start("worker", "web")
        # The first job measures the machine, the second how long a job takes from its claim to its map.
        _until_on_its_map(house, page, queue.submit(REQUEST, TEXT))
        usual_s = _seconds_to_the_map(house, page, queue)
        for _, victims in zip(range(kills), cycle(VICTIMS), strict=False):
            job_id = queue.submit(REQUEST, TEXT)
            _until(lambda job_id=job_id: queue.job(job_id).state != "queued", "the claim")
            page.goto(f"{house.address}/job?job={job_id}")
            time.sleep(moments.uniform(0.0, usual_s))
            house.kill(*victims)
            met[f"{'+'.join(victims)} {queue.job(job_id).state}"] += 1
            check_spool(house.home)
            house.start(*victims)
            _until_on_its_map(house, page, job_id)
    finally:
        house.close()
        queue.close()
    return met


def check_spool(home: Path) -> None:
    """Whatever readers see is whole."""
    for path in (home / "spool").glob("[!.]*"):
        assert verify_bundle(path).run_id == path.name


def check_end(home: Path, jobs: int) -> None:
    """Every job ended once, its run is stored once with all its rows and its bundle, and nothing is left over."""
    queue = JobQueue(home)
    ended = queue.jobs()
    queue.close()
    assert len(ended) == jobs
    assert {job.state for job in ended} == {"done"}
    run_ids = sorted(str(job.run_id) for job in ended)
    store = Store(home / "routesparse.duckdb")
    try:
        kept = sorted(path.name for path in (home / "bundles").iterdir())
        assert kept == sorted(store.run_ids()) == run_ids
        rows = {
            table: store.rows(f"SELECT count(*) FROM {table} GROUP BY run_key ORDER BY run_key")
            for table in FACT_TABLES
        }
        for table, counts in rows.items():
            assert len(set(counts)) <= 1, f"the same prompt gives as many rows of {table} in every run"
            assert len(counts) in (0, jobs)
        assert rows["candidate_score"]
    finally:
        store.close()
    for name in kept:
        verify_bundle(home / "bundles" / name)
    left = [path.name for path in (home / "spool").rglob("*") if path.name != ".staged"]
    assert left == []


def _seconds_to_the_map(house: Any, page: Any, queue: JobQueue) -> float:
    job_id = queue.submit(REQUEST, TEXT)
    _until(lambda: queue.job(job_id).state != "queued", "the claim")
    started = time.monotonic()
    _until_on_its_map(house, page, job_id)
    return time.monotonic() - started


def _until_on_its_map(house: Any, page: Any, job_id: str) -> None:
    """A visitor waits on the job's page until the store has its run."""
    page.goto(f"{house.address}/job?job={job_id}")
    page.get_by_role("button", name="Open the routing map").wait_for(timeout=PATIENCE_S * 1000)


def _until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def main(kills: int, seed: int) -> None:
    """Rehearse in a folder that goes away, and print what the kills met."""
    from playwright.sync_api import sync_playwright

    # A script, run by its path: its neighbours are found through the search path.
    sys.path.insert(0, str(Path(__file__).parent))
    serve = import_module("serve")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(serve.CHROMIUM), args=serve.FLAGS)
        started = time.monotonic()
        met = rehearse(serve.House(Path(temporary)), browser.new_page(), kills, seed)
        check_end(Path(temporary), kills + 2)
        browser.close()
    print(json.dumps({"kills": kills, "seed": seed, "met": met, "seconds": time.monotonic() - started}))


if __name__ == "__main__":
    numbers = [int(value) for value in sys.argv[1:]]
    main(*numbers, *(50, 1)[len(numbers) :])
