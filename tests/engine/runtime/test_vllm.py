"""The parts of the vLLM plug-in that need no vLLM: settings, rows, pages, requests, refusals. CPU only."""

import json
import logging
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig

from routesparse.engine import paths, shared_folder
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide import ahead
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import (
    CalibrationError,
    ConfigError,
    InputError,
    NumericsError,
    UnsupportedModelError,
)
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.models.load import load_model
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.record.passes import PromptTrace
from routesparse.engine.runtime.current_prompt import NamedPrompt
from routesparse.engine.runtime.quality import Chosen
from routesparse.engine.runtime.route import route
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.vllm import batch, plugin, refusals, steps, tracing
from routesparse.engine.runtime.vllm.backend import MARK
from routesparse.engine.runtime.vllm.batch import Row
from routesparse.engine.runtime.vllm.installed import Installed
from routesparse.engine.runtime.vllm.requests import FIRST, Requests, ServedModel, prompt_digest
from routesparse.engine.runtime.vllm.settings import ServingSettings, from_environment
from routesparse.engine.store.bundle import verified_tables
from routesparse.kernels.compile_ahead import Compiler
from tests.engine import tiny_model, tiny_shape
from tests.stand_in_gpu import stand_in_gpu

HEADS, KV_HEADS, DIM, LAYERS = 4, 2, 16, 2
PROFILE = tiny_shape.profile()
CONFIG = tiny_shape.config(0, price=2.0)
TOKENS = 320
ALL_ROUTED = Installed(LAYERS, {})


def requests_into(folder, config=CONFIG, every=1):
    settings = ServingSettings(config, None, None, False, "auto", every, folder)
    model = ServedModel("tiny", "", LAYERS, HEADS, KV_HEADS, DIM, torch.float32, torch.device("cpu"))
    return Requests(settings, Chosen(config), by_loss, model, PROFILE)


def by_loss(loss):
    """Two targets have a price; others no fit."""
    prices = {0.01: 1.0, 0.02: 2.0}
    if loss not in prices:
        raise CalibrationError("tiny is not fitted")
    return Chosen(replace(CONFIG, price=prices[loss]), tuned_price=f"mixed-kl-{loss}")


def inputs_of(seed, tokens=TOKENS):
    draw = torch.Generator().manual_seed(seed)
    heads = (HEADS, KV_HEADS, KV_HEADS)
    q, k, v = (torch.randn(1, count, tokens, DIM, generator=draw) for count in heads)
    return AttentionInputs(q, k, v, DIM**-0.5)


def prompt_of(request, extra=None):
    return [ord(c) for c in request], extra


def salt_of(request):
    return prompt_digest(prompt_of(request)[0])


def prefill(requests, row, inputs, **extra):
    """One batch with this row alone, through all layers."""
    routed = requests.choose([row], partial(prompt_of, extra=extra))
    outs = [requests.attend(row, inputs, layer) for layer in range(LAYERS)] if routed else []
    requests.finish([row])
    return outs


def settings(on_gpu=False, **given):
    return from_environment({f"ROUTESPARSE_VLLM{name}": value for name, value in given.items()}, on_gpu)


def every_run(folder):
    """The rows of the runs that were left there, as JSON has them."""
    return [verified_tables(path)[1]["run"].to_pylist()[0] for path in folder.iterdir()]


def recorded(folder):
    """``every_run`` by name."""
    return {row["prompt_name"]: row for row in every_run(folder)}


