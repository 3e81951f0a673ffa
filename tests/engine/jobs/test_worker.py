"""The worker in this process with a fake analysis: outcomes, typed failures, stopping, logs. CPU, seconds."""

import errno
import functools
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from routesparse.engine import errors
from routesparse.engine.jobs import worker
from routesparse.engine.jobs.log import tail
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.jobs.signals import Flag
from routesparse.engine.jobs.worker import run_worker
from routesparse.engine.store import bundle
from tests.engine.jobs.worker_process import staged, visible

SECRET = "the vault opens at seven with the word heliotrope"


@pytest.fixture
def analysis(fakes, home):
    """The fake analysis: three layers, no waiting."""
    return fakes.fake_analysis(home)


def submit(queue, **wishes):
    return queue.submit(RunRequest(**wishes), SECRET)


def log_text(home):
    log = home / "logs" / "worker.jsonl"
    return log.read_text() if log.exists() else ""


def test_a_job_leaves_its_bundle_in_the_spool(queue, home, work):
    job_id = submit(queue, label="vault.txt")
    work()
    job = queue.job(job_id)
    assert (job.state, job.run_id) == ("done", f"{job_id}-1")
    assert visible(home) == [job.run_id]
    assert bundle.verify_bundle(home / "spool" / job.run_id).run_id == job.run_id
    assert staged(home) == []
    assert queue.unpublished() == []
    assert queue.workers() == [], "a worker that ends says goodbye"


def test_progress_reaches_the_queue(queue, work, analysis, until):
    seen = []

    def analyze(request, prompt, run_id, report):
        for layer in range(3):
            report("route", layer, 8)
            until(lambda layer=layer: queue.jobs()[0].done == layer, "progress")
            job = queue.jobs()[0]
            seen.append((job.stage, job.done, job.total))
        return analysis(request, prompt, run_id, report)

    submit(queue)
    work(analyze)
    assert seen == [("route", 0, 8), ("route", 1, 8), ("route", 2, 8)]


class OutOfMemoryError(RuntimeError):
    """Stands for a CPU allocator's error."""


ran_out = errors.ModelError("model cannot be loaded")
ran_out.__cause__ = RuntimeError("DefaultCPUAllocator: can't allocate memory")
FAILURES = [
    (errors.PromptError("prompt 'x' has only 1 token; pass at least 2"), "prompt", "at least 2"),
    (errors.UnsupportedModelError("llama4 is refused"), "unsupported_model", "llama4 is refused"),
    (errors.ModelError("no config.json"), "model", "no config.json"),
    (errors.CalibrationError("another model"), "calibration", "another model"),
    (errors.ProfileError("another device"), "profile", "another device"),
    (errors.ConfigError("segment 100"), "config", "segment 100"),
    (errors.NumericsError("NaN in the logits"), "numerics", "NaN in the logits"),
    (errors.BundleError("probe takes 30 MB"), "bundle", "30 MB"),
    (errors.StoreError("folder is not writable"), "store", "not writable"),
    (MemoryError(), "out_of_memory", "shorten it"),
    (OutOfMemoryError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "out_of_memory", "shorten it"),
    (ran_out, "out_of_memory", "shorten it"),
    (OSError(errno.ENOSPC, "No space left on device"), "disk_full", "Free space"),
    (KeyError(SECRET), "unexpected", "unexpected KeyError"),
]


@pytest.mark.parametrize(("error", "kind", "message"), FAILURES, ids=[kind for _, kind, _ in FAILURES])
def test_a_failure_has_a_kind_and_says_what_to_do(queue, home, work, error, kind, message):
    def analyze(request, prompt, run_id, report):
        raise error

    job_id = submit(queue)
    work(analyze)
    job = queue.job(job_id)
    assert (job.state, job.failure.kind) == ("failed", kind)
    assert message in job.failure.message
    assert SECRET not in job.failure.message
    assert SECRET not in log_text(home)
    entry = next(line for line in tail(home, job_id) if line["event"] == "failure")
    assert (entry["kind"], entry["log_id"], entry["error"]) == (
        kind,
        job.failure.log_id,
        type(error).__name__,
    )
    assert any("test_worker.py" in frame for frame in entry["frames"])
    assert visible(home) == staged(home) == []


def test_a_disk_that_fills_while_the_bundle_is_written(queue, home, work, monkeypatch):
    write = bundle.plain_files.write_synced

    def full(file, content):
        if file.name == "audit.parquet":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, content)

    monkeypatch.setattr(bundle.plain_files, "write_synced", full)
    job_id = submit(queue)
    work()
    job = queue.job(job_id)
    assert (job.failure.kind, "the disk is full" in job.failure.message) == ("disk_full", True)
    assert visible(home) == staged(home) == []
    monkeypatch.setattr(bundle.plain_files, "write_synced", write)
    again = queue.retry(job_id)
    work()
    assert queue.job(again).state == "done"


