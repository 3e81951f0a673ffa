"""Jobs that prepare a model: requests, documents, the worker's handover. CPU, seconds."""

import json
import os
import signal

import pytest

from routesparse.engine.calibrate import fitting
from routesparse.engine.calibration import fitted
from routesparse.engine.cli.worker import calibrate, fit, measure_profile
from routesparse.engine.errors import InputError, PromptError
from routesparse.engine.jobs import staging, worker
from routesparse.engine.jobs.analysis import WarmModel, WarmPreparation
from routesparse.engine.jobs.documents import pack, unpack
from routesparse.engine.jobs.heartbeat import Interrupted
from routesparse.engine.jobs.kinds import CalibrateRequest, FitRequest, ProfileRequest, read_request
from routesparse.engine.jobs.log import tail
from routesparse.engine.jobs.presence import Device
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.files import revision_of
from routesparse.engine.prompts.text import decode_prompt

TEXTS = [f"Ledger number {place}: the harbour master counts vessels. " * 30 for place in range(4)]
SMALL = {"least_tokens": 520, "most_tokens": 600, "fold_a": 1, "fold_b": 2, "audit_rows": 32}


def documents(texts=TEXTS):
    return pack(decode_prompt(text.encode(), f"{place}.txt") for place, text in enumerate(texts))


def fake(request, content, folder, report):
    """A preparation that writes one line."""
    report("profile", 0, 2)
    target = folder / "profiles" / "made.json"
    target.parent.mkdir(parents=True)
    target.write_text(f"{request.kind} {len(content)}")
    return "made"


def test_a_kind_of_a_newer_version_fails_clearly(queue, alter, work):
    job_id = queue.submit(RunRequest(), "text")
    alter("UPDATE job SET kind = 'distil'")
    work(prepare=fake)
    failure = queue.job(job_id).failure
    assert failure.kind == "config"
    assert failure.message == "a job of kind 'distil' is not known to this version; update the worker"


@pytest.mark.parametrize(
    ("kind", "wishes", "message"),
    [
        (ProfileRequest, {"model": " "}, "names no model"),
        (ProfileRequest, {"probe": "loud"}, "probe is"),
        (CalibrateRequest, {"name": "../x"}, "is no name"),
        (CalibrateRequest, {"name": "x", "least_tokens": 100}, "is no range"),
        (CalibrateRequest, {"name": "x", "fold_b": 0}, "fold_b is 0"),
        (CalibrateRequest, {"name": "x", "policy": "strict"}, "policy is"),
        (CalibrateRequest, {"name": "x", "tau": 2.0}, "tau"),
        (FitRequest, {"name": "x", "tokens": 1_024}, "tokens is 1024"),
        (FitRequest, {"name": "x", "windows": 19}, "windows is 19"),
        (FitRequest, {"name": "mixed"}, "all kinds of text together"),
        (FitRequest, {"name": "x", "owner": "a" * 32}, "the operator makes it"),
    ],
)
def test_a_wrong_request_is_refused_where_it_is_made(kind, wishes, message):
    with pytest.raises(InputError, match=message):
        kind(**wishes)


def test_a_bundled_name_is_refused_at_submission_and_read_from_a_stored_job(queue):
    """Stored by a version that did not bundle it yet."""
    request = CalibrateRequest("prose")
    with pytest.raises(InputError, match="'prose' is bundled; choose another domain"):
        queue.submit(request, documents())
    assert queue.jobs() == [] and queue.prompts.names() == []
    assert read_request("calibrate", request.to_json()) == request


@pytest.mark.parametrize(
    ("texts", "message"),
    [([TEXTS[0]], "1 document is too few"), ([TEXTS[0]] * 2, "are the same text"), (["a", " "], "is empty")],
)
def test_documents_that_make_no_two_folds_are_refused(queue, texts, message):
    with pytest.raises(PromptError, match=message):
        documents(texts)
    lines = "".join(json.dumps({"name": "n", "text": text}) + "\n" for text in texts)
    with pytest.raises(PromptError, match=message):
        queue.submit(CalibrateRequest("mine"), lines)
    assert queue.jobs() == []
    assert queue.prompts.names() == []


