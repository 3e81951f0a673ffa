"""One evaluation in a folder at a time, between processes, and after one that was killed. CPU, seconds."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest

from routesparse.engine.errors import InputError
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


def test_a_second_evaluation_is_refused_in_one_line_and_changes_nothing(holder, run, tmp_path):
    process, _ = holder
    (tmp_path / "out" / "job.json").write_text("the first one's")
    code, _, err = run(*EVALUATE, "--out", tmp_path / "out")
    assert code == 2
    (line,) = err.splitlines()
    assert f"out is in use by another evaluation (process {process.pid} on " in line
    assert "wait until it ends or pass another --out; `routesparse report` shows what it has so far" in line
    assert (tmp_path / "out" / "job.json").read_text() == "the first one's"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [FILE, "job.json"]


def test_another_folder_is_another_evaluation(holder, run, tmp_path):
    code, _, err = run(*EVALUATE, "--out", tmp_path / "other")
    assert code == 2 and "run the stage prepare first" in err
    assert json.loads((tmp_path / "other" / "job.json").read_text())["n"] == 1


@pytest.mark.parametrize("end", [signal.SIGKILL, None], ids=["killed", "ended"])
def test_one_that_was_killed_or_ended_is_in_nobody_s_way(holder, tmp_path, end):
    """Also while processes that it started live on."""
    process, beside = holder
    with pytest.raises(InputError, match="in use"), alone_in(tmp_path / "out"):
        pass
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
