"""``with route(model)`` with the real routing session. CPU, tiny random models."""

import gc
import sys
import weakref
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine import RouterConfig, route
from routesparse.engine.config import default_config
from routesparse.engine.device.barriers import Barriers
from routesparse.engine.device.copies import Copies
from routesparse.engine.errors import ConfigError, NumericsError, PromptError, UnsupportedModelError
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.profiles.shape import AttentionShape
from routesparse.engine.record.passes import PendingPass, PromptTrace
from routesparse.engine.runtime import transformers as hf
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.store.bundle import read_bundle
from tests.engine import tiny_shape

CONFIG = tiny_shape.config(512)
TOKENS = 640


@pytest.fixture(autouse=True, scope="module")
def own_home(tmp_path_factory):
    """A home with a latency profile, so that nothing is measured."""
    home = tmp_path_factory.mktemp("home")
    name = AttentionShape(torch.device("cpu"), torch.float32, 16, 4, 2).profile_name(CONFIG)
    replace(tiny_shape.profile(), name=name).save(home / "profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUTESPARSE_HOME", str(home))
        yield


def llama():
    return tiny_shape.decoder()


def no_memory(*_):
    raise torch.OutOfMemoryError("no memory")


def no_host_memory(*_):
    raise MemoryError


def met_nan():
    bad = Copies({"density": torch.ones(1, 4), "finite": torch.tensor(False)})
    return PendingPass(1, (), None, bad, None, ())


def prompt(tokens):
    return torch.randint(0, 97, (1, tokens), generator=torch.Generator().manual_seed(1))


def test_a_routed_prefill_leaves_one_decision_per_head_and_a_bundle(tmp_path):
    model = llama()
    with torch.no_grad(), route(model, CONFIG, name="contract.txt") as trace:
        assert repr(trace) == "Trace: no routed prompt yet"
        model(prompt(TOKENS), logits_to_keep=1)
    assert (
        repr(trace)
        == "Trace of contract.txt, 640 tokens, by LlamaForCausalLM: see to_frame(), plot(), show()"
    )
    keys = {(choice.batch_index, choice.layer, choice.head, choice.segment) for choice in trace.decisions}
    assert keys == {(0, layer, head, 0) for layer in range(2) for head in range(4)}
    assert trace.timings["total_ms"] > 0
    record = read_bundle(trace.to_bundle(tmp_path / "out"))
    assert (record.run.tokens, record.run.layers, record.run.heads) == (TOKENS, 2, 4)
    assert (record.run.model, record.run.prompt_name) == ("LlamaForCausalLM", "contract.txt")
    assert model.config._attn_implementation == "sdpa"


def test_waiting_threads_soon_sleep_in_routed_layers_alone(monkeypatch):
    def of_layer(_, device):
        devices.append(device.type)
        return nullcontext()

    devices = []
    monkeypatch.setattr(Barriers, "of_layer", of_layer)
    model = llama()
    with torch.no_grad(), route(model, CONFIG):
        cache = model(prompt(TOKENS)).past_key_values
        assert devices == ["cpu"] * 2
        model(prompt(1), past_key_values=cache)
        model(prompt(256))
    assert devices == ["cpu"] * 2


def test_settings_by_name_are_a_configuration_with_the_devices_own_segments():
    model = llama()
    with route(model, price=1.0, block_q=256) as trace:
        assert trace.settings.config == RouterConfig(price=1.0, block_q=256)
    with route(model) as trace:
        assert trace.settings.config == default_config(False) == RouterConfig()
    assert default_config(True, price=1.0) == RouterConfig(price=1.0, segment_tokens=131_072)
    assert default_config(True, segment_tokens=16_384) == RouterConfig()


@pytest.mark.parametrize(
    "config, settings, message",
    [
        (CONFIG, {"price": 1.0}, r"settings by name \(price\); pass one"),
        (
            None,
            {"calibratoin": "prose"},
            "unknown arguments calibratoin; pass config, calibration, profile, salt or a",
        ),
        (None, {"gate": 0.5}, "unknown arguments gate; pass"),
        (None, {"price": "much"}, "price is .much., it must be a number"),
    ],
)
def test_settings_that_can_not_be_meant_are_refused_before_the_model_is_touched(config, settings, message):
    model = llama()
    with pytest.raises(ConfigError, match=message), route(model, config, **settings):
        pass
    assert model.config._attn_implementation == "sdpa"


