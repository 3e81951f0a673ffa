"""A job in which native code gives up, which Python does not call an Exception: it fails, and the worker goes on."""

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.jobs.worker import run_worker


def test_a_panic_is_the_models_failure_and_the_next_job_runs(queue, home):
    catastrophic = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    catastrophic.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    jobs = [queue.submit(RunRequest(model="demo"), "aaaa") for _ in range(2)]

    def analyze(request, prompt, run_id, report):
        catastrophic.encode("a" * 3_000 + "!")

    assert run_worker(home, analyze, once=True, poll_s=0.01) == 0
    failed = [queue.job(job) for job in jobs]
    assert [(job.state, job.failure.kind) for job in failed] == [("failed", "model")] * 2
    assert "tokenizer" in failed[0].failure.message and "memory" not in failed[0].failure.message
