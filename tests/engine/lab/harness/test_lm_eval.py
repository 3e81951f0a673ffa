"""The harness itself, run by its command line with our model and our tasks. CPU; needs `make lm-eval`."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from routesparse.engine.lab.runner import predict as predicting
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.prepare import all_prepared, prepare
from routesparse.engine.lab.runner.score import score
from routesparse.engine.lab.studies.selection.measure import Bench
from routesparse.engine.progress import no_progress
from tests.engine import shipped_profile

ROOT = Path(__file__).resolve().parents[4]
TASKS, LENGTH, N, NEW_TOKENS = ("niah_multikey_2", "niah_multivalue"), 1_300, 1, 48

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None and not Path(sys.prefix, "lm-eval", ".installed").exists(),
    reason="lm-evaluation-harness is not installed; `make lm-eval` does it",
)


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """Run the harness on our tasks with some model arguments; its results and its samples by task."""
    folder = tmp_path_factory.mktemp("harness")
    shipped_profile.keep(folder / "home")
    (folder / "prose" / "test").mkdir(parents=True)
    prose = (ROOT / "data" / "samples" / "prompts" / "prose.txt").read_text()
    (folder / "prose" / "test" / "145.txt").write_text(prose)

    def call(arguments, *others):
        metadata = {
            "length": LENGTH,
            "n": N,
            "prompt_seed": 6,
            "data": str(folder),
            "out": str(folder / "out"),
        }
        command = [
            *(sys.executable, "-m", "routesparse.engine.lab.harness.lm_eval", "--model", "routesparse"),
            *("--model_args", arguments, "--include_path", ROOT / "engine/lab/harness/lm_eval_include"),
            *(
                "--tasks",
                ",".join(f"routesparse_ruler_{task}" for task in TASKS),
                "--metadata",
                json.dumps(metadata),
            ),
            *others,
        ]
        offline = {
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "hub"),
            "ROUTESPARSE_HOME": str(folder / "home"),
            "OMP_NUM_THREADS": str(torch.get_num_threads()),  # a latency profile is of a number of threads
        }
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, **offline}, capture_output=True, text=True, timeout=500
        )

    return call, folder


def test_the_harness_scores_a_routed_model_as_evaluate_does(harness, monkeypatch):
    """The same prompts, and the same scores by a routed prefill; offline, by one latency profile."""
    call, folder = harness
    monkeypatch.setenv("ROUTESPARSE_HOME", str(folder / "home"))
    done = call(
        "break_even=0,price=0.5",
        *("--gen_kwargs", f"max_gen_toks={NEW_TOKENS}", "--log_samples", "--output_path", folder / "found"),
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    job = Job("ruler", TASKS, (LENGTH,), ("routesparse=0.5",), N, 6, "demo", folder, folder / "out")
    assert prepare(job, no_progress) == len(TASKS) * N
    predicting.predict(job, Bench)
    ours = {row["task"]: row["score"] for row in score(job)["tasks"] if row["method"] == "routesparse"}
    (file,) = (folder / "found").rglob("results_*.json")
    found = json.loads(file.read_text())
    theirs = {task: found["results"][f"routesparse_ruler_{task}"]["points,none"] for task in TASKS}
    assert theirs == ours and max(ours.values()) == 100
    for prepared in all_prepared(job):
        (samples,) = file.parent.glob(f"samples_*_{prepared.example.task}_*")
        (sample,) = map(json.loads, samples.read_text().splitlines())
        assert sample["arguments"]["gen_args_0"]["arg_0"] == prepared.text
    about = found["config"]["routesparse"]
    assert (about["routed_prefills"], about["dense_prefills"]) == (len(TASKS) * N, 0)
    assert about["area_of_routed"] < 1 and about["config"]["price"] == 0.5


LIKELIHOODS = """
import json, sys
from routesparse.engine.lab.harness.lm_eval import RouteSparseLM, main  # first: it knows where the harness lies
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

def asked(kind, arguments):
    return [Instance(kind, {}, one, i) for i, one in enumerate(arguments)]

pairs = [("The sea was", " calm"), ("", "Once more"), ("The sea was", " a long way off"), ("A", " b")]
texts = [("It was the best of times, it was the worst of times. " * 4,)]
ours = RouteSparseLM("demo", break_even=100_000, max_length=40)
theirs = HFLM("data/models/demo", device="cpu", dtype="float32", add_bos_token=True, max_length=40)
print(json.dumps([
    [m.loglikelihood(asked("loglikelihood", pairs)) for m in (ours, theirs)],
    [m.loglikelihood_rolling(asked("loglikelihood_rolling", texts)) for m in (ours, theirs)],
]))
sys.argv = ["lm_eval", "--model", "routesparse", "--model_args", "policy=fast", "--tasks", "arc_easy"]
sys.exit(main())
"""


def test_below_break_even_likelihoods_are_those_of_the_harness_s_own_model():
    """Choices of one context, an empty context, and a text of several windows. A wrong argument ends in one line."""
    done = subprocess.run(
        [sys.executable, "-c", LIKELIHOODS],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 2, done.stderr[-2_000:]
    assert done.stderr.splitlines()[-1].startswith('error: policy is "fast", it must be one of priced')
    (ours, theirs), (rolling, expected) = json.loads(done.stdout.splitlines()[-1])
    assert [nats for nats, _ in ours] == pytest.approx([nats for nats, _ in theirs], rel=1e-4)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    assert rolling == pytest.approx(expected, rel=1e-4) and rolling[0] < 0