def test_documents_come_back_as_they_were():
    text = "two\nlines, a \u2028 separator and “quotes”"
    found = unpack(documents([text, "another"]))
    assert [(one.name, one.text) for one in found] == [("0.txt", text), ("1.txt", "another")]
    assert found[0].sha256 == decode_prompt(text.encode(), "0.txt").sha256
    with pytest.raises(PromptError, match="can't be read"):
        unpack(b"{}\n")


def test_a_result_appears_in_the_home_when_its_job_is_done(queue, home, work):
    job_id = queue.submit(ProfileRequest())
    work(prepare=fake)
    job = queue.job(job_id)
    assert (job.kind, job.state, job.result, job.label) == (
        "profile",
        "done",
        "made",
        "latency profile for demo",
    )
    assert (home / "profiles" / "made.json").read_text() == "profile 0"
    assert list((home / "spool" / staging.STAGED).iterdir()) == []
    assert queue.unpublished() == []
    assert [path.name for path in (home / "spool").glob("[!.]*")] == []


def test_a_cancelled_job_leaves_nothing_and_can_be_tried_again(queue, home, work):
    def cancelled(request, content, folder, report):
        fake(request, content, folder, report)
        queue.cancel(job_id)
        while True:
            report("profile", 1, 2)

    job_id = queue.submit(CalibrateRequest("mine"), documents())
    work(prepare=cancelled)
    assert queue.job(job_id).state == "cancelled"
    assert not (home / "profiles").exists()
    assert list((home / "spool" / staging.STAGED).iterdir()) == []
    again = queue.retry(job_id)
    work(prepare=fake)
    assert (queue.job(again).kind, queue.job(again).state) == ("calibrate", "done")


def test_a_worker_that_only_analyses_says_so(queue, work):
    job_id = queue.submit(ProfileRequest())
    work()
    assert "this worker runs no job of kind 'profile'" in queue.job(job_id).failure.message


@pytest.mark.parametrize("place", ["written", "finished"])
def test_a_killed_preparation_is_never_half_used(queue, home, work, place, monkeypatch):
    """Killed before the job is done it runs again; killed after, the next worker moves its result into place."""
    job_id = queue.submit(ProfileRequest())
    child = os.fork()
    if child == 0:
        if place == "finished":
            staging.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        else:
            JobQueue.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        worker.run_worker(home, None, fake, once=True)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not (home / "profiles").exists()
    work(prepare=fake)
    job = queue.job(job_id)
    assert (job.state, job.attempt) == ("done", 2 if place == "written" else 1)
    assert (home / "profiles" / "made.json").is_file()
    assert list((home / "spool" / staging.STAGED).iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "x", "on_gpu": 1, "memory_bytes": 5}'])
def test_a_device_that_nobody_can_read_is_unknown(queue, alter, content):
    queue.seen("w")
    alter(f"UPDATE worker SET device = '{content}'")
    (worker_seen,) = queue.workers()
    assert (worker_seen.id, worker_seen.device) == ("w", None)


def test_a_device_stays_known_when_its_worker_reports_again(queue):
    device = Device("NVIDIA H200", True, 150 << 30)
    queue.seen("w")
    queue.seen("w", device)
    queue.seen("w")
    assert [(one.id, one.device) for one in queue.workers()] == [("w", device)]


