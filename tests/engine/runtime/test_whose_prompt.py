"""Threads, nested blocks, copied and cropped caches, several prompts, torch.compile, empty batches. CPU, tiny model."""

import copy
import threading
from contextlib import ExitStack

import pytest
import torch

from routesparse.engine import route
from routesparse.engine.errors import PromptError, UnsupportedModelError
from tests.engine import tiny_shape

LAYERS, HEADS = 2, 4


@pytest.fixture
def model():
    return tiny_shape.decoder(max_position_embeddings=4096).requires_grad_(False)


@pytest.fixture
def block(model, config, oracle):
    """A new route() block on the model."""
    return lambda other=None: route(
        model if other is None else other, config, profile=oracle.PROFILE, salt="given"
    )


def prompt(tokens, seed=1):
    return torch.randint(0, 97, (1, tokens), generator=torch.Generator().manual_seed(seed))


def segments(trace):
    """(tokens, decisions, different units) of each prompt of the trace."""
    found = []
    for each in trace.prompts:
        units = [(d.layer, d.segment.index) for d in each.decisions()]
        found.append((each.tokens, len(units), len(set(units))))
    return found


def restored(model):
    return model.config._attn_implementation == "sdpa" and tiny_shape.router_of(model) is None


def in_thread(work):
    """What the work raises in a thread of its own."""
    raised = []

    def run():
        try:
            work()
        except Exception as error:  # noqa: BLE001
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=60)
    return raised


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)], ids=str)
def test_blocks_left_in_any_order_restore_the_model(model, block, order):
    blocks = [ExitStack() for _ in order]
    traces = [stack.enter_context(block()) for stack in blocks]
    left = set()
    for place in order:
        blocks[place].close()
        left.add(place)
        remaining = [number for number in range(3) if number not in left]
        if remaining:
            before = len(traces[remaining[-1]].prompts)
            model(prompt(300), use_cache=False)
            assert len(traces[remaining[-1]].prompts) == before + 1, "the youngest open block has the model"
    assert restored(model)


def test_a_model_is_not_copied_with_its_router(model, block):
    with block(), pytest.raises(UnsupportedModelError, match="copy it before, and route the copy by itself"):
        copy.deepcopy(model)
    assert restored(copy.deepcopy(model))


def test_a_second_thread_s_block_is_refused_and_the_first_goes_on(model, block):
    def second():
        with block():
            pass

    with block() as trace:
        (error,) = in_thread(second)
        assert isinstance(error, UnsupportedModelError) and "another thread has this model" in str(error)
        model(prompt(300), use_cache=False)
    assert segments(trace) == [(300, LAYERS, LAYERS)]
    assert restored(model)
    assert in_thread(second) == []


def test_a_second_thread_s_forward_is_refused_while_one_runs(model, block):
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_):
        inside.set()
        go_on.wait(60)

    def prefill():
        with torch.no_grad():
            model(prompt(300, seed=2), use_cache=False)

    with block() as trace:
        hook = model.model.layers[1].register_forward_pre_hook(wait)
        first = threading.Thread(target=prefill)
        first.start()
        assert inside.wait(60)
        (error,) = in_thread(prefill)
        hook.remove()
        go_on.set()
        first.join(60)
        assert isinstance(error, PromptError) and "another thread is inside" in str(error)
        assert segments(trace) == [(300, LAYERS, LAYERS)]
        assert in_thread(prefill) == []
    assert len(trace.prompts) == 2


def test_two_threads_whose_layers_interleave_without_a_forward_hook_are_told_apart(oracle, start):
    """A session without route() is not told of forwards: layer 1 of the first prompt comes after layer 0 of another."""
    _, call = start()
    call(oracle.draw_inputs(1, n_q=300), 0)
    assert in_thread(lambda: call(oracle.draw_inputs(2, n_q=300), 0)) == []
    with pytest.raises(PromptError, match="two threads prefill"):
        call(oracle.draw_inputs(1, n_q=300), 1)


def test_a_forward_that_failed_in_one_thread_does_not_lock_out_another(model, block):
    def fail(*_):
        raise RuntimeError("as planned")

    with block() as trace:
        hook = model.model.layers[1].register_forward_pre_hook(fail)
        (error,) = in_thread(lambda: model(prompt(300), use_cache=False))
        assert "as planned" in str(error)
        hook.remove()
        model(prompt(300), use_cache=False)
    assert segments(trace) == [(300, LAYERS, LAYERS)]


def test_prompts_that_reuse_a_prefix_each_have_their_own_trace(model, block):
    with block() as trace:
        prefix = model(prompt(400)).past_key_values
        for seed, tokens in ((2, 300), (3, 350)):
            model(prompt(tokens, seed), past_key_values=copy.deepcopy(prefix))
    assert segments(trace) == [(700, 2 * LAYERS, 2 * LAYERS), (750, 2 * LAYERS, 2 * LAYERS)]
    assert {(c.layer, c.segment) for c in trace.decisions} == {
        (layer, s) for layer in range(2) for s in (0, 1)
    }


