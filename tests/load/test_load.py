"""A small sample of run.py: three readers, eleven jobs, two workers. Speed is run.py's to report. No GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(240)
def test_readers_see_no_error_and_the_queue_keeps_its_promises(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("load_run", Path(__file__).with_name("run.py"))
    run = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "load_run", run)  # dataclasses look their module up
    spec.loader.exec_module(run)
    monkeypatch.setattr(run, "CANCEL_EVERY", 5)
    seen = run.load(tmp_path, readers=3, jobs=11, workers=2, pause=1.0, least_s=8.0, limit_s=150.0)
    assert seen.errors == [] and seen.wrong == []
    assert seen.started == [0, 1, 2, 3, 5, 6, 7, 8, 10]
    assert len(seen.seconds) >= 6 and seen.memory
