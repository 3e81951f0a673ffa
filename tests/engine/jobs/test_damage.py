"""A queue's file with flipped bits: it is refused in one sentence, or has every job. No GPU."""

from __future__ import annotations

import random

import pytest

from routesparse.engine.errors import StoreError
from routesparse.engine.jobs.opening import FILE
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest

JOBS = 3


@pytest.fixture
def file(home, queue):
    """The file of a closed queue with a few jobs."""
    for number in range(JOBS):
        queue.submit(RunRequest(label=f"{number}.txt"), "a prompt of a few words")
    queue.close()
    return home / FILE


def opened(home):
    """The jobs that a queue on this file lists."""
    queue = JobQueue(home)
    try:
        queue.requeue_lost()
        return queue.jobs()
    finally:
        queue.close()


@pytest.mark.parametrize(
    ("written", "flipped", "found"),
    [
        # SQLite does not miss it: the tables read well, under another name.
        (b"finished_at REAL", b"finished_au REAL", "other columns"),
        # What SQLite says of it is no text.
        (b"DEFAULT 0", b"\xc4EFAULT 0", "invalid continuation byte"),
    ],
    ids=["a column renamed", "a definition that is no text"],
)
def test_a_queue_whose_tables_are_damaged_is_refused(file, home, written, flipped, found):
    content = file.read_bytes()
    assert written in content
    file.write_bytes(content.replace(written, flipped, 1))
    with pytest.raises(StoreError, match=f"damaged or no job queue .*{found}.*; move it away"):
        opened(home)


def test_a_flipped_bit_and_a_torn_file_are_refused_or_lose_no_job(file, home):
    whole, moments, outcomes = file.read_bytes(), random.Random(20261123), []
    places = [place for place, byte in enumerate(whole) if byte]  # most of a small file is unused
    for _ in range(300):
        content = bytearray(whole)
        content[moments.choice(places)] ^= 1 << moments.randrange(8)
        del content[moments.choice((len(whole), moments.randrange(1, len(whole)))) :]
        for left in home.glob(f"{FILE}-*"):  # the log of writes of a file that was refused
            left.unlink()
        file.write_bytes(content)
        try:
            assert len(opened(home)) == JOBS
        except StoreError:
            outcomes.append("refused")
        else:
            outcomes.append("whole")
    assert min(map(outcomes.count, ("refused", "whole"))) > 50
