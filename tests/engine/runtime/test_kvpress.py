"""KV-cache compression after a routed prefill. CPU, tiny random models; all but the first tests need `make kvpress`."""

import importlib.util
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from routesparse.engine.errors import InputError, PromptError
from routesparse.engine.runtime import kvpress as adapter

HERE = Path(__file__).resolve().parent
needs_kvpress = pytest.mark.skipif(
    importlib.util.find_spec("kvpress") is None and not Path(sys.prefix, "kvpress", ".installed").exists(),
    reason="kvpress is not installed; `make kvpress` does it",
)
CASES = [f"Llama {press}" for press in ("streaming_llm", "snapkv", "observed")]
# How these two make their queries is their own.
CASES += [f"{family} {press}" for family in ("Qwen3", "Phi3") for press in ("snapkv", "observed")]
cases = pytest.mark.parametrize("case", CASES)


def test_the_attention_that_each_key_receives_is_the_matrixs_sum():
    """In slices of rows, with grouped heads; the float64 matrix is the oracle."""
    generator = torch.Generator().manual_seed(0)
    n, dim = 700, 16
    queries = torch.randn(2, 4, n, dim, generator=generator)
    keys = torch.randn(2, 2, n, dim, generator=generator)
    angles = torch.arange(n)[:, None] * 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.cat((angles, angles), -1)[None].expand(2, -1, -1)
    found = adapter.received(queries, keys, (angles.cos(), angles.sin()), 0.25)
    half = torch.cat((-queries[..., dim // 2 :], queries[..., : dim // 2]), -1)
    turned = (queries * angles.cos()[:, None] + half * angles.sin()[:, None]).double()
    scores = turned @ keys.repeat_interleave(2, 1).double().transpose(2, 3) * 0.25
    matrix = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), float("-inf")).softmax(-1)
    assert found.shape == (2, 4, 1, n)
    assert torch.allclose(found.double(), matrix.sum(2, keepdim=True), rtol=1e-4, atol=1e-5)


def test_without_kvpress_one_line_says_how_to_install_it(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(adapter.metadata, "version", absent)
    with pytest.raises(InputError, match="install it with `make kvpress`") as caught:
        adapter._library()
    assert "\n" not in str(caught.value)


def test_another_version_is_refused_before_it_is_imported(monkeypatch):
    monkeypatch.setattr(adapter.metadata, "version", lambda name: "0.4.0")
    with pytest.raises(InputError, match=r"kvpress 0\.4\.0 was never compared; install 0\.5\.5"):
        adapter._library()


def test_padding_and_a_full_cache_are_seen_by_position_too():
    check, ids = adapter._check_prompt(False), torch.ones(1, 8, dtype=torch.long)
    check(None, (ids, torch.ones_like(ids)), {})
    with pytest.raises(PromptError, match="takes padding for text"):
        check(None, (ids, torch.tensor([[0] * 3 + [1] * 5])), {})
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 5, 4), torch.zeros(1, 1, 5, 4), 0)
    with pytest.raises(PromptError, match="behind 5 cached ones"):
        check(None, (ids, None, None, cache), {})


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
@cases
def test_at_full_budget_a_press_keeps_what_it_keeps_after_a_dense_prefill(found, case):
    run = found["runs"][case]
    assert {pattern for pattern, _ in run["full"]["choices"]} == {"dense"}
    assert run["full"]["lengths"] == run["alone"]["lengths"] == [320, 320]
    assert run["full"]["tokens"] == run["alone"]["tokens"] == run["generated"]
    assert len(set(run["alone"]["tokens"])) > 2, "a model that repeats one token would prove nothing"
    for ours, theirs in zip(run["full"]["keys"], run["alone"]["keys"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-2)


@needs_kvpress
@cases
def test_at_a_price_the_cache_is_compressed_and_the_certificates_are_recorded(found, case):
    run = found["runs"][case]["priced"]
    sparse = [mass for pattern, mass in run["choices"] if pattern != "dense"]
    assert sparse and all(0 <= mass <= 1 for mass in sparse)
    assert run["lengths"] == [320, 320] and len(run["tokens"]) == 12


@needs_kvpress
def test_the_presses_keep_different_keys(found):
    kept = [
        found["runs"][f"Llama {press}"]["alone"]["keys"] for press in ("streaming_llm", "snapkv", "observed")
    ]
    assert kept[0] != kept[1] != kept[2] != kept[0]


@needs_kvpress
@cases
def test_leaving_the_block_leaves_no_hook(found, case):
    assert found["runs"][case]["hooks_left"] == 0


@needs_kvpress
@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        ("long", "PromptError", "cost as much as a dense prefill; pass at most 99"),
        ("press", "UnsupportedModelError", "press 'KnormPress' was never compared"),
        ("wrapped", "UnsupportedModelError", "press 'AdaKVPress' was never compared"),
        ("family", "UnsupportedModelError", "kvpress does not know 'gemma2'"),
        ("parallel", "UnsupportedModelError", "tensor-parallel"),
        ("window", "UnsupportedModelError", "has sliding windows"),
        ("partial", "UnsupportedModelError", "turns 0.5 of each; pass StreamingLLMPress"),
        ("padded", "PromptError", "takes padding for text"),
        ("chunk", "PromptError", "100 tokens behind 100 cached ones"),
        ("cacheless", "PromptError", "leave use_cache=False out"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(found, case, error, message):
    assert found["refused"]["fine"] is None
    kind, told = found["refused"][case]
    assert kind == error and message in told and "\n" not in told
