"""KV-cache compression after a routed prefill. CPU, tiny random models; all but the first tests need `make kvpress`."""

import importlib.util
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.runtime import kvpress as adapter

HERE = Path(__file__).resolve().parent
needs_kvpress = pytest.mark.skipif(
    importlib.util.find_spec("kvpress") is None and not Path(sys.prefix, "kvpress", ".installed").exists(),
    reason="kvpress is not installed; `make kvpress` does it",
)
# How the last two make their queries is their own.
CASES = ["Llama streaming_llm", "Llama snapkv", "Qwen3 snapkv", "Phi3 snapkv"]


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (None, "can't be imported .*; install it with `make kvpress`"),
        ("0.4.0", r"0\.4\.0 was never compared; install 0\.5\.5"),
    ],
)
def test_kvpress_of_another_version_or_none_is_one_line_that_helps(monkeypatch, version, told):
    def found(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)
    with pytest.raises(InputError, match=f"kvpress {told}"), adapter.pressed(None, None):
        pass


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kvpress")
    env = {**os.environ, "ROUTESPARSE_HOME": str(folder), "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, HERE / "kvpress_runs.py", *CASES],
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_kvpress
@pytest.mark.parametrize("case", CASES)
def test_a_press_keeps_what_it_keeps_after_a_dense_prefill_and_certificates_are_recorded(found, case):
    run = found["runs"][case]
    assert {pattern for pattern, _ in run["full"]["choices"]} == {"dense"}
    assert run["full"]["lengths"] == run["alone"]["lengths"] == run["priced"]["lengths"] == [320, 320]
    assert run["full"]["tokens"] == run["alone"]["tokens"] == run["generated"]
    assert len(set(run["alone"]["tokens"])) > 2, "a model that repeats one token would prove nothing"
    for ours, theirs in zip(run["full"]["keys"], run["alone"]["keys"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-2)
    sparse = [mass for pattern, mass in run["priced"]["choices"] if pattern != "dense"]
    assert sparse and all(0 <= mass <= 1 for mass in sparse)
    assert run["hooks_left"] == 0


@needs_kvpress
@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        ("observed", "UnsupportedModelError", "press 'ObservedAttentionPress' was never compared"),
        ("press", "UnsupportedModelError", "press 'KnormPress' was never compared"),
        ("wrapped", "UnsupportedModelError", "press 'AdaKVPress' was never compared"),
        ("family", "UnsupportedModelError", "kvpress does not know 'gemma2'"),
        ("parallel", "UnsupportedModelError", "tensor-parallel"),
        ("window", "UnsupportedModelError", "has sliding windows"),
        ("partial", "UnsupportedModelError", "turns 0.5 of each; pass StreamingLLMPress"),
        ("padded", "PromptError", "takes padding for text"),
        ("padded, by place", "PromptError", "takes padding for text"),
        ("chunk", "PromptError", "100 tokens behind 100 cached ones"),
        ("chunk, by place", "PromptError", "100 tokens behind 100 cached ones"),
        ("cacheless", "PromptError", "leave use_cache=False out"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(found, case, error, message):
    assert found["refused"]["fine"] is None
    kind, told = found["refused"][case]
    assert kind == error and message in told and "\n" not in told