def captured(model):
    """What blocks of this model share, which a CPU leaves empty."""
    with route(model, CONFIG):
        return tiny_shape.router_of(model).graphs


def test_blocks_of_one_model_share_what_a_gpu_captured_until_it_moves_runs_out_of_memory_or_goes():
    model = llama()
    first = captured(model)
    assert first is captured(model) is not captured(llama())
    with pytest.raises(ValueError, match="another error"), route(model, CONFIG):
        raise ValueError("another error")
    assert captured(model) is first
    with pytest.raises(torch.OutOfMemoryError), route(model, CONFIG):
        no_memory()
    second = captured(model)
    assert second is not first and captured(model.to("meta")) is not second
    last = weakref.ref(captured(model))
    del model
    gc.collect()
    assert last() is None


@pytest.fixture
def watched(monkeypatch):
    """A model, a session that serves it, and the layers that asked the session."""
    model, session, asked = llama(), RoutingSession(CONFIG, profile=NamedProfile()), []
    attend = session.attend
    monkeypatch.setattr(
        session, "attend", lambda inputs, **call: (asked.append(call["layer"]), attend(inputs, **call))[1]
    )
    with hf.routed_by(model, session):
        yield model, session, asked


def test_below_break_even_one_layer_asks_and_the_output_is_the_models_own(watched):
    model, session, asked = watched
    with torch.no_grad():
        outputs = [model(prompt(tokens), use_cache=False).logits for tokens in (256, TOKENS, 256)]
        expected = llama()(prompt(256), use_cache=False).logits
    assert asked == [0, 0, 1, 0]
    assert torch.equal(outputs[0], expected) and torch.equal(outputs[2], expected)
    assert [len(p.layers) for p in session.trace.prompts] == [2, 2, 2]
    assert [len(p.passes) for p in session.trace.prompts] == [0, 2, 0]


def test_a_chunk_that_passes_break_even_is_routed_after_one_that_did_not(watched):
    model, session, asked = watched
    with torch.no_grad():
        first = model(prompt(TOKENS)[:, :256])
        model(prompt(TOKENS)[:, 256:], past_key_values=first.past_key_values)
    assert asked == [0, 0, 1]
    (one,) = session.trace.prompts
    assert (one.tokens, len(one.passes)) == (TOKENS, 2)


@pytest.mark.parametrize("padded", [False, True], ids=["gradients", "padded"])
def test_below_break_even_every_layer_asks_where_attention_is_not_plain(watched, padded):
    model, session, asked = watched
    mask = torch.ones(1, 256, dtype=torch.long)
    mask[:, : 40 * padded] = 0
    with torch.set_grad_enabled(not padded):
        model(prompt(256), attention_mask=mask, use_cache=False)
    assert asked == [0, 1]
    assert [p.layers for p in session.trace.prompts] == [{0, 1}]


def test_a_model_of_windows_and_whole_layers_leaves_one_prompt():
    kinds = ["full_attention", "sliding_attention"] * 2
    windows = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2, "layer_types": kinds}
    model = tiny_shape.decoder("Qwen2", num_hidden_layers=4, **windows)
    session = RoutingSession(CONFIG, profile=NamedProfile())
    with torch.no_grad(), hf.routed_by(model, session):
        for _ in range(2):
            model(prompt(256), use_cache=False)
    assert [p.layers for p in session.trace.prompts] == [{0, 1, 2, 3}] * 2


def test_a_layer_that_is_not_causal_is_refused_below_break_even_too(watched):
    model, _session, _asked = watched
    model.model.layers[1].self_attn.is_causal = False
    with pytest.raises(UnsupportedModelError, match="bidirectional"), torch.no_grad():
        model(prompt(256), use_cache=False)


def test_a_forward_that_failed_below_break_even_lends_its_prompt_to_nobody(watched):
    model, session, asked = watched
    hook = model.model.layers[1].mlp.register_forward_pre_hook(no_memory)
    with torch.no_grad():
        with pytest.raises(torch.OutOfMemoryError):
            model(prompt(256), use_cache=False)
        hook.remove()
        # The decoder alone: no hook says that a forward begins.
        model.model(prompt(256).expand(2, -1), use_cache=False)
    assert asked == [0, 0]
    assert (session.trace.prompts[-1].batch, session.trace.prompts[-1].layers) == (2, {0, 1})


