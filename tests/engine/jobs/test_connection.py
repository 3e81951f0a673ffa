"""A connection to PostgreSQL that is cut, at every moment that matters. A server of these tests' own; no GPU."""

from __future__ import annotations

import os

import pytest

from routesparse.engine.jobs.database import QueueAwayError, QueueUncertainError
from routesparse.engine.jobs.queue import LeaseLostError
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.scale import queue as postgres
from tests.engine.jobs.conftest import TEXT, submit


def test_that_was_cut_while_idle_is_made_anew_unnoticed(queue, cut):
    job_id = submit(queue)
    cut(queue)
    assert queue.job(job_id).state == "queued"
    cut(queue)
    assert queue.claim("w").job_id == job_id


def test_that_is_cut_within_a_change_undoes_it(queue, cut):
    job_id = submit(queue)
    with (
        pytest.raises(QueueAwayError, match="nothing was changed"),
        queue.database.transaction() as change,
    ):
        change.execute("UPDATE job SET label = 'half'")
        cut(queue)
        change.execute("UPDATE job SET label = 'whole'")
    assert queue.job(job_id).label != "half"


@pytest.fixture
def cut_at_commit(queue, cut, monkeypatch):
    """Cut the connection before, or right after, the next change is confirmed."""
    commit = postgres.PostgresQueue._commit

    def arm(when):
        def cut_commit(kept, connection):
            monkeypatch.setattr(postgres.PostgresQueue, "_commit", commit)
            if when == "after":
                connection.execute("COMMIT")
            cut(queue)
            commit(kept, connection)

        monkeypatch.setattr(postgres.PostgresQueue, "_commit", cut_commit)

    return arm


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("end", "state", "values"),
    [
        ("finish", "done", ("7-1",)),
        ("fail", "failed", ("model", "no", "1d")),
        ("cancelled", "cancelled", ()),
    ],
)
def test_that_is_cut_at_a_job_s_end_leaves_it_ended_once(queue, cut_at_commit, when, end, state, values):
    """The answer is lost; the worker asks again, as run_worker does. The prompt was not to be kept."""
    queue.submit(RunRequest(keep_text=False), TEXT)
    claim, write = queue.claim("w"), getattr(queue, end)
    cut_at_commit(when)
    with pytest.raises(QueueUncertainError):
        write(claim, *values)
    write(claim, *values)
    assert queue.job(claim.job_id).state == state and queue.prompts.names() == []
    for other in (("finish", "7-2"), ("fail", "model", "yes", "1d"), ("fail", "model", "no", "2e")):
        with pytest.raises(LeaseLostError):
            getattr(queue, other[0])(claim, *other[1:])


@pytest.mark.parametrize("when", ["before", "after"])
def test_that_is_cut_at_a_submission_queues_the_job_once_or_not_at_all(queue, cut_at_commit, when):
    cut_at_commit(when)
    if when == "after":
        job_id = submit(queue)
        assert [job.id for job in queue.jobs()] == [job_id] == queue.prompts.names()
    else:
        with pytest.raises(QueueUncertainError, match="Look at page Jobs"):
            submit(queue)
        (kept,) = queue.prompts.names()  # nobody knows yet that the server did not confirm it
        os.utime(queue.prompts.folder / f"{kept}.txt", (0, 0))
        queue.sweep_prompts()
        assert queue.jobs() == [] and queue.prompts.names() == []


def test_that_stays_away_after_a_submission_keeps_the_prompt(queue, cut_at_commit, monkeypatch):
    cut_at_commit("after")

    def away(*_):
        raise QueueAwayError("away")

    with monkeypatch.context() as patch:
        patch.setattr(postgres.PostgresQueue, "rows", away)
        patch.setattr(postgres.PostgresQueue, "now", lambda _: 1.0)
        with pytest.raises(QueueUncertainError):
            submit(queue)
    assert [job.id for job in queue.jobs()] == queue.prompts.names() != []
