"""Routed prefill inside a running vLLM: CPU build, float32, a tiny random Llama; needs `make vllm` and a minute."""

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
OWN = Path(sys.prefix, "vllm", "bin", "python")
HAS_VLLM = importlib.util.find_spec("vllm") is not None
pytestmark = pytest.mark.skipif(
    not HAS_VLLM and not OWN.exists(), reason="vLLM is not installed; `make vllm` does it"
)
CLOSE = 2e-4  # nats; float32 in another order of sums came to 4e-5, and routing itself to more than 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    command = [sys.executable if HAS_VLLM else OWN, HERE / "vllm_runs.py", folder]
    environment = {
        **os.environ,
        "ROUTESPARSE_HOME": str(folder / "home"),
        "ROUTESPARSE_VLLM": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",  # of our log, too
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.rpartition("RESULTS")[2]) | {"home": folder / "home"}


def difference(one, other):
    """The largest difference of two runs' scores, in nats; ``pytest -rP`` shows it."""
    assert len(one["scores"]) == len(other["scores"]) > 1000
    found = max(abs(a - b) for a, b in zip(one["scores"], other["scores"], strict=True))
    print(f"{found:.1e} nats")
    return found


@pytest.mark.parametrize("chunks", ["", ", chunked"])
def test_at_full_budget_every_token_scores_as_with_the_stock_backend(runs, chunks):
    found = runs["full budget" + chunks]
    assert difference(found, runs["stock"]) < CLOSE and found["tokens"] == runs["stock"]["tokens"]


@pytest.mark.parametrize("chunks", ["", ", chunked"])
def test_routed_prompts_score_as_on_our_path_through_transformers(runs, chunks):
    """The same price, rows and chunks; routing changes scores, so that equal ones say something."""
    found, ours = runs["routed" + chunks], runs["transformers" + chunks]
    print("kept of the area, by layer and chunk:", *(f"{density:.2f}" for density in ours["density"]))
    assert max(ours["density"]) < 1 and difference(found, runs["stock"]) > 1
    assert difference(found, ours) < CLOSE


def test_two_routed_prompts_in_one_batch_do_not_disturb_each_other(runs):
    assert difference(runs["routed pair"][0], runs["routed"]) < CLOSE
    assert difference(runs["routed pair"][1], runs["transformers of the second"]) < CLOSE


def test_a_row_that_decodes_beside_a_routed_chunk_keeps_the_stock_path(runs):
    batches = runs["mixed batches"]
    assert [[1, 40, False], [767, 0, True]] in batches and [[1, 41, False], [633, 767, True]] in batches
    assert runs["mixed"]["short"]["tokens"] == runs["stock short"]["tokens"]
    assert difference(runs["mixed"]["long"], runs["transformers, mixed"]) < CLOSE


def test_a_preempted_prompt_begins_again(runs):
    """At full budget, so that the stock engine says what has to come out."""
    assert [[1409, 0, True]] in runs["preempted batches"]
    assert [one["tokens"] for one in runs["preempted"]] == [one["tokens"] for one in runs["stock long"]]


def test_a_cancelled_prompt_leaves_nothing_behind(runs):
    found = runs["cancelled"]
    assert found["held"] == 1 and found["left"] == 0
    assert difference(found["after"], runs["routed, chunked"]) < CLOSE


def test_one_in_two_routed_requests_leaves_a_bundle_without_text(runs):
    """Three were routed; the store takes the bundles in."""
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    from routesparse.engine.store.duckdb_store import Store
    from routesparse.engine.store.spool import ingest_spool

    first, third = runs["recorded"]
    for one in (first, third):
        assert one["routed"] and one["tokens"] == 1400 and not one["has_text"]
        assert one["density"] == pytest.approx(sum(one["densities"]) / len(one["densities"]))
    assert first["prompt"] == runs["request ids"][0] and third["prompt"] == runs["request ids"][2]
    with closing(Store(runs["home"] / "routesparse.duckdb")) as store:
        assert len(ingest_spool(store, runs["home"] / "spool").ingested) == 2


def test_the_log_says_at_the_start_which_layers_are_routed(runs):
    (level, line), *rest = runs["said at the start"]
    assert level == "INFO" and line.startswith(
        "RouteSparse routes 2 of 2 layers of model (policy priced, price 0.5,"
    )
    assert rest == [] and "stock" not in line
    (_, line), *rest = runs["windowed"]["said"]
    assert rest == [] and "routes 1 of 2 layers" in line and "stock: 1 because of a sliding window" in line