def test_settings_come_from_the_environment_which_is_not_even_read_where_switched_off(tmp_path):
    assert settings() is None and settings(**{"": "0", "_PRICE": "x"}) is None
    config = '{"policy": "budgeted", "budget": "0.25", "break_even_tokens": 4096}'
    given = {
        "": "1",
        "_CONFIG": config,
        "_CALIBRATION": "prose",
        "_LOSS": "",
        "_RECORD_EVERY": "7",
        "_SPOOL": str(tmp_path),
    }
    found = settings(on_gpu=True, **given)
    assert (found.config.policy, found.config.budget.value) == ("budgeted", 0.25)
    assert (found.config.break_even_tokens, found.config.segment_tokens) == (4096, 131_072)
    assert (found.calibration, found.profile, found.record_every) == ("prose", "auto", 7)
    assert (found.loss, found.own_segment) == (None, False)
    assert found.spool == tmp_path


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("", "yes", "set 1 to route prompts, or 0"),
        ("_PRICE", "0.5", "no setting of the vLLM plug-in; known are ROUTESPARSE_VLLM, "),
        ("_CONFIG", "price=1", "is not JSON"),
        ("_CONFIG", "[1]", "is no JSON object"),
        ("_CONFIG", '{"prize": 1}', "unknown configuration names prize"),
        ("_RECORD_EVERY", "-1", "must be a whole number"),
        ("_LOSS", "kl=0.01", "must be nats a token, such as 0.01"),
        ("_LOSS", "nan", "ROUTESPARSE_VLLM_LOSS is NaN, it must be"),
        ("_LOSS", "0", "ROUTESPARSE_VLLM_LOSS is 0.0, it must be"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_in_one_line(name, value, message):
    with pytest.raises(ConfigError, match=message) as caught:
        settings(**{"": "1", name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "beside",
    [
        {"_CALIBRATION": "prose-kl"},
        {"_CONFIG": '{"price": 0.5}'},
        {"_CONFIG": '{"policy": "certified"}'},
    ],
    ids=["calibration", "price", "policy"],
)
def test_a_loss_sets_the_price_alone(beside):
    found = settings(**{"": "1", "_LOSS": "0.01", "_CONFIG": '{"segment_tokens": 32768}'})
    assert (found.loss, found.own_segment) == (0.01, True)
    with pytest.raises(ConfigError, match="_LOSS sets the price; leave ROUTESPARSE_VLLM_CALIBRATION out"):
        settings(**{"": "1", "_LOSS": "0.01"} | beside)


def served(name_or_path, profile=None, **values):
    """What the plug-in routes a model with, by these settings."""
    config = AutoConfig.from_pretrained(name_or_path)
    model = SimpleNamespace(name_or_path=str(name_or_path), config=config)
    found = settings(**{"": "1"} | values)
    return plugin._chosen(found, model, "float32", profile, found.loss)


def test_a_loss_takes_price_floors_and_segment_of_the_models_fit_as_route_does():
    loaded = load_model("demo")
    with route(loaded.model, loss=0.01, profile=PROFILE) as trace:
        pass
    found = served(loaded.model.name_or_path, _LOSS="0.01")
    assert found.tuned_price == trace.settings.tuned_price == "mixed-kl-0.01"
    assert found.config == trace.settings.config and found.config.head_floors is not None


def test_a_known_profile_that_contradicts_the_calibration_ends_the_start(monkeypatch):
    monkeypatch.setattr(Calibration, "cost_mismatch", lambda _, profile: "made with other costs")
    model, named = paths.DATA / "models" / "demo", {"_CALIBRATION": "robust"}
    assert served(model, **named).calibration.name == "robust"
    with pytest.raises(CalibrationError, match="made with other costs"):
        served(model, PROFILE, **named)


def test_a_loss_that_no_price_keeps_takes_the_least_and_is_said(caplog):
    found = served(paths.DATA / "models" / "demo", _LOSS="1e-5")
    assert found.config.price == 0.06 and found.tuned_price is None
    assert "no price that was measured keeps a loss of 1e-05" in caplog.text


def test_a_loss_without_a_fit_says_what_to_do(tmp_path):
    tiny_model.save(tmp_path)
    with pytest.raises(CalibrationError, match=f"run `routesparse fit {tmp_path}`, or name a price"):
        served(tmp_path, _LOSS="0.01")


def test_rows_stand_one_behind_the_other():
    """A decoding request, a whole prompt and the middle chunk of a third."""
    rows = batch.rows_of(
        ["a", "b", "c"], {"c": 300, "a": 1, "b": 500}, [40, 0, 512], {"a": 40, "b": 500, "c": 2000}
    )
    assert [row.place for row in rows] == [slice(0, 1), slice(1, 501), slice(501, 801)]
    assert [row.keys for row in rows] == [41, 500, 812]
    assert [row.ends_prompt for row in rows] == [True, True, False]
    assert batch.token_places([rows[0], rows[2]], torch.device("cpu")).tolist() == [0, *range(501, 801)]


@pytest.mark.parametrize("split", [batch.side_by_side, batch.keys_transposed], ids=["gpu", "cpu"])
def test_pages_are_gathered_in_the_tables_order(split):
    """Against a store written token by token in the layout's own words; the last page is not full."""
    size, pages, tokens, table = 32, 6, 75, torch.tensor([4, 1, 5, 0, 0], dtype=torch.int32)
    inputs = inputs_of(1, tokens)
    store = torch.full((pages, KV_HEADS, size, 2 * DIM), float("nan"))
    for token in range(tokens):
        page, place = int(table[token // size]), token % size
        for head in range(KV_HEADS):
            key, value = inputs.k[0, head, token], inputs.v[0, head, token]
            if split is batch.side_by_side:
                store[page, head, place] = torch.cat((key, value))
            else:
                memory = store[page, head].view(-1)
                memory[: DIM * size].view(DIM, size)[:, place] = key
                memory[DIM * size :].view(size, DIM)[place] = value
    keys, values = batch.gathered(store, table, tokens, DIM, split)
    assert torch.equal(keys, inputs.k) and torch.equal(values, inputs.v)
    assert keys.is_contiguous() and values.is_contiguous()


def test_a_prompt_is_routed_as_by_a_session_of_its_own_and_recorded_without_text(tmp_path):
    requests, inputs = requests_into(tmp_path), inputs_of(1)
    outs = prefill(requests, Row("r-1", 0, 0, TOKENS, 0, TOKENS), inputs)
    alone = RoutingSession(CONFIG, profile=PROFILE, salt=salt_of("r-1"))
    assert all(torch.equal(out, alone.attend(inputs, layer=layer)) for layer, out in enumerate(outs))
    assert not torch.allclose(outs[0], dense_attention(inputs, None), atol=1e-3)
    (bundle,) = tmp_path.iterdir()
    run = recorded(tmp_path)["r-1"]
    assert (run["model"], run["tokens"]) == ("tiny", TOKENS)
    assert run["prompt_sha256"] == salt_of("r-1") and run["layers"] == LAYERS
    assert json.loads(run["config_json"])["served"] == {"by": "vllm", "one_in": 1}
    assert not (bundle / "prompt.parquet").exists()


def test_chunks_of_two_requests_that_take_turns_are_two_prompts(tmp_path):
    """The second chunk of each goes on where its own first one ended."""
    requests, whole = requests_into(tmp_path), {"a": inputs_of(1), "b": inputs_of(2)}
    alone = {r: RoutingSession(CONFIG, profile=PROFILE, salt=salt_of(r)) for r in whole}
    ends = {0: 160, 160: TOKENS}
    for context, end in ends.items():
        rows = [Row(name, 0, 0, end - context, context, TOKENS) for name in whole]
        assert requests.choose(rows, prompt_of) == tuple(rows)
        for layer in range(LAYERS):
            for row in rows:
                full = whole[row.request]
                k, v = full.k[:, :, :end], full.v[:, :, :end]
                part = AttentionInputs(full.q[:, :, context:end], k, v, full.scale)
                out = requests.attend(row, part, layer)
                assert torch.equal(out, alone[row.request].attend(part, layer=layer))
        requests.finish(rows)
    assert {name: row["tokens"] for name, row in recorded(tmp_path).items()} == {"a": TOKENS, "b": TOKENS}
    for path in tmp_path.iterdir():
        assert set(verified_tables(path)[1]["head_choice"]["segment"].to_pylist()) == {0, 1}


def test_a_record_counts_a_last_chunk_that_was_left_to_the_stock_kernel(tmp_path):
    """And still leaves when the prompt has ended."""
    requests, whole = requests_into(tmp_path), inputs_of(1, TOKENS + 20)
    first = AttentionInputs(*(t[:, :, :TOKENS] for t in (whole.q, whole.k, whole.v)), whole.scale)
    assert prefill(requests, Row("a", 0, 0, TOKENS, 0, TOKENS + 20), first) and not list(tmp_path.iterdir())
    assert not prefill(requests, Row("a", 0, 0, 20, TOKENS, TOKENS + 20), whole)
    assert recorded(tmp_path)["a"]["tokens"] == TOKENS + 20


def test_one_in_three_routed_prompts_is_recorded_each_once(tmp_path):
    """Prompts that ran dense do not count; neither does one that was preempted and came again."""
    requests = requests_into(tmp_path, every=3)
    for name in ("a", "b", "b", "c", "d"):
        prefill(requests, Row(name, 0, 0, TOKENS, 0, TOKENS), inputs_of(1))
        assert not prefill(requests, Row("short", 0, 0, 8, 0, 8), inputs_of(2, 8))
    assert sorted(recorded(tmp_path)) == ["a", "d"]


def test_a_full_disk_costs_the_metrics_and_not_the_server(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tracing, "is_heard", lambda: True)
    monkeypatch.setattr(tracing, "tell", full)
    assert prefill(requests_into(tmp_path, every=0), Row("a", 0, 0, TOKENS, 0, TOKENS), inputs_of(1))
    assert "could not tell of request a: [Errno 28] No space left on device" in caplog.text


@pytest.mark.parametrize(("given", "told"), [("mine", "mine"), (None, "0_mine-ac5f7093")])
def test_a_span_has_the_id_that_the_client_gave(tmp_path, monkeypatch, given, told):
    """vLLM's own span has that, too; one of n answers is named 0_mine-ac5f7093, say, inside."""

    class NewRequestData:
        @classmethod
        def from_request(cls, request):
            return SimpleNamespace(req_id=request.request_id)

    plugin.carry(NewRequestData)
    sent = SimpleNamespace(request_id="0_mine-ac5f7093", trace_headers={"traceparent": "00"})
    if given:
        sent.external_req_id = given
    requests, seen = requests_into(tmp_path), []
    requests.known[sent.request_id] = NewRequestData.from_request(sent)
    monkeypatch.setattr(tracing, "is_heard", lambda: True)
    monkeypatch.setattr(tracing, "tell", lambda *given: seen.append(given))
    assert prefill(requests, Row(sent.request_id, 0, 0, TOKENS, 0, TOKENS), inputs_of(1))
    ((about, _, _, headers),) = seen
    assert (about["gen_ai.request.id"], about["routesparse.request_id"]) == (told, sent.request_id)
    assert headers == sent.trace_headers and list(recorded(tmp_path)) == [sent.request_id]


def test_of_a_prompt_that_is_not_recorded_nothing_is_read(tmp_path, monkeypatch):
    """Its first token would wait for that."""
    requests = requests_into(tmp_path, every=0)
    monkeypatch.setattr(PromptTrace, "passes", property(lambda self: pytest.fail("was read")))
    assert prefill(requests, Row("a", 0, 0, TOKENS, 0, TOKENS), inputs_of(1))
    assert not recorded(tmp_path)


@pytest.mark.parametrize("recorded_too", [False, True])
def test_a_gpu_is_waited_for_by_prompts_that_are_recorded_alone(tmp_path, monkeypatch, caplog, recorded_too):
    """Of others NaN is looked for behind each later batch, until the GPU is done with them."""
    requests, asked = requests_into(tmp_path, every=int(recorded_too)), []

    def settle(self, wait=True):
        asked.append((self.trace.salt, wait))
        if len(asked) == 3:
            raise NumericsError("NaN or Inf in the attention output")
        return wait

    monkeypatch.setattr(RoutingSession, "settle", settle)
    for name in "ab":
        assert prefill(requests, Row(name, 0, 0, TOKENS, 0, TOKENS), inputs_of(1))
    a, b = map(salt_of, "ab")
    if recorded_too:
        assert asked == [(a, True), (b, True)] and not requests._running
    else:
        assert asked == [(a, False), (a, False), (b, False)] and [*requests._running] == ["a"]
        assert "answered request b as routed, and serves what follows of it by dense" in caplog.text


@pytest.mark.parametrize(
    ("most", "every", "batches", "when"),
    [
        (None, 0, [["a"], ["a", "b"]], [0, 0, 1]),  # behind the launch that hands its first token out
        (8, 0, [["a"], ["b"]], [0, 0, 1]),
        (8, 0, [["b"], ["b"]], [0, 1, 1]),  # ended, or preempted: its pages may be written to
        (8, 0, [["a"] * TOKENS], [0, 1]),  # preempted, and begun again in one step
        (2, 0, [], [1]),
        (8, 1, [], [1]),  # recorded with it
    ],
)
def test_a_loss_is_predicted_when_the_first_token_is_out_and_the_pages_are_whole(
    tmp_path, most, every, batches, when
):
    requests, asked = requests_into(tmp_path, every=every), []
    requests.known["a"] = SimpleNamespace(sampling_params=SimpleNamespace(max_tokens=most))
    requests.keeping = SimpleNamespace(
        applied=lambda chosen: chosen,
        begun=lambda *_: "rows",
        ended=lambda *given: asked.append(given),
        recorded=lambda record, *_: record,
    )
    row, table = Row("a", 1, 0, TOKENS, 0, TOKENS), torch.tensor([[7, 8], [3, 5]])
    requests.choose([row], prompt_of)
    for layer in range(LAYERS):
        requests.attend(row, inputs_of(1), layer)
    requests.finish([row], table)
    table.zero_()  # vLLM's own, for the next batch
    seen = [len(asked)]
    for batch_of in batches:
        requests.catch_up(Counter(batch_of))
        seen.append(len(asked))
    assert seen == when
    request, rows, pages, price, target = asked[0]
    assert (request, rows, pages.tolist(), price, target) == ("a", "rows", [3, 5], CONFIG.price, None)


def test_of_a_prompt_that_is_never_worth_it_no_session_is_made(tmp_path, monkeypatch):
    """It takes the host a millisecond. Too short, behind too many cached keys, or in chunks that are too short."""
    requests = requests_into(tmp_path, replace(CONFIG, break_even_tokens=None))
    known = PROFILE.break_even_tokens(HEADS, LAYERS)
    assert requests.break_even() == known > requests._least
    begun = []
    monkeypatch.setattr(Requests, "_begin", lambda _, row, *rest: begun.append(row.request))
    requests.choose([Row("short", 0, 0, known - 1, 0, known - 1)], prompt_of)
    requests.choose([Row("cached", 0, 0, 1, known - 1, known)], prompt_of)
    assert not begun
    requests.choose([Row("a first chunk", 0, 0, known // 2, 0, known)], prompt_of)
    assert begun == ["a first chunk"]
    for most in (requests._least - 1, requests._least):
        requests.batch_tokens = most
        requests.choose([Row(f"chunks of {most}", 0, 0, 64, 0, known)], prompt_of)
    assert begun[1:] == [f"chunks of {requests._least}"]


def warmed_up(tmp_path, monkeypatch, break_even=8_192, batch_tokens=8_192, longest=32_768, **changes):
    """Keys and rows that a server on a stand-in for a GPU planned at its start, and its compiler."""
    pytest.importorskip("triton")
    stand_in_gpu(monkeypatch, 90)
    compiler, planned, plan = Compiler(torch.device("cpu"), lambda wanted: None), [], ahead.kernels_of

    def kernels_of(inputs, *rest):
        planned.append((inputs.k.shape[2], inputs.q.shape[2]))
        return plan(inputs, *rest)

    monkeypatch.setattr(ahead, "kernels_of", kernels_of)
    monkeypatch.setattr("routesparse.engine.runtime.vllm.requests.compiler_of", lambda device: compiler)
    config = RouterConfig(break_even_tokens=break_even, segment_tokens=131_072)
    requests = requests_into(tmp_path, config)
    on_gpu = {"head_dim": 64, "dtype": torch.bfloat16, "device": torch.device("cuda")}
    requests.model = replace(requests.model, **on_gpu)
    requests.batch_tokens = batch_tokens
    for name, value in changes.items():
        setattr(requests, name, value)
    requests.warm_up(longest)
    compiler.stop()
    return planned, compiler


def test_a_server_on_a_gpu_compiles_at_its_start_what_chunks_of_every_kind_launch(tmp_path, monkeypatch):
    planned, compiler = warmed_up(tmp_path, monkeypatch)
    assert planned == [*ahead.chunks_of_every_kind(32_768, 8_192)]
    assert len(compiler._futures) > 50 and {size for _, size in compiler.asked} == {13, 14, 15}
    # Break-even lies between the kinds of lengths up to 32,768: those that stand for longer prompts are planned, too.
    planned, _ = warmed_up(tmp_path, monkeypatch, break_even=30_000, batch_tokens=131_072)
    assert {keys for keys, _ in planned} == {32_768, 24_581, 24_571, 24_640, 16_384}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": ServedModel("tiny", "", LAYERS, HEADS, KV_HEADS, 64, torch.bfloat16, torch.device("cpu"))},
        {"profile": None},  # the first request measures one
        {"break_even": 32_769, "batch_tokens": 131_072},
        {"break_even": 30_000, "batch_tokens": 4_096},  # no chunk is worth it
        {"longest": 4_096},
    ],
    ids=["cpu", "no-profile", "too-short", "small-chunks", "short-model"],
)
def test_a_server_that_routes_nothing_yet_compiles_nothing_at_its_start(tmp_path, monkeypatch, changes):
    planned, compiler = warmed_up(tmp_path, monkeypatch, **changes)
    assert not planned and not compiler.asked


def test_a_profile_is_measured_by_the_first_prompt_that_wants_routing_and_refused_each_time(
    tmp_path, monkeypatch
):
    """Where it contradicts the calibration: none of its requests is routed, not the first alone."""
    measured = []
    monkeypatch.setattr(NamedProfile, "on", lambda *_: measured.append(1) or PROFILE)
    calibration = SimpleNamespace(alpha=0.5, predictor=None, gate_threshold=None, name="c")
    calibration.cost_mismatch = lambda profile: "made with other costs"
    requests = requests_into(tmp_path, replace(CONFIG, break_even_tokens=None))
    requests.profile = None
    requests.choose([Row("stock", 0, 0, 4_096, 0, 4_096)], partial(prompt_of, extra={"routesparse_route": 0}))
    assert not measured
    requests.chosen = replace(requests.chosen, calibration=calibration)
    for request in "ab":
        assert not requests.choose([Row(request, 0, 0, 4_096, 0, 4_096)], prompt_of)
    requests.chosen = replace(requests.chosen, calibration=None)
    assert requests.choose([Row("c", 0, 0, 4_096, 0, 4_096)], prompt_of) and requests.profile is PROFILE
    assert len(measured) == 3


@pytest.mark.parametrize(
    "row",
    [
        Row("a", 0, 0, 1, 40, 40),  # decodes
        Row("a", 0, 0, 100, 320, 320),  # verifies speculated tokens, behind the prompt
        Row("a", 0, 0, 40, 0, 40),  # too short to be probed
    ],
)
def test_other_rows_are_left_to_the_stock_kernel(tmp_path, row):
    assert requests_into(tmp_path).choose([row], prompt_of) == ()


@pytest.mark.parametrize("long_ones", [0, 1])
def test_a_hundred_prompts_too_short_to_be_routed_are_told_of_once(tmp_path, caplog, long_ones):
    """Nothing is said where one was routed."""
    requests = requests_into(tmp_path, replace(CONFIG, break_even_tokens=TOKENS), every=0)
    with caplog.at_level(logging.INFO, "vllm.routesparse"):
        for name in range(long_ones):
            assert prefill(requests, Row(f"long-{name}", 0, 0, TOKENS, 0, TOKENS), inputs_of(1))
        for name in range(FIRST + 2):
            prefill(requests, Row(f"r-{name}", 0, 0, 200 + name, 0, 200 + name), None)
    told = [] if long_ones else ["none of the first 100 prompts: the longest has 299 tokens, and a prompt"]
    assert len(caplog.messages) == len(told) and all(text in caplog.text for text in told)


def test_prompts_whose_chunks_do_not_pay_count_as_too_short(tmp_path, caplog):
    requests = requests_into(tmp_path, replace(CONFIG, break_even_tokens=TOKENS), every=0)
    with caplog.at_level(logging.INFO, "vllm.routesparse"):
        for name in range(FIRST):
            for context in (0, 300):
                prefill(requests, Row(f"r-{name}", 0, 0, min(300, TOKENS - context), context, TOKENS), None)
    assert "is routed from 320 tokens on" in caplog.text


def layer(because=None, *, own=True, name="RoutedFlash"):
    """As much of vLLM's attention layer as the report reads. own: its backend is exactly ours."""
    backend = type("RoutedFlash", (), {MARK: True, "get_name": lambda: "FLASH_ATTN"})
    backend = backend if own else type(name, (backend,), {})
    return SimpleNamespace(get_attn_backend=lambda: backend, impl=SimpleNamespace(stock_because=because))


def foreign():
    return SimpleNamespace(get_attn_backend=lambda: SimpleNamespace(get_name=lambda: "FLASHINFER"))


def test_the_report_counts_layers_and_tells_by_reason_why_others_are_stock(tmp_path, caplog):
    chunked = layer(own=False, name="ChunkedLocalAttention_64_RoutedFlash")
    found = Installed.of(
        [*(layer() for _ in range(4)), *(layer("a sliding window") for _ in range(2)), chunked]
    )
    assert (found.layers, found.routed) == (7, 4)
    requests = requests_into(tmp_path, replace(CONFIG, break_even_tokens=None))
    requests.settings = replace(requests.settings, loss=0.02)
    with caplog.at_level(logging.INFO, "vllm.routesparse"):
        plugin.tell(requests, found)
        requests.profile = None
        plugin.tell(requests, ALL_ROUTED)
    known, unknown = (line for line in caplog.messages if "routes" in line)
    assert known.startswith(
        "RouteSparse routes 4 of 7 layers of tiny (policy priced, price 2, loss target 0.02, break"
    )
    assert f"break-even {PROFILE.break_even_tokens(HEADS, LAYERS):,} tokens" in known
    assert (
        "; stock: 2 because of a sliding window, 1 because of ChunkedLocalAttention; 1 of 1 routed" in known
    )
    assert "routes 2 of 2" in unknown and "break-even to be measured); 1 of 1" in unknown


def test_another_backend_is_named_with_what_to_pass():
    found = Installed.of([foreign(), foreign()])
    assert found.routed == 0
    assert found.why.startswith(
        "2 because of backend FLASHINFER (--attention-backend; routed are CPU_ATTN, FLASH_ATTN"
    )
    assert Installed.of([]).why == "it has no such layers"


def test_a_prompt_with_nan_is_served_dense_and_said_so_and_the_next_is_routed(tmp_path, caplog):
    requests, sick = requests_into(tmp_path), inputs_of(1)
    sick.k[0, 0, 3] = float("nan")
    outs = prefill(requests, Row("sick", 0, 0, TOKENS, 0, TOKENS), sick)
    assert "serves request sick by dense attention: layer 0: NaN" in caplog.text
    assert all(torch.allclose(out, dense_attention(sick, None), equal_nan=True) for out in outs)
    assert not list(tmp_path.iterdir())
    assert prefill(requests, Row("well", 0, 0, TOKENS, 0, TOKENS), inputs_of(2))
    assert len(list(tmp_path.iterdir())) == 1


def test_an_empty_mount_point_takes_no_record_and_the_server_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ROUTESPARSE_SHARED", str(tmp_path / "shared"))
    spool = tmp_path / "shared" / "spool"
    spool.mkdir(parents=True)
    requests = requests_into(spool)
    with caplog.at_level(logging.WARNING, "vllm.routesparse"):
        plugin.tell(requests, ALL_ROUTED)
        assert "will record no request until this is mended" in caplog.text
        assert prefill(requests, Row("a", 0, 0, TOKENS, 0, TOKENS), inputs_of(1))
    assert "could not record request a" in caplog.text and "is the shared folder mounted" in caplog.text
    assert list(spool.iterdir()) == []
    caplog.clear()
    shared_folder.mark()
    assert prefill(requests, Row("b", 0, 0, TOKENS, 0, TOKENS), inputs_of(2))
    plugin.tell(requests, ALL_ROUTED)
    assert len([path for path in spool.iterdir() if path.is_dir()]) == 1
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]


def test_a_request_may_ask_for_stock_attention_or_a_loss_of_its_own(tmp_path):
    """Beside one that goes by the server's settings."""
    requests, inputs = requests_into(tmp_path, replace(CONFIG, price=0.5)), inputs_of(1)
    row = Row("r", 0, 0, TOKENS, 0, TOKENS)
    assert prefill(requests, row, inputs, routesparse_route=False) == []
    outs = {}
    for price, extra in {
        0.5: {"other": "x"},
        1.0: {"routesparse_loss": 0.01},
        2.0: {"routesparse_loss": 0.02},
    }.items():
        outs[price] = prefill(requests, row, inputs, **extra)
        alone = RoutingSession(replace(CONFIG, price=price), profile=PROFILE, salt=salt_of("r"))
        assert all(
            torch.equal(out, alone.attend(inputs, layer=layer)) for layer, out in enumerate(outs[price])
        )
        requests.forget(["r"])
    assert not torch.equal(outs[0.5][0], outs[2.0][0])
    assert sorted(one["tuned_price"] or "" for one in every_run(tmp_path)) == [
        "",
        "mixed-kl-0.01",
        "mixed-kl-0.02",
    ]


@pytest.mark.parametrize(("every", "served"), [(0, None), (2, {"by": "vllm", "one_in": 2})])
def test_a_request_that_asks_is_recorded_whatever_its_number(tmp_path, every, served):
    """As a sample of the server only where it was its turn anyway."""
    requests = requests_into(tmp_path, every=every)
    for name in ("a", "b", "c"):
        prefill(
            requests, Row(name, 0, 0, TOKENS, 0, TOKENS), inputs_of(1), routesparse_record=int(name < "c")
        )
    found = {name: json.loads(row["config_json"]).get("served") for name, row in recorded(tmp_path).items()}
    assert found == ({"a": served, "b": None, "c": served} if every else {"a": None, "b": None})
    assert not list(tmp_path.glob("*/prompt.parquet"))


WRONG = [
    ({"routesparse_route": "no"}, "routesparse_route='no' must be 1 or 0"),
    ({"routesparse_record": 2}, "routesparse_record=2 must be 1 or 0"),
    ({"routesparse_record": 1.0}, "routesparse_record=1.0 must be 1 or 0"),
    ({"routesparse_loss": "0.01"}, 'routesparse_loss is "0.01", it must be'),
    ({"routesparse_loss": True}, "routesparse_loss is true, it must be"),
    ({"routesparse_loss": None}, "routesparse_loss is null, it must be"),
    ({"routesparse_loss": -1}, "routesparse_loss is -1, it must be"),
    (
        {"routesparse_price": 1},
        "'routesparse_price' is not known; known are routesparse_route, routesparse_loss, route",
    ),
    ({"routesparse": {"route": False}}, "'routesparse' is not known; known are routesparse_route"),
    ({"routesparse" + "\n" * 10_000: 1}, "is not known; known are routesparse_route"),
]


@pytest.mark.parametrize(("extra", "message"), [*WRONG, ({"routesparse_loss": 0.5}, "tiny is not fitted")])
def test_a_request_that_asks_for_what_is_not_known_is_served_stock_and_said_so(
    tmp_path, caplog, extra, message
):
    requests = requests_into(tmp_path)
    assert prefill(requests, Row("r", 0, 0, TOKENS, 0, TOKENS), inputs_of(1), **extra) == []
    (line,) = caplog.messages
    assert line.startswith("RouteSparse leaves request r to vLLM: ") and message in line
    assert "\n" not in line and len(line) < 300
    assert prefill(requests, Row("next", 0, 0, TOKENS, 0, TOKENS), inputs_of(1))


@pytest.mark.parametrize(("extra", "message"), WRONG)
def test_vllm_refuses_it_before_it_is_scheduled(extra, message):
    class Platform:
        seen = 0

        @classmethod
        def validate_request(cls, inputs, params):
            cls.seen += 1

    for _ in range(2):  # vLLM may register a plug-in twice
        plugin.refuse_early(Platform, ZeroDivisionError)
    for well in (None, {}, {"other": object(), "routesparse_route": 1, "routesparse_loss": 1}):
        Platform().validate_request("inputs", SimpleNamespace(extra_args=well))
    Platform.validate_request("inputs", "pooling parameters have no extra_args")
    with pytest.raises(ZeroDivisionError, match=f"RouteSparse: .*{re.escape(message)}"):
        Platform().validate_request("inputs", SimpleNamespace(extra_args=extra))
    assert Platform.seen == 4


def test_a_dropped_request_is_forgotten(tmp_path):
    requests = requests_into(tmp_path)
    first = Row("a", 0, 0, 160, 0, TOKENS)
    assert requests.choose([first], prompt_of) == (first,)
    requests.forget(["a", "unknown"])
    assert not requests._open and not requests._reached


def test_a_prompt_whose_first_tokens_another_left_in_the_cache_is_routed_from_there_on(tmp_path):
    """Its rows are those of the chunk behind; the record says how many tokens nothing was decided of."""
    requests, whole = requests_into(tmp_path), inputs_of(1)
    behind = AttentionInputs(whole.q[:, :, 128:], whole.k, whole.v, whole.scale)
    (first, _) = prefill(requests, Row("b", 0, 0, TOKENS - 128, 128, TOKENS), behind)
    alone = RoutingSession(CONFIG, profile=PROFILE, salt=salt_of("b"), prompts=NamedPrompt)
    assert torch.equal(first, alone.attend(behind, layer=0))
    prefill(requests, Row("a", 0, 0, TOKENS, 0, TOKENS), whole)
    found = {name: json.loads(row["config_json"]) for name, row in recorded(tmp_path).items()}
    assert found["b"]["cached_tokens"] == 128 and "cached_tokens" not in found["a"]


@pytest.mark.parametrize("resumed_at", [0, 128])
def test_a_preempted_prompt_begins_again_where_its_keys_end(tmp_path, resumed_at):
    """At token 160 its own keys would all be there still, and it would go on."""
    requests = requests_into(tmp_path)
    requests.choose([Row("a", 0, 0, 160, 0, TOKENS)], prompt_of)
    begun = requests._open["a"]
    requests.choose([Row("a", 0, 0, TOKENS - resumed_at, resumed_at, TOKENS)], prompt_of)
    assert requests._open["a"] is not begun and requests._open["a"].cached == resumed_at


class Runner:
    """As much of vLLM's model runner as a step reads."""

    def __init__(self, starts):
        self.input_batch = SimpleNamespace(req_ids=["d", "p"], num_computed_tokens_cpu=[9, 0])
        self.starts, self.seen = starts, None

    def execute_model(self, scheduled, late=None):
        step = steps.current()
        step.rows(self.starts)
        self.seen = [row.request for row in step.routed]
        return scheduled, late


class SecondRunner(Runner):
    """As much of the second one, which makes its batch as the step goes."""

    def __init__(self, starts):
        super().__init__(starts)
        self.listed = SimpleNamespace(req_ids=["d", "p"], num_computed_tokens_np=[9, 0])
        del self.input_batch

    def prepare_inputs(self, scheduled):
        return self.listed

    def execute_model(self, scheduled, late=None, dummy_run=False):
        if not dummy_run:
            assert self.prepare_inputs(scheduled) is self.listed
            return super().execute_model(scheduled, late)
        assert steps.current() is None


def scheduled(extra=None):
    def new(request, tokens, params):
        return SimpleNamespace(req_id=request, prompt_token_ids=[1] * tokens, sampling_params=params)

    asked = SimpleNamespace(extra_args=extra)
    return SimpleNamespace(
        finished_req_ids={"gone"},
        num_scheduled_tokens={"d": 1, "p": TOKENS},
        scheduled_new_reqs=[new("d", 9, None), new("p", TOKENS, asked)],
    )


@pytest.fixture(params=[Runner, SecondRunner])
def runner_class(tmp_path, request):
    """A class of its own, of which steps are followed; each of its runners was given Requests once, when warm."""

    class Own(request.param):
        given = 0

        def __init__(self, *given):
            super().__init__(*given)
            wrapper = WorkerWrapper(self)
            wrapper.initialize_from_config(["pages"])
            assert wrapper.worker.compile_or_warm_up_model() == "seconds"

    class Worker:
        def __init__(self, runner):
            self.model_runner = runner

        def compile_or_warm_up_model(self):
            assert self.model_runner.given == 0
            return "seconds"

    class WorkerWrapper:
        def __init__(self, runner):
            self.worker = Worker(runner)

        def initialize_from_config(self, configs):
            assert configs == ["pages"]

    def requests_of(runner):
        runner.given += 1
        return requests_into(tmp_path)

    for _ in range(2):  # vLLM may register a plug-in twice
        steps.at_start(WorkerWrapper, requests_of)
    return Own


@pytest.mark.parametrize(
    ("empty_rows", "extra", "seen"),
    [(0, None, ["p"]), (1, None, ["p"]), (0, {"routesparse_route": 0}, [])],
    ids=["", "a graph of more rows than the batch has", "asked for stock"],
)
def test_a_step_knows_the_requests_of_its_batch_while_it_runs(runner_class, empty_rows, extra, seen):
    runner, given = runner_class([0, 1, TOKENS + 1, *[TOKENS + 1] * empty_rows]), scheduled(extra)
    for _ in range(2):
        assert runner.execute_model(given, late=3) == (given, 3)
    assert runner.seen == seen and runner.given == 1 and steps.current() is None


def test_a_dummy_run_of_the_second_runner_is_no_step(tmp_path):
    runner = SecondRunner([0, 1])
    runner._routesparse_requests = requests_into(tmp_path)
    steps.follow(type(runner))
    runner.execute_model(None, dummy_run=True)


@pytest.mark.parametrize("starts", [[0, TOKENS, TOKENS + 1], [0, 1, TOKENS], [0, 1, TOKENS + 1, TOKENS + 2]])
def test_a_batch_in_another_order_than_its_runner_lists_is_no_batch_to_route(runner_class, starts):
    with pytest.raises(RuntimeError, match="begins its rows at"):
        runner_class(starts).execute_model(scheduled())
    assert steps.current() is None


def test_requests_share_cached_keys_only_with_those_that_are_routed_the_same_way():
    class Request:
        @classmethod
        def from_engine_core_request(cls, request, hasher):
            return SimpleNamespace(made_by=(cls, hasher), cache_salt=request.cache_salt)

    def salt(extra=None, own=None):
        given = SimpleNamespace(cache_salt=own, sampling_params=SimpleNamespace(extra_args=extra))
        given.external_req_id = "client's"
        made = Request.from_engine_core_request(given, "hasher")
        assert made.made_by == (Request, "hasher") and given.cache_salt == own
        assert made.external_req_id == "client's"
        return made.cache_salt

    known = settings(**{"": "1"})
    for _ in range(2):  # vLLM may register a plug-in twice
        plugin.keep_apart(Request, known)
    routed, stock = salt(), salt({"routesparse_route": 0})
    ways = [routed, stock, salt({"routesparse_loss": 0.1}), salt({"routesparse_loss": 0.2}), salt(own="mine")]
    assert len({*ways}) == 5 and ways[-1] == routed + "mine"
    assert salt({"other": 1, "routesparse_record": 1}) == routed
    assert (
        salt({"routesparse_route": 0, "routesparse_loss": 0.1}) == salt({"routesparse_route": "x"}) == stock
    )
    others = [settings(**{"": "1", "_CONFIG": '{"price": 0.25}'}), settings(**{"": "1", "_LOSS": "0.1"})]
    assert len({routed, *(plugin.way_of(other, None) for other in others)}) == 3
    assert plugin.way_of(others[0], SimpleNamespace(extra_args={"routesparse_route": 0})) == stock


def engine(cache_dtype="auto", ranks=1, family="llama", **overrides):
    known = {
        "cache_config": SimpleNamespace(cache_dtype=cache_dtype),
        "kv_transfer_config": None,
        "parallel_config": SimpleNamespace(world_size=ranks),
        "speculative_config": None,
        "lora_config": None,
        "model_config": SimpleNamespace(dtype=torch.float32, hf_config=SimpleNamespace(model_type=family)),
    }
    return SimpleNamespace(**known | overrides)


REFUSED = {
    "fp8": ({"cache_dtype": "fp8"}, "of fp8"),
    "connector": ({"kv_transfer_config": object()}, "KV connector"),
    "ranks": ({"ranks": 2}, "2 ranks"),
    "speculation": ({"speculative_config": object()}, "speculative decoding"),
    "lora": ({"lora_config": object()}, "LoRA"),
    "family": ({"family": "deepseek_v3"}, "latent attention"),
}


@pytest.mark.parametrize(("overrides", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_was_never_compared_is_refused_in_one_line(overrides, message):
    refusals.check_engine(engine())
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        refusals.check_engine(engine(**overrides))
    assert "\n" not in str(caught.value)


def test_other_versions_and_page_layouts_are_refused_by_name():
    refusals.check_version("0.32.0+cpu")
    with pytest.raises(InputError, match=r"vLLM 0\.33\.0 was never compared .* 0\.31\.0 or 0\.32\.0"):
        refusals.check_version("0.33.0")
    refusals.check_cpu_kernel("vec")
    with pytest.raises(UnsupportedModelError, match="'amx' keeps keys in an order"):
        refusals.check_cpu_kernel("amx")


@pytest.mark.parametrize(
    ("extra", "because"),
    [
        ({"sliding_window": 64}, "a sliding window"),
        ({"logits_soft_cap": 30.0}, "a soft cap"),
        ({"sinks": torch.zeros(4)}, "sinks"),
        ({"attn_type": "encoder"}, "encoder attention"),
        ({"attn_type": SimpleNamespace(value="encoder_decoder")}, "cross attention"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_layers_with_more_than_causal_attention_are_not_routed(extra, because):
    assert refusals.why_stock({"num_heads": 4, "alibi_slopes": None, "attn_type": "decoder"}) is None
    assert refusals.why_stock(extra) == because
