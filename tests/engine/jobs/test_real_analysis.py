"""The worker with the engine itself, on a tiny random Llama: one model stays warm, runs are named by their job."""

import numpy as np
import pytest

from routesparse.engine.analyze import analyze_prompt
from routesparse.engine.audit.answer import CONTINUED
from routesparse.engine.jobs.analysis import WarmAnalysis
from routesparse.engine.jobs.log import tail
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.jobs.worker import run_worker
from routesparse.engine.models import load as engine_models
from routesparse.engine.store.bundle import read_bundle

TEXT = "The harbour master writes a ledger of vessels. " * 15


@pytest.fixture
def tiny(tiny_model, home):
    """A home with a model in it."""
    return tiny_model.save(home / "tiny")


@pytest.fixture
def loads(monkeypatch):
    """Every model that was loaded, by name."""
    seen, load = [], engine_models.load_model

    def counted(name, **options):
        seen.append(name)
        return load(name, **options)

    monkeypatch.setattr(engine_models, "load_model", counted)
    return seen


def request(model, **wishes):
    return RunRequest(model=str(model), segment=1_024, break_even=0, label="ledger.txt", **wishes)


def test_a_prompt_becomes_a_routed_audited_run(queue, home, tiny):
    job_id = queue.submit(request(tiny, audit="rows", measure_dense=True, domain="prose", seed=3), TEXT)
    run_worker(home, WarmAnalysis(analyze_prompt), once=True, poll_s=0.01)
    job = queue.job(job_id)
    assert (job.state, job.failure) == ("done", None)
    record = read_bundle(home / "spool" / f"{job_id}-1")
    run = record.run
    assert (run.run_id, run.prompt_name, run.domain, run.seed) == (f"{job_id}-1", "ledger.txt", "prose", 3)
    assert (run.prompt_sha256, run.tokens, run.routed) == (job.prompt_sha256, len(TEXT) + 1, True)
    assert run.dense_ms is not None
    assert (run.audit_depth, run.units) == ("rows", len(record.choices))
    assert record.probes
    (row,) = record.continuations
    assert row.same_tokens <= row.tokens <= CONTINUED and row.routed_text.startswith(row.same_text)
    assert row.dense_text.startswith(row.same_text.rstrip("\ufffd"))
    assert record.prompt.text == TEXT
    starts = np.frombuffer(record.prompt.token_starts, "<i4")
    assert len(starts) == run.tokens + 1 and starts[-1] == len(TEXT)
    stages = [line["stage"] for line in tail(home, job_id) if line["event"] == "stage"]
    assert [stage for stage in stages if stage != "profile"] == [
        "load",
        "tokenize",
        "route",
        "dense",
        "write",
    ]
    assert "harbour" not in (home / "logs" / "worker.jsonl").read_text()


def test_text_that_is_not_kept_is_nowhere(queue, home, tiny):
    job_id = queue.submit(request(tiny, keep_text=False, audit="rows"), TEXT)
    run_worker(home, WarmAnalysis(analyze_prompt), once=True, poll_s=0.01)
    assert read_bundle(home / "spool" / f"{job_id}-1").prompt is None
    assert queue.prompts.names() == []
    (row,) = read_bundle(home / "spool" / f"{job_id}-1").continuations
    assert (row.same_text, row.dense_text, row.routed_text) == (None, None, None)
    kept = [file for file in home.rglob("*") if file.is_file() and b"harbour" in file.read_bytes()]
    assert kept == []


def test_one_model_stays_warm_and_another_takes_its_place(queue, home, tiny_model, tiny, loads):
    other = tiny_model.save(home / "other", seed=1)
    ids = [queue.submit(request(model), TEXT) for model in (tiny, tiny, other, tiny)]
    run_worker(home, WarmAnalysis(analyze_prompt), once=True, poll_s=0.01)
    assert [queue.job(job_id).state for job_id in ids] == ["done"] * 4
    assert loads == [str(tiny), str(other), str(tiny)]
    revisions = [read_bundle(home / "spool" / f"{job_id}-1").run.model_revision for job_id in ids]
    assert revisions[0] == revisions[1] == revisions[3] != revisions[2]


@pytest.mark.parametrize(
    ("wishes", "text", "kind"),
    [
        ({}, "x" * 1_001, "prompt"),
        ({"model": "nonesuch"}, TEXT, "model"),
        ({"calibration": "nonesuch"}, TEXT, "calibration"),
        ({"profile": "nonesuch"}, TEXT, "profile"),
    ],
)
def test_what_the_engine_refuses_fails_with_its_kind(queue, home, tiny, wishes, text, kind):
    job_id = queue.submit(request(**{"model": tiny, **wishes}), text)
    run_worker(home, WarmAnalysis(analyze_prompt), once=True, poll_s=0.01)
    assert queue.job(job_id).failure.kind == kind


def test_a_cancelled_prefill_leaves_the_warm_model_as_it_was(queue, home, tiny, loads):
    analysis = WarmAnalysis(analyze_prompt)

    def cancelled_at_the_first_layer(request, prompt, run_id, report):
        def slow(stage, done, total):
            if (stage, done) == ("route", 1):
                queue.cancel(job_id)
                while True:
                    report(stage, done, total)
            report(stage, done, total)

        return analysis(request, prompt, run_id, slow)

    job_id = queue.submit(request(tiny), TEXT)
    run_worker(home, cancelled_at_the_first_layer, once=True, poll_s=0.01, beat_s=0.02)
    assert queue.job(job_id).state == "cancelled"
    again = queue.retry(job_id)
    run_worker(home, analysis, once=True, poll_s=0.01)
    assert queue.job(again).state == "done"
    assert len(loads) == 1