def endless(report):
    """Layers without end, until somebody interrupts."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        report("route", 1, 2)
        time.sleep(0.005)
    raise AssertionError("nobody interrupted the analysis")


def test_a_running_job_is_cancelled_between_layers(queue, home, work, analysis):
    def analyze(request, prompt, run_id, report):
        if request.label == "long":
            assert queue.cancel(run_id.split("-")[0]) == "running"
            endless(report)
        return analysis(request, prompt, run_id, report)

    long, short = submit(queue, label="long"), submit(queue, label="short")
    work(analyze)
    assert [queue.job(job).state for job in (long, short)] == ["cancelled", "done"]
    assert visible(home) == [f"{short}-1"]
    assert "job_cancelled" in [line["event"] for line in tail(home, long)]


def test_a_job_that_was_taken_back_is_left_alone(queue, home, alter, work, analysis):
    def analyze(request, prompt, run_id, report):
        if run_id.endswith("-1"):
            alter("UPDATE job SET state = 'queued', lease_until = NULL, worker = NULL")
            endless(report)
        return analysis(request, prompt, run_id, report)

    job_id = submit(queue)
    work(analyze)
    assert (queue.job(job_id).state, queue.job(job_id).run_id) == ("done", f"{job_id}-2")
    assert visible(home) == [f"{job_id}-2"]


def test_a_bundle_whose_job_was_taken_meanwhile_is_discarded(queue, home, alter, work, analysis):
    def analyze(request, prompt, run_id, report):
        record = analysis(request, prompt, run_id, report)
        alter("UPDATE job SET attempt = 2, worker = 'other', lease_until = lease_until + 20")
        return record

    job_id = submit(queue)
    work(analyze, beat_s=60.0)
    job = queue.job(job_id)
    assert (job.state, job.worker, job.run_id) == ("running", "other", None)
    assert visible(home) == staged(home) == []
    assert tail(home, job_id)[-1]["event"] == "job_lost"


def test_a_stopping_worker_puts_its_job_back(queue, home, fakes):
    stop = Flag()

    def analyze(request, prompt, run_id, report):
        stop.set()
        endless(report)

    job_id = submit(queue)
    assert run_worker(home, analyze=analyze, stop=stop, beat_s=0.02) == 0
    stop.close()
    job = queue.job(job_id)
    assert (job.state, job.losses, job.worker) == ("queued", 0, None)
    assert staged(home) == visible(home) == []


def test_a_locked_queue_is_waited_out(queue, home, monkeypatch, analysis, until):
    """Locked until the worker has said so, and for a while: while claiming, and while beating and finishing."""
    monkeypatch.setattr(worker, "JobQueue", functools.partial(JobQueue, busy_timeout_s=0.05))
    monkeypatch.setattr(worker, "RETRY_S", 0.05)
    job_id = submit(queue)
    locked = threading.Event()

    def hold(event):
        other = JobQueue(home)
        with other.database.transaction():
            locked.set()
            until(lambda: event in log_text(home), event)
            time.sleep(0.5)  # several more tries
        other.close()

    def lock(event):
        locked.clear()
        thread = threading.Thread(target=hold, args=(event,))
        thread.start()
        assert locked.wait(30)
        return thread

    threads = []

    def analyze(request, prompt, run_id, report):
        threads.append(lock("write_missed"))
        return analysis(request, prompt, run_id, report)

    threads.append(lock("queue_unavailable"))
    assert run_worker(home, once=True, analyze=analyze, beat_s=0.05, poll_s=0.05) == 0
    for thread in threads:
        thread.join()
    assert queue.job(job_id).state == "done"
    assert visible(home) == [f"{job_id}-1"]
    events = [json.loads(line)["event"] for line in log_text(home).splitlines()]
    assert events.count("queue_unavailable") == 1, "one line per outage"
    assert events.count("write_missed") == 1


def test_an_idle_worker_has_not_loaded_torch(home):
    code = (
        "import sys; from routesparse.engine.cli.worker import worker; "
        "worker(once=True); print('torch' in sys.modules, 'duckdb' in sys.modules)"
    )
    environment = {**os.environ, "ROUTESPARSE_HOME": str(home)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "False"]


def test_the_log_tells_a_job_s_story_without_its_text(queue, home, work):
    job_id, other = submit(queue, label="vault.txt"), submit(queue)
    work()
    story = tail(home, job_id)
    assert [line["event"] for line in story] == ["job_started", "stage", "stage", "job_done"]
    assert [line.get("stage") for line in story[1:3]] == ["route", "write"]
    assert {line["run"] for line in story} == {f"{job_id}-1"}
    assert {line["job"] for line in tail(home, other)} == {other}
    assert SECRET not in log_text(home)
    assert len(tail(home, job_id, limit=2)) == 2


def test_a_worker_that_cannot_compile_ahead_runs_its_jobs(queue, work, home, until):
    def compile_ahead():
        raise RuntimeError("the driver is too old")

    job = submit(queue)
    work(compile_ahead=compile_ahead)
    until(lambda: '"event": "kernels_not_compiled"' in log_text(home), "the line")
    assert queue.job(job).state == "done"
    assert "too old" not in log_text(home)  # messages of unexpected errors stay out
