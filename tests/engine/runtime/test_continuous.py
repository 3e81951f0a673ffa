"""Routed prefill under transformers' continuous batching; CPU, float32, tiny random models."""

from dataclasses import replace

import pytest
import torch
import transformers
from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationConfig

from routesparse.engine import route
from routesparse.engine.errors import UnsupportedModelError
from routesparse.engine.runtime.continuous import NAME, route_requests
from routesparse.engine.store.bundle import read_bundle
from tests.engine import tiny_shape

CONFIG = tiny_shape.config(256)
# Dense tiles are dear: sparse kernels run at full budget too.
PROFILE = tiny_shape.profile(dense_tile_us=30)
# A floor that no block's share is below: every plan reads every block.
FULL = replace(CONFIG, price=1e-6)
MODELS = {
    "Llama": {},
    "Qwen2": {
        "use_sliding_window": True,
        "sliding_window": 48,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Mistral": {"sliding_window": 48},
}
LENGTHS = (40, 413, 1, 300)
TOKENS = 6
BATCHING = {"page_size": 16, "num_blocks": 128, "max_batch_tokens": 1024, "allow_block_sharing": False}


def build(family):
    return tiny_shape.decoder(family, eos_token_id=None, **MODELS[family])


@pytest.fixture(scope="module")
def llama():
    return build("Llama")


def prompts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 97, (n,), generator=generator).tolist() for n in LENGTHS]


def greedy(tokens):
    return GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1)


def serve(model, requests=None, tokens=TOKENS, **batching):
    """Greedy tokens by request id, and errors."""
    results = model.generate_batch(
        prompts() if requests is None else requests,
        generation_config=greedy(tokens),
        continuous_batching_config=ContinuousBatchingConfig(**{**BATCHING, **batching}),
    )
    return {name: result.generated_tokens for name, result in results.items()}, [
        result.error for result in results.values()
    ]


def choices(trace):
    return [(c.layer, c.head, c.segment, c.first_token, c.pattern, c.budget) for c in trace.decisions]


@pytest.mark.parametrize("batch_tokens", [1024, 160], ids=["mixed", "chunked"])
@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_at_full_budget_the_tokens_are_those_of_sdpa(family, batch_tokens):
    model = build(family)
    expected, errors = serve(model, max_batch_tokens=batch_tokens)
    assert not any(errors) and len(set(map(tuple, expected.values()))) == len(LENGTHS)
    with route_requests(model, FULL, profile=PROFILE) as traces:
        assert serve(model, max_batch_tokens=batch_tokens) == (expected, errors)
    assert model.config._attn_implementation == "sdpa"
    routed = {name for name, trace in traces.items() if trace.decisions}
    assert routed == {"req_1", "req_3"} and set(traces) == set(expected)
    assert all(choice.density == 1 for name in routed for choice in traces[name].decisions)


def test_a_request_is_routed_as_if_it_ran_alone(llama):
    with route_requests(llama, CONFIG, profile=PROFILE) as traces:
        tokens, _ = serve(llama)
    for name, prompt in zip(tokens, prompts(), strict=True):
        with torch.no_grad(), route(llama, CONFIG, profile=PROFILE, salt=traces[name].salt) as alone:
            out = llama.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False)
        assert tokens[name] == out[0, len(prompt) :].tolist()
        assert choices(traces[name]) == choices(alone)
    densities = [choice.density for choice in traces["req_1"].decisions]
    assert len(densities) == 8 and min(densities) < 1


def test_a_chunk_of_a_prompt_is_routed_as_under_route(llama):
    config = replace(CONFIG, break_even_tokens=200)
    prompt = torch.tensor(prompts()[1:2])
    with route_requests(llama, config, profile=PROFILE) as traces:
        tokens, _ = serve(llama, prompts()[1:2], max_batch_tokens=140)
    cache = transformers.DynamicCache()
    with torch.no_grad(), route(llama, config, profile=PROFILE, salt=traces["req_0"].salt) as alone:
        for part in prompt.split(140, dim=1):
            logits = llama(part, past_key_values=cache).logits
    assert tokens["req_0"][0] == int(logits[0, -1].argmax())
    assert choices(traces["req_0"]) == choices(alone)
    assert {choice.first_token for choice in alone.decisions} == {
        140,
        280,
    }  # the first chunk is below break-even


def test_each_request_leaves_a_bundle_of_its_own(llama, tmp_path):
    with route_requests(llama, CONFIG, profile=PROFILE) as traces:
        serve(llama, max_batch_tokens=320)
    for name, length in zip(traces, LENGTHS, strict=True):
        record = read_bundle(traces[name].to_bundle(tmp_path / name))
        assert (record.run.prompt_name, record.run.tokens) == (name, length)
        assert bool(record.choices) == (length >= CONFIG.break_even_tokens)
    assert len({trace.salt for trace in traces.values()}) == len(LENGTHS)


def test_a_preempted_request_is_prefilled_again_and_the_tokens_stay_as_they_are(llama):
    """53 pages hold four prompts of 200 tokens, but not what they generate: the last one gives its pages back."""
    requests = [prompt[:200] for prompt in prompts() * 2 if len(prompt) > 40]
    expected, errors = serve(llama, requests, tokens=20)
    with route_requests(llama, FULL, profile=PROFILE) as traces:
        assert serve(llama, requests, tokens=20, num_blocks=53) == (expected, errors)
    lengths = [trace.record().run.tokens for trace in traces.values()]
    assert lengths[:3] == [200] * 3 and 200 < lengths[3] < 220


def test_a_cancelled_request_leaves_the_others_tokens_as_they_are(llama):
    expected, _ = serve(llama, prompts()[1:2])
    with (
        route_requests(llama, FULL, profile=PROFILE) as traces,
        llama.continuous_batching_context_manager(
            generation_config=greedy(600), continuous_batching_config=ContinuousBatchingConfig(**BATCHING)
        ) as manager,
    ):
        long = manager.add_request(prompts()[3], eos_token_id=-1)
        kept = manager.add_request(prompts()[1], max_new_tokens=TOKENS, eos_token_id=-1)
        manager.cancel_request(long)
        while (result := manager.get_result(timeout=5)) is not None and result.request_id != kept:
            pass
    assert result.generated_tokens == expected["req_0"]
    assert traces[kept].decisions


@pytest.mark.parametrize(
    ("family", "call", "message"),
    [
        ("Llama", lambda model: serve(model, allow_block_sharing=True), "share a prefix"),
        ("Mistral", serve, "sliding window"),
    ],
    ids=["shared-prefixes", "windows-only"],
)
def test_what_would_be_silently_wrong_is_refused_in_one_line(family, call, message):
    model = build(family)
    with pytest.raises(UnsupportedModelError, match=message), route_requests(model, CONFIG):
        _, errors = call(model)
        assert all(message in str(error) for error in errors)
    assert model.config._attn_implementation == "sdpa"


def test_other_calls_inside_the_block_are_refused(llama):
    with torch.no_grad(), pytest.raises(UnsupportedModelError, match="use route"), route_requests(llama):
        llama(torch.tensor([[5, 6, 7]]))
    llama.config._attn_implementation = NAME
    try:
        with torch.no_grad(), pytest.raises(UnsupportedModelError, match="open that block"):
            llama(torch.tensor([[5, 6, 7]]))
    finally:
        llama.set_attn_implementation("sdpa")
