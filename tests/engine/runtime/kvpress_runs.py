"""What test_kvpress.py asks of kvpress, in a process of its own: importing kvpress changes transformers for good.

Its arguments are cases such as "Llama snapkv". Prints one JSON object: for each case the tokens and kept keys after a
dense prefill with the press alone, after a routed one at full budget and after one at a price; and what was refused,
in which words.
"""

import json
import sys
from dataclasses import replace

import torch
import transformers

from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.runtime import kvpress as adapter
from routesparse.engine.runtime.route import route
from routesparse.engine.runtime.transformers import attention_modules

kvpress = adapter.import_kvpress()

TOKENS, NEW = 640, 12
CONFIG = RouterConfig(
    break_even_tokens=0, block_q=32, block_k=16, tail_tokens=32, routing_rows=16, certificate_rows=16
)
DENSE = replace(CONFIG, policy="certified", tau=1.0)
PROFILE = LatencyProfile("p", "d", "torch", "float32", 16, 2, 1, 32, 16, 0, 10, 0, 0, 10, 0, 0, 0, 0)
SHAPE = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
SHAPE |= dict(num_key_value_heads=2, head_dim=16, max_position_embeddings=2048, initializer_range=0.2)
SHAPE |= dict(pad_token_id=0, eos_token_id=None)
PRESSES = {
    "streaming_llm": lambda: kvpress.StreamingLLMPress(compression_ratio=0.5),
    "snapkv": lambda: kvpress.SnapKVPress(compression_ratio=0.5),
}


def model(family="Llama", **overrides):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **overrides})
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def prompt(tokens=TOKENS, batch=1):
    return torch.randint(3, 97, (batch, tokens), generator=torch.Generator().manual_seed(1))


def restored(module, arguments, named):
    """The test's own: what transformers below 5.3 handed to every layer."""
    cached, rows = named["past_key_values"].get_seq_length(module.layer_idx), named["hidden_states"].shape[1]
    return arguments, {**named, "cache_position": torch.arange(cached, cached + rows)}


@torch.no_grad()
def decoded(made, cache, logits):
    """Greedy tokens by hand, with the prompt's true positions."""
    found = []
    for step in range(NEW):
        best = logits[:, -1:].argmax(-1)
        found.append(int(best))
        logits = made(best, past_key_values=cache, position_ids=torch.tensor([[TOKENS + step]])).logits
    return found


def told(made, cache, logits):
    lengths = [layer.keys.shape[2] for layer in cache.layers]
    keys = [layer.keys.double().sum((0, 2)).flatten().tolist() for layer in cache.layers]
    return {"lengths": lengths, "keys": keys, "tokens": decoded(made, cache, logits)}


@torch.no_grad()
def alone(made, press):
    """kvpress after a dense prefill, in eager attention, without our adapter."""
    made.set_attn_implementation("eager")
    hooks = [m.register_forward_pre_hook(restored, with_kwargs=True) for m in attention_modules(made)]
    cache = transformers.DynamicCache(config=made.config)
    with press(made):
        logits = made(prompt(), past_key_values=cache).logits
    for hook in hooks:
        hook.remove()
    return told(made, cache, logits)


@torch.no_grad()
def after_route(made, press, config):
    cache = transformers.DynamicCache(config=made.config)
    with route(made, config, profile=PROFILE) as trace, adapter.pressed(made, press):
        logits = made(prompt(), past_key_values=cache).logits
    choices = [(c.pattern, c.lower_mass) for c in trace.decisions]
    return told(made, cache, logits) | {"choices": choices}


@torch.no_grad()
def generated(made, press):
    ids = prompt()
    with route(made, DENSE, profile=PROFILE), adapter.pressed(made, press):
        out = made.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
    return out[0, TOKENS:].tolist()


@torch.no_grad()
def refused(made, press, *arguments, **named):
    try:
        with adapter.pressed(made, press):
            made(*arguments, **named)
    except RouteSparseError as error:
        return [type(error).__name__, str(error)]
    return None


def refusals():
    """Masks and caches are given by name and by position."""
    snap, ids = PRESSES["snapkv"](), prompt(100)
    parallel, mask, cache = model(), torch.ones(2, 100, dtype=torch.long), transformers.DynamicCache()
    parallel._tp_size = 2
    mask[0, :5] = 0
    with torch.no_grad():
        made = model()
        made(ids, past_key_values=cache)
    return {
        "observed": refused(model(), kvpress.ObservedAttentionPress(0.5), ids),
        "press": refused(model(), kvpress.KnormPress(0.5), ids),
        "wrapped": refused(model(), kvpress.AdaKVPress(snap), ids),
        "family": refused(model("Gemma2"), snap, ids),
        "parallel": refused(parallel, snap, ids),
        "window": refused(model("Mistral", sliding_window=48), snap, ids),
        "partial": refused(model("Phi3", partial_rotary_factor=0.5), snap, ids),
        "padded": refused(model(), snap, prompt(100, 2), attention_mask=mask),
        "padded, by place": refused(model(), snap, prompt(100, 2), mask),
        "chunk": refused(made, snap, ids, past_key_values=cache),
        "chunk, by place": refused(made, snap, ids, None, None, cache),
        "cacheless": refused(model(), snap, ids, use_cache=False),
        "fine": refused(model(), snap, ids),
    }


def main():
    found = {}
    for case in sys.argv[1:]:
        family, name = case.split()
        make, made = PRESSES[name], model(family)
        reference = alone(made, make())
        made.set_attn_implementation("sdpa")
        found[case] = {
            "alone": reference,
            "full": after_route(made, make(), DENSE),
            "priced": after_route(made, make(), CONFIG),
            "generated": generated(made, make()),
            "hooks_left": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in made.modules()),
        }
    print(json.dumps({"runs": found, "refused": refusals()}))


main()
