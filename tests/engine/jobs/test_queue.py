"""The queue's rules, one by one, with time moved by hand."""

import os
import stat
import threading

import pytest

from routesparse.engine.errors import ConfigError, InputError, PromptError, StoreError
from routesparse.engine.jobs.database import SqliteFile
from routesparse.engine.jobs.queue import MAX_LOSSES, JobQueue, LeaseLostError
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.scale.queue import PostgresQueue
from tests.engine.jobs.conftest import TEXT, claimed, done, submit


@pytest.fixture
def clock(monkeypatch):
    """The queue's clocks, moved by hand: the wall clock ``now``, which may be set, and the monotonic one."""

    class Clock:
        now = 1_000_000.0
        set_by = 0.0

    clock = Clock()
    for kind in (SqliteFile, PostgresQueue):
        monkeypatch.setattr(kind, "now", lambda _: clock.now)
        monkeypatch.setattr(kind, "lease_clock", lambda _: clock.now - clock.set_by - 999_000.0)
    return clock


def test_a_job_waits_runs_and_is_done(queue):
    job_id = submit(queue, label="ledger.txt")
    waiting = queue.job(job_id)
    assert (waiting.state, waiting.label, waiting.attempt) == ("queued", "ledger.txt", 0)
    assert waiting.prompt_bytes == len(TEXT) and len(job_id) == 16
    claim = queue.claim("w1")
    assert (claim.job_id, claim.attempt, claim.run_id) == (job_id, 1, f"{job_id}-1")
    assert RunRequest.from_json(claim.request_json).label == "ledger.txt"
    assert queue.heartbeat(claim, progress=("route", 3, 8)) is False
    running = queue.job(job_id)
    assert (running.state, running.worker) == ("running", "w1")
    assert (running.stage, running.done, running.total) == ("route", 3, 8)
    queue.finish(claim, claim.run_id)
    done = queue.job(job_id)
    assert (done.state, done.run_id, done.failure, done.ended) == ("done", claim.run_id, None, True)
    assert done.created_at <= done.started_at <= done.finished_at


def test_the_oldest_job_comes_first_and_positions_count_down(queue):
    first, second, third = (submit(queue) for _ in range(3))
    assert [queue.position(job) for job in (first, second, third)] == [1, 2, 3]
    assert queue.claim("w").job_id == first
    assert [queue.position(job) for job in (first, second, third, "nonesuch")] == [None, 1, 2, None]
    assert [job.id for job in queue.jobs()] == [third, second, first]
    assert [job.id for job in queue.jobs(["running"])] == [first]
    assert len(queue.jobs(limit=2)) == 2 and queue.job("nonesuch") is None


@pytest.mark.parametrize("content", [b"", b"  \n", b"\xff\xfe\x00", b"a\0b", b"\xc3("])
def test_what_is_no_text_is_refused_and_leaves_nothing(queue, content):
    with pytest.raises(PromptError):
        queue.submit(RunRequest(), content)
    with pytest.raises(ConfigError):
        submit(queue, tau=2.0)
    assert queue.jobs() == [] == queue.prompts.names()


def test_a_full_disk_refuses_a_job_and_leaves_nothing(queue, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="disk is full"):
        submit(queue)
    monkeypatch.undo()
    assert queue.jobs() == [] == list(queue.prompts.folder.iterdir())


