"""The workers' log: bounded, for its user only, and never in a job's way."""

import pytest

from routesparse.engine.jobs import log
from routesparse.engine.jobs.log import KEPT, JobLog, tail


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(log, "ROTATE_BYTES", 2_000)


def test_old_lines_go(home, short):
    writer = JobLog(home, "w")
    for number in range(200):
        writer.write("stage", job="a", number=number)
    files = sorted((home / "logs").iterdir())
    assert len(files) == KEPT
    assert sum(file.stat().st_size for file in files) < KEPT * 2_400
    numbers = [line["number"] for line in tail(home, "a", limit=1_000)]
    assert numbers == list(range(numbers[0], 200)), "in order, the newest ones, none missing"


def test_two_workers_share_the_file(home, short):
    writers = [JobLog(home, name) for name in ("w1", "w2")]
    for number in range(20):
        for writer in writers:
            writer.write("stage", job="a", number=number)
    workers = [line["worker"] for line in tail(home, "a", limit=10)]
    assert workers == ["w1", "w2"] * 5


def test_a_log_that_can_t_be_written_goes_to_stderr(home, capsys):
    (home / "logs").write_text("a file where the folder should be")
    JobLog(home, "w").write("worker_started")
    assert "log not written" in capsys.readouterr().err


def test_a_line_cut_short_is_skipped(home):
    JobLog(home, "w").write("stage", job="a")
    with (home / "logs" / "worker.jsonl").open("a") as file:
        file.write('{"job": "a", "ev\n[1]\n' + "[" * 100_000 + '"a"\n')
    assert len(tail(home, "a")) == 1