def test_a_model_with_a_windowed_layer_scores_as_with_the_stock_backend(runs):
    found = runs["windowed"]
    assert difference(found["full budget"], found["stock"]) < CLOSE
    assert difference(found["stock"], runs["stock"]) > 1  # the window does something


def test_a_model_that_another_backend_serves_is_said_not_to_be_routed_and_is_served(runs):
    (level, line), *rest = runs["not ours"]["said"]
    assert level == "WARNING" and "model is NOT routed: 2 because of backend CPU_ATTN" in line and rest == []
    assert difference(runs["not ours"], runs["stock"]) == 0


def test_a_request_that_is_not_to_be_routed_is_served_stock_beside_one_that_is_recorded(runs):
    asked = runs["asked"]
    assert difference(asked["pair"][0], runs["stock"]) < CLOSE
    assert difference(asked["pair"][1], runs["transformers of the second"]) < CLOSE
    (one,) = asked["recorded"]
    assert one["served"] is None and one["tokens"] == 1400 and not one["has_text"]


def test_a_request_that_asks_for_what_it_cant_have_is_refused_or_served_stock(runs):
    asked = runs["asked"]
    assert asked["refused"].startswith("RouteSparse: routesparse_route='no' must be 1 or 0")
    assert difference(asked["unfitted"], runs["stock"]) < CLOSE
    (level, line) = asked["said"][-1]
    assert level == "WARNING" and "to vLLM: " in line and "is not fitted" in line
    assert difference(asked["after"], runs["routed"]) < CLOSE


@pytest.mark.parametrize("loss", ["0.01", "0.1"])
def test_a_loss_of_the_settings_or_of_one_request_is_aimed_at_as_by_route(runs, loss):
    """The bundled model, by its fit; the other loss and the stock backend score otherwise."""
    found, other = runs["by fit"], {"0.01": "0.1", "0.1": "0.01"}[loss]
    print("kept of the area, by layer:", *(f"{density:.2f}" for density in found[f"ours {loss}"]["density"]))
    assert difference(found[loss], found[f"ours {loss}"]) < CLOSE
    assert min(difference(found[loss], found[name]) for name in (other, "stock")) > 100 * CLOSE
    assert (
        "8 of 8 layers of demo (policy priced, price 0.35, loss target 0.01, break-even"
        in found["said"][0][1]
    )


def test_a_loss_without_a_fit_ends_the_start_and_says_what_to_do(runs):
    found = runs["asked"]["start without a fit"]
    assert found.startswith("CalibrationError") and "run `routesparse fit " in found


def test_a_cached_prefix_is_shared_by_requests_that_are_routed_the_same_way_alone(runs):
    """768 of 1,400 tokens are alike, in pages of 128; the last page of a prompt that comes again is not whole."""
    found = runs["prefix caching"]
    assert [one["cached"] for one in found["full budget"]] == [0, 768]
    assert [one["cached"] for one in found["routed"]] == [0, 768, 1280]
    assert [one["cached"] for one in found["other ways"]] == [0, 0]


def test_behind_a_cached_prefix_a_prompt_is_answered_as_without_one(runs):
    """At full budget; routed it is not, since its first tokens were decided for another prompt's tail."""
    found = runs["prefix caching"]
    stock, shared = found["stock"], found["full budget"][1]
    assert stock["cached"] == 0 and shared["tokens"] == stock["tokens"]
    assert shared["scores"] == pytest.approx(stock["scores"], abs=CLOSE)


def test_behind_a_cached_prefix_a_prompt_is_routed_and_recorded_with_how_much_was_cached(runs):
    found = runs["prefix caching"]
    assert found["batches"][:2] == [[[1400, 0, True]], [[632, 768, True]]]
    assert [one["cached_tokens"] for one in found["recorded"]] == [None, 768]
    assert [one["tokens"] for one in found["recorded"]] == [1400, 1400]


def test_a_backend_is_found_by_the_path_that_it_has_of_itself(runs):
    """As vLLM's CUDA platform looks for it; the CPU's takes the registered one."""
    assert runs["found by its own path"]


def test_another_version_is_refused_by_name_before_anything_is_registered(runs):
    assert "vLLM 0.30.9 was never compared" in runs["another version"]
    assert runs["overridden by it"] is False
