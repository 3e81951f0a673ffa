"""Every kind of fault of a home once, at a seeded moment; ``run.py`` does each fifty times.

The faults of a lake take one to four minutes each, so that ``run.py`` alone injects them. CPU, a minute and a half.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


sys.path.append(str(HERE))
run = importlib.import_module("run")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", run.injected.FAULTS)
def test_after_a_fault_nothing_is_lost_doubled_or_half_and_the_next_job_works(tmp_path, name):
    if why := run.left_out(name, tmp_path):
        pytest.skip(why)
    tally = run.inject(name, 1, 20261122, tmp_path, patience_s=90.0)
    assert tally.clean, tally
    assert tally.injected == 1 and tally.met


@pytest.mark.timeout(180)
def test_a_lost_run_a_doubled_one_and_a_half_one_would_be_seen(tmp_path):
    """The check itself: a stored run is taken away, another is stored under a second attempt's name, a third is cut."""
    from stage import Stage, Tally

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
        stage.recover(tally, since=0.0)
        assert tally.lost >= {f"{job}-1"} and tally.doubled == {job} and len(tally.half) == 2
        assert "the next job did not work" in tally.wrong
    finally:
        stage.close()
