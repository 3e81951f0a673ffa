"""What the tests of several processes share."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def torchrun():
    """Run a script of this folder in so many processes by gloo, which see no GPU; what each wrote into RANK.json."""

    def run(script, processes, out, home, **environment):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        options = (
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(processes),
            "--master-port",
            str(port),
        )
        ended = subprocess.run(
            [sys.executable, *options, str(Path(__file__).with_name(script)), str(out)],
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "ROUTESPARSE_HOME": str(home),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        return [json.loads((out / f"{rank}.json").read_text()) for rank in range(processes)]

    return run
