"""Every kind of fault of a home once, at a seeded moment; FAULTS_TIMES=50 injects each fifty times. CPU."""

from __future__ import annotations

import os
import random

import pytest

from tests.faults.injected import FAULTS, may_mount
from tests.faults.stage import Stage, Tally

TIMES = int(os.environ.get("FAULTS_TIMES", "1"))
FAULTS_A_HOME = 10  # a store that is rebuilt from its bundles takes longer the more there are


@pytest.mark.timeout(180 * TIMES)
@pytest.mark.parametrize("name", FAULTS)
def test_after_a_fault_nothing_is_lost_doubled_or_half_and_the_next_job_works(tmp_path, name):
    if name == "disk full" and not may_mount(tmp_path):
        pytest.skip("only who may mount has a small disk")
    moments, tally = random.Random(f"{name} 20261122"), Tally()
    for first in range(0, TIMES, FAULTS_A_HOME):
        stage = Stage(tmp_path / f"home{first}")
        try:
            while tally.injected < min(first + FAULTS_A_HOME, TIMES):
                FAULTS[name](stage, tally, moments)
                tally.injected += 1
        finally:
            stage.close()
    assert tally.clean, tally


@pytest.mark.timeout(180)
def test_a_lost_run_a_doubled_one_and_a_half_one_would_be_seen(tmp_path):
    """The check itself: a stored run is taken away, another is stored under a second attempt's name, a third is cut."""
    stage = Stage(tmp_path / "home")
    try:
        stage.start("worker")
        job = stage.submit()
        stage.until(lambda: stage.queue.job(job).ended and not stage.queue.unpublished(), "the bundle")
        (stage.home / "spool" / f"{job}-1" / "run.parquet").write_bytes(b"")
        tally = Tally()
        stage.look(tally)
        assert len(tally.half) == 1
        found = {"runs": [f"{job}-2", f"{job}-3"], "partial": {f"{job}-2": "3 rows"}, "rejected": {}}
        stage.status = lambda: found
        stage.until_stored = lambda: None
        stage.recover(tally)
        assert tally.lost >= {f"{job}-1"} and tally.doubled == {job} and len(tally.half) == 2
        assert "the next job did not work" in tally.wrong
    finally:
        stage.close()
