"""A prompt in two halves by DeepSpeed's Ulysses; CPU, gloo. Skipped where DeepSpeed is not installed."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROCESSES = 2

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install deepspeed==0.19.8"
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each process found (ulysses_runs.py)."""
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    run = ("-m", "torch.distributed.run", "--nproc-per-node", str(PROCESSES), "--master-port", str(port))
    ended = subprocess.run(
        [sys.executable, *run, str(HERE / "ulysses_runs.py"), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ROUTESPARSE_HOME": str(out), "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(PROCESSES)]


@pytest.mark.parametrize(("price", "is_full"), [("1e-06", True), ("1.0", False)], ids=["full", "priced"])
def test_logits_and_choices_are_those_of_one_process(ranks, price, is_full):
    assert all(found[price]["difference"] < 1e-4 for found in ranks)
    first = ranks[0][price]
    assert first["same"] and first["tokens"] == 512
    assert (first["density"] == 1) == is_full