def test_chunks_of_prompts_that_take_turns_go_to_their_own_traces(model, block):
    """Equal lengths and equal last tokens: only the cached keys tell the prompts apart."""
    ids = [prompt(800, seed) for seed in (1, 2)]
    ids[1][:, 300:400] = ids[0][:, 300:400]
    with block() as trace:
        caches = [model(each[:, :400]).past_key_values for each in ids]
        for each, cache in zip(ids, caches, strict=True):
            model(each[:, 400:], past_key_values=cache)
    with block() as alone:
        for each in ids:
            cache = model(each[:, :400]).past_key_values
            model(each[:, 400:], past_key_values=cache)
    assert segments(trace) == [(800, 2 * LAYERS, 2 * LAYERS)] * 2
    for mixed, own in zip(trace.prompts, alone.prompts, strict=True):
        for one, other in zip(mixed.decisions(), own.decisions(), strict=True):
            assert (one.certificate_mass == other.certificate_mass).all()


def test_a_second_turn_after_decoding_continues_its_prompt(model, block):
    with block() as trace:
        cache = model(prompt(400)).past_key_values
        for seed in range(3):
            model(prompt(1, seed), past_key_values=cache)
        model(prompt(300, 5), past_key_values=cache)
    assert segments(trace) == [(703, 2 * LAYERS, 2 * LAYERS)]


def test_a_cropped_cache_runs_dense_and_its_trace_says_so_until_the_next_prompt(model, block, tmp_path):
    ids = torch.cat((prompt(500)[:, :200], prompt(400, 9)), dim=1)
    wanted = model(ids, use_cache=False).logits[:, 200:]
    with block() as trace:
        cache = model(prompt(500)).past_key_values
        cache.crop(-300)
        assert torch.allclose(model(ids[:, 200:], past_key_values=cache).logits, wanted, atol=1e-3)
        for read in (lambda: trace.decisions, lambda: trace.timings, lambda: trace.to_bundle(tmp_path)):
            with pytest.raises(PromptError, match="continued a cache that is none of this block's prompts"):
                read()
        assert segments(trace) == [(500, LAYERS, LAYERS)] and not list(tmp_path.iterdir())
        model(prompt(300, 4))
        assert trace.decisions


def edited(what, head):
    def edit(cache):
        for layer in cache.layers:
            getattr(layer, what)[:, head, 10, 15] += 1.0

    return edit


def without_its_first_tokens(cache):
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, 100:], layer.values[:, :, 100:]


CHANGES = {
    "cropped": lambda cache: cache.crop(-300),
    "without its first tokens": without_its_first_tokens,
    **{f"edited {what} {head}": edited(what, head) for what in ("keys", "values") for head in (0, 1)},
    "of another model call": None,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_trace_is_silent_after_a_continuation_of_a_changed_cache_of_any_length(model, block, change):
    outside = model(prompt(500, 8)).past_key_values
    for tokens in (2, 64):
        with block() as trace:
            cache = model(prompt(500)).past_key_values
            if change is not None:
                change(cache)
            model(prompt(tokens, 9), past_key_values=outside if change is None else cache)
            with pytest.raises(PromptError, match="continued a cache that is none of this block's prompts"):
                print(trace.decisions)


def test_wrong_guesses_of_assisted_decoding_leave_the_prompt_its_trace(model, block):
    ids = prompt(200).repeat(1, 2)
    with block() as trace:
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False,
            prompt_lookup_num_tokens=5, pad_token_id=0,
        )  # fmt: skip
        assert len(trace.decisions) == LAYERS * HEADS
    with block() as trace:
        cache = model(ids).past_key_values
        cache.crop(-50)
        model(prompt(5, 9), past_key_values=cache)
        with pytest.raises(PromptError, match="none of this block's prompts"):
            print(trace.decisions)


@pytest.mark.parametrize("shape", [(0, 300), (1, 0)], ids=str)
def test_an_empty_batch_is_refused_in_one_line(model, block, shape):
    with block() as trace:
        for call in (
            lambda: model(torch.zeros(shape, dtype=torch.long)),
            lambda: model(input_ids=torch.zeros(shape, dtype=torch.long)),
            lambda: model(inputs_embeds=torch.zeros(*shape, 64)),
        ):
            with pytest.raises(PromptError, match="holds no token; pass at least one prompt"):
                call()
        assert trace.decisions == ()
    assert restored(model)


@pytest.mark.parametrize("kind", ["in place", "one layer"])
def test_a_compiled_model_is_routed_as_the_same_model_is_without(model, block, kind):
    plain, ids = copy.deepcopy(model), prompt(400)
    with block(plain) as wanted:
        expected = plain(ids, use_cache=False).logits
    if kind == "in place":
        model.compile(backend="eager")
    else:
        model.model.layers[1] = torch.compile(model.model.layers[1], backend="eager")
    dense = model(ids, use_cache=False).logits
    with block() as trace:
        found = model(ids, use_cache=False).logits
    assert torch.allclose(found, expected, atol=1e-5) and not torch.allclose(found, dense, atol=1e-5)
    assert [d.routed.choice.tolist() for d in trace.prompts[0].decisions()] == [
        d.routed.choice.tolist() for d in wanted.prompts[0].decisions()
    ]
    assert torch.equal(model(ids, use_cache=False).logits, dense)
