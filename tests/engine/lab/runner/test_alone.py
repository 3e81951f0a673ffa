"""One evaluation in a folder at a time, between processes, and after one that was killed. CPU, seconds."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from routesparse.engine.lab.runner.alone import FILE, alone_in

# An evaluation that has begun, with a process of its pool or of a cluster beside it.
HOLDER = """
import subprocess, sys
from pathlib import Path
from routesparse.engine.lab.runner.alone import alone_in
with alone_in(Path(sys.argv[1])):
    beside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.DEVNULL)
    print(beside.pid, flush=True)
    sys.stdin.read()
"""
EVALUATE = ("evaluate", "infinitebench", "--tasks", "passkey", "--lengths", 900, "--n", 1, "--stage", "score")


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    beside = int(process.stdout.readline())
    yield process, beside
    os.kill(beside, signal.SIGKILL)
    with process:  # closes its pipes and waits
        process.kill()


@pytest.mark.parametrize("end", [signal.SIGKILL, None], ids=["killed", "ended"])
def test_a_second_evaluation_is_refused_until_the_first_one_ends(holder, run, tmp_path, end):
    """In one line, and nothing is changed; also while processes that the first one started live on."""
    process, beside = holder
    (tmp_path / "out" / "job.json").write_text("the first one's")
    code, _, err = run(*EVALUATE, "--out", tmp_path / "out")
    assert code == 2
    (line,) = err.splitlines()
    assert f"out is in use by another evaluation (process {process.pid} on " in line
    assert "wait until it ends or pass another --out; `routesparse report` shows what it has so far" in line
    assert (tmp_path / "out" / "job.json").read_text() == "the first one's"
    code, _, err = run(*EVALUATE, "--out", tmp_path / "other")
    assert code == 2 and "run the stage prepare first" in err
    if end is None:
        process.stdin.close()
    else:
        process.send_signal(end)
    process.wait(timeout=30)
    with alone_in(tmp_path / "out"):
        os.kill(beside, 0)  # an error, had it ended
        assert f"process {os.getpid()} on" in (tmp_path / "out" / FILE).read_text()


def test_a_file_system_without_locks_is_told_and_used(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone_in(tmp_path):
        assert "can't be locked (Operation not supported): start no second" in capsys.readouterr().err