class TestPrompts:
    def test_are_kept_as_submitted_for_their_user_only(self, queue):
        content = "\ufeffnaïve".encode()
        job_id = queue.submit(RunRequest(label="../../x"), content)
        file = queue.prompts.folder / f"{job_id}.txt"
        assert file.read_bytes() == queue.prompts.read(job_id) == content
        assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]

    @pytest.mark.parametrize("end", ["finish", "fail", "cancelled", "release", "lost"])
    @pytest.mark.parametrize("keep_text", [True, False])
    def test_go_when_nobody_needs_them(self, queue, clock, keep_text, end):
        claim = claimed(queue, keep_text=keep_text)
        if end == "lost":
            clock.now += 60
            queue.requeue_lost()
        else:
            getattr(queue, end)(claim, *{"finish": (claim.run_id,), "fail": ("model", "no")}.get(end, ()))
        kept = end in ("release", "lost") or (keep_text and end != "finish")
        assert (claim.job_id in queue.prompts.names()) is kept

    def test_without_a_row_are_swept_when_old(self, queue):
        kept, ended = submit(queue), submit(queue)
        queue.cancel(ended)
        queue.delete(ended)
        for name in ("abandoned", "justnow"):
            queue.prompts.write(name, b"text")
        os.utime(queue.prompts.folder / "abandoned.txt", (0, 0))
        queue.sweep_prompts()
        assert set(queue.prompts.names()) == {kept, "justnow"}

    def test_make_another_try(self, queue):
        job_id = submit(queue, label="again", tau=0.8)
        queue.fail(queue.claim("w"), "out_of_memory", "no")
        again = queue.retry(job_id)
        assert again != job_id and queue.prompts.read(again) == TEXT.encode()
        assert queue.job(again).request_json == queue.job(job_id).request_json
        queue.prompts.remove(job_id)
        with pytest.raises(PromptError, match="submit it again"):
            queue.retry(job_id)


class TestCancel:
    def test_of_a_waiting_job_is_immediate_and_of_an_ended_one_nothing(self, queue):
        job_id = submit(queue)
        assert queue.cancel(job_id) == "cancelled" and queue.claim("w") is None
        claim = done(queue)
        assert queue.cancel(claim.job_id) == "done"
        with pytest.raises(InputError, match="no job is called"):
            queue.cancel("nonesuch")

    def test_of_a_running_job_asks_its_worker(self, queue):
        claim = claimed(queue)
        assert queue.cancel(claim.job_id) == "running" and queue.job(claim.job_id).cancel_requested
        assert queue.heartbeat(claim) is True
        queue.cancelled(claim)
        assert queue.job(claim.job_id).state == "cancelled"

    def test_holds_when_the_worker_is_lost_or_leaves(self, queue, clock):
        lost, left = submit(queue), submit(queue)
        queue.claim("w1", 30)
        claim = queue.claim("w2", 90)
        queue.cancel(lost)
        queue.cancel(left)
        clock.now += 60
        queue.requeue_lost()
        queue.release(claim)
        assert queue.job(lost).state == queue.job(left).state == "cancelled"
        assert queue.job(lost).finished_at == clock.now


