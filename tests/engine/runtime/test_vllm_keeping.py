"""A loss target kept inside vLLM: settings, rows of chunks, refusals; in its CPU build against transformers."""

import json
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from routesparse.engine.calibration.keeping import STEP
from routesparse.engine.errors import ConfigError, UnsupportedModelError
from routesparse.engine.runtime.vllm import plugin
from routesparse.engine.runtime.vllm.batch import Row
from routesparse.engine.runtime.vllm.installed import Installed
from routesparse.engine.runtime.vllm.keeping import Keeping
from routesparse.engine.runtime.vllm.replay import KeptRows
from routesparse.engine.runtime.vllm.settings import from_environment
from tests.engine.runtime.test_vllm_engine import HAS_VLLM, HERE, OWN

with_vllm = pytest.mark.skipif(
    not HAS_VLLM and not OWN.exists(), reason="vLLM is not installed; `make vllm` does it"
)


def settings(**given):
    return from_environment(
        {f"ROUTESPARSE_VLLM{name}": one for name, one in {"": "1", **given}.items()}, on_gpu=False
    )


def test_a_target_is_kept_where_it_is_asked_for():
    def told(**given):
        found = settings(**given)
        return found.keep, found.keep_dense, found.keep_prices

    assert told(_LOSS="0.01") == told(_KEEP="0") == (0, 0, None)
    assert told(_LOSS="0.01", _KEEP="1") == (1, 0, None)
    given = {"_KEEP": "4", "_KEEP_DENSE": "20", "_KEEP_PRICES": "0.1:0.5"}
    assert told(_LOSS="0.01", **given) == (4, 20, (0.1, 0.5))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"_KEEP": "1"}, "ROUTESPARSE_VLLM_KEEP keeps a loss target; set ROUTESPARSE_VLLM_LOSS"),
        ({"_KEEP": "yes"}, "ROUTESPARSE_VLLM_KEEP='yes' must be a whole number: 1 predicts"),
        ({"_KEEP": "1", "_KEEP_DENSE": "-1"}, "_KEEP_DENSE='-1' must be a whole number: 50 measures"),
        ({"_KEEP": "1", "_KEEP_PRICES": "0.5"}, "_KEEP_PRICES='0.5' must be two prices, the lower one first"),
        ({"_KEEP": "1", "_KEEP_PRICES": "0.5:0.1"}, "must be two prices, the lower one first"),
    ],
)
def test_a_setting_that_keeps_nothing_is_refused_in_one_line(given, message):
    with pytest.raises(ConfigError) as caught:
        settings(**({} if len(given) == 1 else {"_LOSS": "0.01"}), **given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("keep", "dense"), [(1, 2), (3, 2), (4, 20), (1, 0)])
def test_of_predicted_prompts_one_in_so_many_is_measured(keep, dense):
    keeping = Keeping.__new__(Keeping)
    keeping._settings = settings(_LOSS="0.01", _KEEP=str(keep), _KEEP_DENSE=str(dense))
    keeping._begun = 0
    begun, own = [], []  # of the server's target, and of a request's own between them
    for _ in range(40 * keep):
        own.append(keeping.begun(range(1_025), "salt", moves=False))
        begun.append(keeping.begun(range(1_025), "salt", moves=True))
    predicted = [one for one in begun if one]
    assert predicted == begun[::keep] and keeping.begun(range(1_024), "salt", moves=True) is None
    assert not any(one.whole for one in own if one)
    assert [one.whole for one in predicted] == [dense > 0 and n % dense == 0 for n in range(1, 41)]


@pytest.mark.parametrize("cached", [0, 100])
def test_rows_are_kept_of_every_chunk_that_runs(cached):
    """A prompt in two chunks behind tokens of other requests, perhaps after tokens whose keys vLLM had."""
    kept, between = KeptRows(np.arange(1_200), seed=1, whole=False), 700
    for first, (start, end) in zip((1, 3), ((cached, between), (between, 1_200)), strict=True):
        row = Row("a", first, first, end - start, start, 1_200)
        kept.keep(
            row, torch.arange(start - first, end)[:, None].float()
        )  # each token's state is its position
    assert (
        kept.stretches.shape == (16, 16) and kept.stretches.min() >= cached and kept.stretches.max() < 1_199
    )
    some = kept.stretches.flatten()[5::40]
    assert kept.hidden_at(some)[:, 0].tolist() == some.tolist()
    assert kept.is_complete


def kept_of(whole, cached=0, missing=0):
    """Of a prompt of 1,200 tokens in two chunks, of which a token between them may be missing."""
    kept = KeptRows(np.arange(1_200), seed=1, whole=whole)
    for start, end in ((cached, 700), (700 + missing, 1_200)):
        kept.keep(Row("a", 0, 0, end - start, start, 1_200), torch.zeros(end - start, 1))
    return kept


class ReplayedTo:
    """A Replayer that sees these nats in every row, and counts the rows."""

    def __init__(self, *nats):
        self.nats, self.rows = iter(nats), []

    def figures(self, kept, rows, table):
        self.rows.append(len(rows))
        return (torch.full((len(rows),), next(self.nats)), *torch.ones(2, len(rows)))


def ended(kept, *nats, target=None):
    """How many rows each replay had, and what the keeper was told; None: nothing."""
    keeping, told = Keeping.__new__(Keeping), []
    keeping._replayer, keeping._move = ReplayedTo(*nats), lambda *given: told.append(given)
    keeping.keeper = SimpleNamespace(predicts=lambda price, replay: ("code", *replay[:1] * 2))
    seen = keeping.ended("a", kept, None, 0.25, target)
    return keeping._replayer.rows, told[0][-1] if told else None, seen