def test_a_model_is_profiled_and_calibrated_by_jobs(queue, home, tiny_model):
    """With the engine, on a tiny random Llama: both results are whole, named, and the logs quote no text."""
    from routesparse.engine.calibration.artifact import load_calibration
    from routesparse.engine.jobs.analysis import WarmAnalysis
    from routesparse.engine.profiles.files import load_profile

    model = str(tiny_model.save(home / "models" / "tiny"))
    warm = WarmModel()
    profiled = queue.submit(ProfileRequest(model, quick=True))
    calibrated = queue.of("a" * 32).submit(
        CalibrateRequest("mine", model, segment=1_024, **SMALL), documents()
    )
    prepare = WarmPreparation(measure_profile, calibrate, fit, warm)
    worker.run_worker(home, WarmAnalysis(None, warm), prepare, once=True, poll_s=0.01)
    job = queue.job(profiled)
    assert (job.state, job.failure) == ("done", None)
    assert load_profile(job.result).head_dim == tiny_model.SHAPE.head_dim
    job = queue.of("a" * 32).job(calibrated)
    assert (job.state, job.failure, job.result) == ("done", None, "mine")
    made = load_calibration("mine", "a" * 32)
    assert (made.model, made.domain) == ("tiny", "mine")
    # Of both folds. How many have a sparse unit, which a delta needs, depends on the times that were just measured.
    assert len(made.prompts) == 3
    with pytest.raises(InputError):
        load_calibration("mine")
    stages = [line["stage"] for line in tail(home, calibrated) if line["event"] == "stage"]
    assert stages == ["load", "tokenize", "fold A", "fold B", "write"]
    assert "harbour" not in (home / "logs" / "worker.jsonl").read_text()


def test_a_kind_of_text_is_fitted_by_a_job_and_added_to_the_fit_that_is_there(
    queue, home, tiny_model, monkeypatch
):
    """With the engine: heads are weighed once, a kind replaces its own windows alone, other tokens are refused."""
    monkeypatch.setattr(tiny_model, "LIMIT", 1_200)
    monkeypatch.setattr(fitted, "PRICES", (4.0,))
    monkeypatch.setattr(fitting, "HEAD_TEXTS", 1)
    model = tiny_model.save_profiled(home)
    prepare = WarmPreparation(measure_profile, calibrate, fit, WarmModel())

    def made(name, texts=TEXTS, tokens=1_025):
        job_id = queue.submit(FitRequest(name, str(model), 20, tokens), documents(texts))
        worker.run_worker(home, None, prepare, once=True, poll_s=0.01)
        stages = [line["stage"] for line in tail(home, job_id) if line["event"] == "stage"]
        return queue.job(job_id), stages, fitted.of_model(revision_of(model))

    def cancelled_at(*place):
        def report(stage, done, total):
            if (stage, done) == place:
                raise Interrupted("cancelled")

        with pytest.raises(Interrupted):
            prepare(FitRequest("law", str(model), 20, 1_025), documents(), home / "staged", report)

    cancelled_at("heads", 2)
    cancelled_at("windows", 3)
    job, stages, first = made("law")
    assert (job.state, job.failure, job.result) == ("done", None, "tiny")
    assert stages == ["load", "tokenize", "heads", "windows", "write"]
    assert (first.domains, first.prices, len(first.windows)) == (["law"], (4.0,), 20)
    assert first.head_floors and max(one.kl[0] for one in first.windows) > 0
    job, stages, both = made("verse")
    assert "heads" not in stages and both.domains == ["law", "verse"] and both.of("law") == first.of("law")
    assert (both.weights, both.head_floors, both.stamp) == (first.weights, first.head_floors, first.stamp)
    _, _, again = made("law", TEXTS[:2])
    assert again.of("verse") == both.of("verse")
    assert {one.document for one in again.of("law")} == {"0.txt", "1.txt"}
    job, _, same = made("law", tokens=1_100)
    assert job.failure.kind == "calibration" and same == again
    assert "has windows of 1,025 tokens, prices 4.0 and pattern library" in job.failure.message
    with pytest.raises(InputError, match="the operator makes it"):
        queue.of("a" * 32).submit(FitRequest("law"), documents())