class TestLeases:
    @pytest.mark.parametrize("jump_s", [0.0, 3600.0, -3600.0])
    def test_a_lost_job_goes_back_to_its_place_however_a_clock_is_set(self, queue, clock, jump_s):
        first, second = submit(queue), submit(queue)
        queue.claim("w1", 30)
        clock.now += jump_s + 29
        clock.set_by += jump_s
        assert queue.requeue_lost() == [] and queue.held() and not queue.of("a" * 32).held()
        clock.now += 2
        assert not queue.held() and queue.requeue_lost() == [first]
        job = queue.job(first)
        assert (job.state, job.attempt, job.losses, job.worker, job.stage) == ("queued", 1, 1, None, None)
        assert [queue.position(job) for job in (first, second)] == [1, 2]
        assert queue.claim("w2").attempt == 2

    def test_a_lease_from_before_the_machine_s_last_start_has_run_out(self, queue, clock):
        job_id = submit(queue)
        queue.claim("w", 30)
        clock.set_by += 900.0  # the clock begins anew; the worker's lock file may be missing, as in a backup
        assert queue.requeue_lost() == [job_id]

    def test_a_heartbeat_renews_the_lease_also_late_while_nobody_took_the_job(self, queue, clock):
        submit(queue)
        claim = queue.claim("w", 30)
        for wait_s in (20, 20, 20, 100):
            clock.now += wait_s
            queue.heartbeat(claim, 30)
        assert queue.requeue_lost() == []

    def test_a_job_that_loses_its_workers_fails(self, queue, clock):
        job_id = submit(queue)
        for _ in range(MAX_LOSSES):
            queue.heartbeat(queue.claim("w", 30), 30, ("route", 1, 8))
            clock.now += 31
            queue.requeue_lost()
        job = queue.job(job_id)
        assert (job.state, job.failure.kind, job.losses) == ("failed", "worker_lost", 3)
        assert "worker lost: 3 workers" in job.failure.message and "stage 'route'" in job.failure.message

    def test_leaving_in_good_order_is_no_loss(self, queue):
        job_id = submit(queue)
        for _ in range(MAX_LOSSES + 2):
            queue.release(queue.claim("w"))
        job = queue.job(job_id)
        assert (job.state, job.losses, job.attempt) == ("queued", 0, MAX_LOSSES + 2)

    @pytest.mark.parametrize("then", ["waits", "runs again", "has ended"])
    def test_a_worker_that_lost_its_lease_changes_nothing(self, queue, clock, then):
        job_id = submit(queue)
        stale = queue.claim("w1", 30)
        clock.now += 31
        queue.requeue_lost()
        if then != "waits":
            fresh = queue.claim("w2", 30)
        if then == "has ended":
            queue.finish(fresh, fresh.run_id)
        before = queue.job(job_id)
        for write in ("heartbeat", "finish", "fail", "cancelled", "release"):
            arguments = {"finish": (stale.run_id,), "fail": ("model", "no")}.get(write, ())
            with pytest.raises(LeaseLostError):
                getattr(queue, write)(stale, *arguments)
            assert queue.job(job_id) == before

    def test_a_job_ends_once(self, queue):
        claim = done(queue)
        before = queue.job(claim.job_id)
        queue.finish(claim, claim.run_id)  # harmless: the answer to the first may have been lost
        for name, arguments in (("finish", ("another",)), ("fail", ("model", "no")), ("cancelled", ())):
            with pytest.raises(LeaseLostError):
                getattr(queue, name)(claim, *arguments)
        assert queue.job(claim.job_id) == before


def test_many_threads_never_get_the_same_job(home):
    queues = [JobQueue(home, busy_timeout_s=60) for _ in range(4)]
    expected, claimed = {submit(queues[0]) for _ in range(40)}, []

    def work(queue):
        while (claim := queue.claim("w")) is not None:
            claimed.append(claim.job_id)

    threads = [threading.Thread(target=work, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for queue in queues:
        queue.close()
    assert len(claimed) == 40 and set(claimed) == expected


def test_workers_are_seen_until_they_say_goodbye(queue, clock):
    queue.seen("w1")
    clock.now += 5
    queue.seen("w2")
    submit(queue)
    claim = queue.claim("w1")
    clock.now += 5
    queue.heartbeat(claim)
    seen = [(worker.id, worker.seen_at - worker.started_at) for worker in queue.workers()]
    assert seen == [("w1", 10), ("w2", 0)]
    queue.goodbye("w1")
    clock.now += 54
    assert [worker.id for worker in queue.workers()] == ["w2"]
    clock.now += 10
    assert queue.workers() == [], "this home knows nothing of it, and it is silent"
    clock.now += 2 * 24 * 3600
    queue.seen("w3")
    assert [row["id"] for row in queue.database.rows("SELECT id FROM worker")] == ["w3"]


def test_only_an_ended_and_handed_over_job_is_deleted(queue):
    job_id = submit(queue)
    with pytest.raises(InputError, match="cancel it first"):
        queue.delete(job_id)
    claim = queue.claim("w")
    queue.finish(claim, claim.run_id)
    with pytest.raises(InputError, match="handed over"):
        queue.delete(job_id)
    queue.mark_published(claim.run_id)
    queue.delete(job_id)
    assert queue.job(job_id) is None