def test_all_rows_are_replayed_where_that_is_the_true_loss_and_is_asked_for():
    few = kept_of(False).stretches.size
    assert ended(kept_of(True), 0.001, 0.002)[:2] == ([few, 1_199], pytest.approx(0.002))
    assert ended(kept_of(False), 0.001)[:2] == ([few], None)
    assert ended(kept_of(True, cached=100), 0.001)[0] == [few]
    assert ended(kept_of(True), 0.001, target=0.1)[0] == [few]


def test_a_prompt_of_which_a_row_is_missing_or_nan_is_not_judged():
    """A chunk of one token beside decodes may run in a captured graph, in which no hidden state is heard of."""
    assert ended(kept_of(True, missing=1)) == ([], None, None)
    assert ended(kept_of(False), math.nan)[1:] == (None, None)
    assert ended(kept_of(True), 0.001, math.nan)[1:] == (None, None)


def test_a_model_with_stock_layers_is_refused():
    requests = SimpleNamespace(settings=settings(_LOSS="0.01", _KEEP="1"), model=None)
    with pytest.raises(
        UnsupportedModelError, match=r"layers are stock \(1 because of a sliding window\); leave"
    ):
        plugin._keeping(None, requests, Installed(2, {"a sliding window": 1}), ["a", "b"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    environment = {
        **os.environ,
        "ROUTESPARSE_HOME": str(folder / "home"),
        "ROUTESPARSE_VLLM": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable if HAS_VLLM else OWN, HERE / "vllm_keeping_runs.py", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.rpartition("RESULTS")[2])


@with_vllm
def test_a_replay_sees_what_one_on_transformers_sees(runs):
    """Prompts in two chunks, the second one at the price that followed the first."""
    for seen, ours in zip(runs["seen"][:2], runs["ours"], strict=True):
        far = max(abs(a - b) for a, b in zip(seen["replayed"], ours["replayed"], strict=True))
        print(f"{far:.1e} nats of {np.mean(ours['replayed']):.1e}")
        assert far < 2e-6 < 2e-4 < np.mean(ours["replayed"])
        assert seen["entropy"] == pytest.approx(ours["entropy"], abs=1e-5)
        assert seen["surprise"] == pytest.approx(ours["surprise"], abs=1e-5)


@with_vllm
def test_with_all_rows_it_is_the_kl_to_a_dense_prefill(runs):
    print(runs["log"][1]["measured"], runs["ours"][1]["true"])
    assert runs["log"][0]["measured"] is None
    assert runs["log"][1]["measured"] == pytest.approx(runs["ours"][1]["true"], abs=2e-6)
    assert runs["ours"][1]["true"] > 1e-3


@with_vllm
def test_a_replay_changes_no_answer(runs):
    """It writes no key: the first prompt has the price of a server that keeps nothing, and the same scores."""
    assert runs["kept"][0] == runs["not kept"]


@with_vllm
def test_the_price_of_later_requests_follows_and_a_restart_goes_on(runs):
    """These texts lose less than the target. A request with a loss of its own, and a short one, move nothing."""
    first, second = runs["log"]
    assert second["price"] == pytest.approx(first["price"] * math.exp(STEP))
    assert runs["next"] == second["state"]["price"] == pytest.approx(second["price"] * math.exp(STEP))
    said = [text for _, text in runs["said"] if "predicts" in text]
    assert len(said) == 2 and f"at price {first['price']:.3g}" in said[0] and "target 0.01" in said[0]


@with_vllm
def test_records_have_the_predicted_loss_and_the_target(runs):
    losses, targets, kinds, _ = zip(*runs["recorded"], strict=True)
    assert targets == (0.01, 0.01, 0.1, 0.01, 0.01) and kinds[:3] == ("code",) * 3
    assert (
        losses[3:] == (None, None) and losses[2] > 2 * losses[0] > 0
    )  # the last two are too short to be judged


@with_vllm
def test_a_span_lies_in_its_requests_trace_and_says_what_was_decided(runs):
    """Without trace headers each prompt has a trace of its own, though vLLM seeds what draws the ids."""
    (trace, parent, own), (first, none, short), (second, *_) = runs["spans"]
    assert (trace, parent, none) == ("ab" * 16, "cd" * 8, None) and len({trace, first, second}) == 3
    assert [one["gen_ai.request.id"] for one in (own, short)] == ["3", "4"]  # as of vLLM's own span
    assert own["routesparse.request_id"].startswith("3-") and own["gen_ai.usage.prompt_tokens"] == 1400
    assert own["routesparse.area"] == pytest.approx(runs["recorded"][2][3]) and own["routesparse.recorded"]
    assert own["routesparse.loss_target"] == 0.1 and short["routesparse.loss_target"] == 0.01
    assert own["routesparse.price"] > runs["log"][1]["price"]
    assert own["routesparse.loss"] > 2 * runs["log"][0]["predicted"] and "routesparse.loss" not in short
    assert min(own["routesparse.deciding_ms"], own["routesparse.attention_ms"]) > 0


@with_vllm
def test_prometheus_counts_every_routed_prompt(runs):
    """Two that moved the price, and three of spans; of three a loss was predicted. Before there was a tracer, none."""
    found, spans = runs["metrics"], [attributes for *_, attributes in runs["spans"]]
    losses = [one["predicted"] for one in runs["log"]] + [spans[0]["routesparse.loss"]]
    assert (found["area_count"], found["predicted_loss_count"]) == (5, 3)
    assert found["predicted_loss_sum"] == pytest.approx(sum(losses))
    assert 0 < found["area_sum"] < 5 and found["price"] == spans[2]["routesparse.price"] == runs["next"]
