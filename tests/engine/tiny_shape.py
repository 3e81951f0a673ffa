"""The tiny random decoders that models' tests are made of, and settings that suit prompts of a few hundred tokens."""

import torch
import transformers

from routesparse.engine.config import RouterConfig
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.runtime.transformers import ATTRIBUTE, attention_modules

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    # Larger than usual: outputs must depend on the mask, or negative controls would prove nothing.
    "initializer_range": 0.2,
}


def config(break_even_tokens, **settings):
    """Small blocks and few rows."""
    sizes = {"block_q": 32, "block_k": 16, "tail_tokens": 32, "routing_rows": 16, "certificate_rows": 16}
    return RouterConfig(break_even_tokens=break_even_tokens, **sizes, **settings)


def profile(dense_tile_us=10):
    """Blocks are dear and nothing else costs: what is sparse does not depend on this machine's load."""
    costs = (0, 10, 0, 0, dense_tile_us, 0, 0, 0, 0)
    return LatencyProfile("p", "d", "torch", "float32", 16, 2, 1, 32, 16, *costs)


def decoder(family="Llama", **overrides):
    """A random model, the same at each call."""
    torch.manual_seed(0)
    made = getattr(transformers, f"{family}Config")(**{**SHAPE, **overrides})
    return getattr(transformers, f"{family}ForCausalLM")(made).eval()


def router_of(model):
    """The router that serves this model now, or None."""
    return attention_modules(model)[0].__dict__.get(ATTRIBUTE)
