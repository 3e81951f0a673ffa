"""``out_of_memory.py`` on this machine's CPU; on a GPU it is run by hand. About a quarter of a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("out_of_memory.py")


@pytest.mark.timeout(300)
def test_memory_that_ends_within_a_routed_prefill_costs_that_prefill_alone(tmp_path):
    ended = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={
            **os.environ,
            **{"ROUTESPARSE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr[-2_000:]
    rounds = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(rounds) == 2 and all(one["ended at"] for one in rounds)
