"""Worker, web or both killed at ten seeded moments of real jobs: every job ends once and no run is lost."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("e2e_crashes", Path(__file__).with_name("crashes.py"))
crashes = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(crashes)

KILLS = 10


def test_killed_at_ten_moments_every_job_ends_once_and_no_run_is_lost(serve, page, tmp_path):
    met = crashes.rehearse(serve.House(tmp_path), page, KILLS, seed=20261120)
    crashes.check_end(tmp_path, KILLS + 2)
    assert met.total() == KILLS
    assert any("running" in what for what in met), f"no kill met a running job: {dict(met)}"