def certificate_masses(trace):
    return trace.prompts[-1].passes[0].decisions[0].certificate_mass


def test_every_block_draws_its_own_rows_and_a_salt_repeats_them():
    model, drawn = llama(), []
    for salt in (None, None, "given", "given"):
        with torch.no_grad(), route(model, CONFIG, salt=salt) as trace:
            model(prompt(TOKENS), logits_to_keep=1)
        drawn.append(certificate_masses(trace))
    with torch.no_grad(), route(model, CONFIG, salt=trace.salt) as again:
        model(prompt(TOKENS), logits_to_keep=1)
    assert not np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[2], drawn[3]) and np.array_equal(drawn[3], certificate_masses(again))


def test_a_forward_that_failed_outside_attention_leaves_no_prompt_for_a_chunk():
    """The second layer's MLP runs out of memory: a later chunk does not join that half of a prompt."""
    model, session = llama(), RoutingSession(CONFIG, profile=NamedProfile())
    with torch.no_grad(), hf.routed_by(model, session):
        first = model(prompt(TOKENS), logits_to_keep=1)
        kept = session.trace.prompts[0]
        hook = model.model.layers[1].mlp.register_forward_pre_hook(no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            model(prompt(TOKENS), logits_to_keep=1)
        hook.remove()
        model(prompt(200), past_key_values=first.past_key_values, logits_to_keep=1)
    (only,) = session.trace.prompts
    assert (kept.tokens, only.tokens) == (TOKENS, TOKENS + 200), "the chunk continues the prompt of its cache"
    assert (len(kept.passes), len(only.passes)) == (2, 4)


def test_a_prefill_that_failed_outside_attention_is_no_record(tmp_path):
    """Neither inside the block nor after it; the next prefill is one again."""
    model = llama()
    hook = model.model.layers[1].mlp.register_forward_pre_hook(no_memory)
    with torch.no_grad(), route(model, CONFIG) as trace:
        with pytest.raises(torch.OutOfMemoryError):
            model(prompt(TOKENS), logits_to_keep=1)
        hook.remove()
        with pytest.raises(PromptError, match="did not come to its end"):
            trace.to_bundle(tmp_path / "bundles")
        with pytest.raises(PromptError, match="did not come to its end"):
            _ = trace.decisions
        model(prompt(TOKENS), logits_to_keep=1)
    assert not (tmp_path / "bundles").exists() and len(trace.prompts) == 1
    assert trace.to_bundle(tmp_path / "bundles").exists() and {unit.layer for unit in trace.decisions} == {
        0,
        1,
    }


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Layers do not read their own passes: forwards read what was left by those before."""
    read = PromptTrace.read

    def unless_a_layer_ended(prompt):
        if sys._getframe(1).f_code.co_name != "_attend":
            read(prompt)

    monkeypatch.setattr(PromptTrace, "read", unless_a_layer_ended)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_record_that_can_not_be_read_is_told_once_and_the_next_prompt_is_whole(monkeypatch):
    model = llama()
    with torch.no_grad(), route(model, CONFIG) as trace:
        model(prompt(TOKENS), use_cache=False)
        with monkeypatch.context() as broken, pytest.raises(MemoryError):
            broken.setattr(PendingPass, "read", no_host_memory)
            model(prompt(TOKENS), use_cache=False)
        assert len(trace.prompts) == 1 and not trace.prompts[0].launched
        model(prompt(TOKENS), use_cache=False)
    assert [len(one.passes) for one in trace.prompts] == [2, 2]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_nan_of_a_forward_outside_the_models_hooks_is_told_by_the_next():
    model = llama()
    with torch.no_grad(), route(model, CONFIG) as trace:
        model.model(prompt(TOKENS), use_cache=False)
        trace.prompts[-1].add(met_nan())
        with pytest.raises(NumericsError, match="layer 1: NaN or Inf in the attention output"):
            model(prompt(TOKENS), use_cache=False)
        assert not trace.prompts
