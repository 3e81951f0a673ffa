"""Two owners, one queue: nobody sees, stops, repeats or deletes another's job. No GPU, no torch."""

from __future__ import annotations

import inspect
import json

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.jobs.estimate import job_estimate
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import bundle

ANN, BOB = "a" * 32, "b" * 32
# What pages ask of a job, with the arguments beside the job's id.
OF_A_JOB = {"retry", "job", "position", "cancel", "delete"}
OF_ALL_JOBS = {"held", "jobs", "made", "sweeps"}
OF_A_SWEEP = {"sweep", "cancel_sweep"}
# Workers serve everybody; ``of`` and ``submit`` say whose, ``workers`` is about processes.
NOT_SCOPED = {
    "of", "submit", "submit_sweep", "submit_texts", "close", "check_place", "workers", "now",
    "claim", "heartbeat", "finish", "fail", "cancelled", "release", "requeue_lost",
    "seen", "sweep_workers", "goodbye", "unpublished", "mark_published", "current_runs", "sweep_prompts",
    "durations", "tally", "ended_before", "forget", "waiting_since",  # of whoever keeps the home (engine/operations)
}  # fmt: skip


@pytest.fixture
def anns(queue):
    """A waiting job of Ann's; its text is kept."""
    return queue.of(ANN).submit(RunRequest(label="ann.txt"), "the secret of Ann")


def snapshot(queue):
    return [dict(row) for row in queue.database.rows("SELECT * FROM job ORDER BY seq")]


def test_every_method_of_the_queue_is_known_here():
    methods = {name for name, _ in inspect.getmembers(JobQueue, inspect.isfunction) if name[0] != "_"}
    assert methods == OF_A_JOB | OF_ALL_JOBS | OF_A_SWEEP | NOT_SCOPED, "say whose jobs a new method is about"


@pytest.mark.parametrize("name", sorted(OF_A_JOB))
@pytest.mark.parametrize("owner", [BOB, None])
def test_another_s_job_is_like_one_that_does_not_exist(queue, anns, owner, name):
    before = snapshot(queue)
    answers = []
    for job_id in (anns, "feedfeedfeedfeed"):
        try:
            answers.append(repr(getattr(queue.of(owner), name)(job_id)))
        except InputError as error:
            answers.append(str(error).replace(job_id, "JOB"))
    assert answers[0] == answers[1]
    assert snapshot(queue) == before
    assert queue.prompts.read(anns) == b"the secret of Ann"


def test_lists_hold_one_owner_s_jobs(queue, anns):
    bobs, local = queue.of(BOB).submit(RunRequest(), "text"), queue.submit(RunRequest(), "text")
    assert [[job.id for job in queue.of(owner).jobs()] for owner in (ANN, BOB, None)] == [
        [anns], [bobs], [local]
    ]  # fmt: skip
    assert [queue.of(owner).position(job) for owner, job in ((ANN, anns), (BOB, bobs), (None, local))] == [
        1, 2, 3
    ], "everybody waits for the same workers"  # fmt: skip


def test_a_page_can_not_choose_another_owner(queue):
    """What the address or a kept request says is overruled."""
    job_id = queue.of(BOB).submit(RunRequest(owner=ANN), "text")
    assert queue.of(ANN).job(job_id) is None
    assert json.loads(queue.of(BOB).job(job_id).request_json)["owner"] == BOB


def test_the_run_belongs_to_the_job_s_owner(queue, home, work):
    ids = {owner: queue.of(owner).submit(RunRequest(), "text") for owner in (ANN, BOB, None)}
    work()
    for owner, job_id in ids.items():
        run_id = queue.of(owner).job(job_id).run_id
        assert bundle.owner_of(home / "spool" / run_id) == owner
        assert [queue.of(other).made(run_id) for other in (ANN, BOB, None)] == [
            other == owner for other in (ANN, BOB, None)
        ]


def test_a_run_without_a_job_is_the_local_person_s(queue):
    assert queue.made("20261121-000411-7574b91e") and not queue.of(ANN).made("20261121-000411-7574b91e")


def test_estimates_come_from_one_s_own_jobs(queue, work):
    queue.of(ANN).submit(RunRequest(), "text")
    work()
    assert job_estimate(queue.of(ANN), RunRequest(), 4).jobs == 1
    assert job_estimate(queue.of(BOB), RunRequest(), 4) is None
