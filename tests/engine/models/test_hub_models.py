"""Hub models by their own configuration files: loaded, routed at full budget and at a price. CPU, tiny random weights.

Each entry holds what the model's published config.json says about attention, in the form in which it is published.
``shrunk`` keeps the kind of positions and their factors, the ratio of query to KV heads, the head size, soft caps and
norms; hidden size, layers and vocabulary become tiny, and all lengths (context, original context, window) a 32nd, so
that a prompt of 640 tokens stands for one of 20,480.
"""

import json
from dataclasses import replace

import pytest
import torch
import transformers

from routesparse.engine.models.files import revision_of
from routesparse.engine.models.load import load_model, revision_of_model, shape_of
from routesparse.engine.runtime.route import route
from routesparse.engine.store.bundle import read_bundle
from tests.engine import tiny_shape

pytestmark = pytest.mark.usefixtures("home")
LENGTHS = 32
TOKENS = 640
CONFIG = tiny_shape.config(0)
PROFILE = tiny_shape.profile()


def attention(family, heads, kv_heads, hidden_size, context, theta, **others):
    """A published configuration: sizes, context and base of its positions, and what else it says of attention."""
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "hidden_size": hidden_size}
    return {
        **{"model_type": family, **sizes, "max_position_embeddings": context, "rope_theta": theta},
        **others,
    }


def head_size(published):
    return published.get("head_dim") or published["hidden_size"] // published["num_attention_heads"]


def longrope(pairs):
    """As many factors as the model's file has; the published values are not repeated here."""
    short = [1.0 + 0.02 * place for place in range(pairs)]
    return {"type": "longrope", "short_factor": short, "long_factor": [3 * factor for factor in short]}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CHUNKS = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
SOFTCAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
LONGROPE = {"original_max_position_embeddings": 4096, "sliding_window": 262144, "rope_scaling": longrope(48)}
HUB = {
    "Llama-3.1-8B": attention(
        *("llama", 32, 8, 4096, 131072, 5e5),
        rope_scaling={**LLAMA3, "original_max_position_embeddings": 8192},
        rms_norm_eps=1e-5,
    ),
    "Qwen2.5-7B-Instruct-1M": attention(
        *("qwen2", 28, 4, 3584, 1010000, 1e7),
        **{"use_sliding_window": False, "sliding_window": 1010000, "max_window_layers": 28},
        dual_chunk_attention_config=CHUNKS,
    ),
    "Qwen3-8B with YaRN": attention("qwen3", 32, 8, 4096, 131072, 1e6, head_dim=128, rope_scaling=YARN),
    "Mistral-7B-v0.1": attention("mistral", 32, 8, 4096, 32768, 1e4, sliding_window=4096),
    "Phi-3-mini-128k-instruct": attention("phi3", 32, 32, 3072, 131072, 1e4, **LONGROPE),
    "Phi-4-mini-instruct": attention(
        "phi3", 24, 8, 3072, 131072, 1e4, partial_rotary_factor=0.75, tie_word_embeddings=True, **LONGROPE
    ),
    "glm-4-9b-chat-1m-hf": attention(
        "glm", 32, 4, 4096, 1048576, 1e8, head_dim=128, partial_rotary_factor=0.5, attention_bias=True
    ),
    "GLM-4-9B-0414": attention("glm4", 32, 2, 4096, 32768, 1e4, head_dim=128, partial_rotary_factor=0.5),
    "gemma-2-9b": attention(
        *("gemma2", 16, 8, 3584, 8192, 1e4),
        **{"head_dim": 256, "sliding_window": 4096, **SOFTCAPS, "query_pre_attn_scalar": 256},
    ),
    "gemma-3-1b-it": attention(
        *("gemma3_text", 4, 1, 1152, 32768, 1e6),
        **{
            "head_dim": 256,
            "rope_local_base_freq": 10000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
        **{"query_pre_attn_scalar": 256, "num_hidden_layers": 6},
    ),
}
LENGTH_FIELDS = ("max_position_embeddings", "original_max_position_embeddings", "sliding_window")


def shrunk(published):
    """The published fields at a size that a test can run."""
    groups = published["num_attention_heads"] // published["num_key_value_heads"]
    # Where the file has no head_dim, the hidden size alone says it.
    hidden = 64 if "head_dim" in published else groups * head_size(published)
    made = {
        "num_hidden_layers": 2,
        **published,
        "num_attention_heads": groups,
        "num_key_value_heads": 1,
        "hidden_size": hidden,
        "intermediate_size": 96,
        "vocab_size": 260,
        "initializer_range": 0.2,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    }
    for part in (made, made.get("rope_scaling") or {}):
        for field in LENGTH_FIELDS:
            if part.get(field):
                part[field] //= LENGTHS
    return made


@pytest.fixture(scope="module", params=HUB)
def hub(request, tiny_model, tmp_path_factory):
    """The published fields, the folder, and the model as ``load_model`` makes it."""
    folder = tmp_path_factory.mktemp("hub") / "model"
    folder.mkdir()
    published = json.loads(json.dumps(HUB[request.param]))
    text = json.dumps(shrunk(json.loads(json.dumps(published))))
    (folder / "config.json").write_text(text)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "config.json").write_text(text)  # as published, not as transformers writes it
    tiny_model.tokenizer().save_pretrained(folder)
    return published, folder, load_model(str(folder), device="cpu")


def prompt():
    return torch.randint(0, 250, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def eager(loaded):
    """The family's own attention, which knows nothing of us."""
    before = loaded.model.config._attn_implementation
    loaded.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return loaded.model(prompt()).logits
    finally:
        loaded.model.set_attn_implementation(before)


def test_the_published_fields_reach_the_model(hub):
    published, folder, loaded = hub
    shape = shape_of(str(folder))
    assert (loaded.heads, loaded.kv_heads, loaded.head_dim) == (shape.heads, shape.kv_heads, shape.head_dim)
    assert loaded.heads == published["num_attention_heads"] // published["num_key_value_heads"]
    assert loaded.head_dim == head_size(published)
    assert loaded.max_tokens == published["max_position_embeddings"] // LENGTHS
    assert loaded.revision == revision_of(folder) == revision_of_model(loaded.model)
    asked = published.get("rope_scaling") or {}
    found = loaded.model.config.rope_parameters
    found = found.get("full_attention", found)
    assert found["rope_type"] == asked.get("rope_type", asked.get("type", "default"))
    assert found["rope_theta"] == published["rope_theta"]
    assert found.get("factor") == asked.get("factor")
    assert found.get("partial_rotary_factor", 1.0) == published.get("partial_rotary_factor", 1.0)


def test_routed_at_full_budget_equals_the_models_own_attention(hub):
    loaded = hub[2]
    wanted = eager(loaded)
    with (
        torch.no_grad(),
        route(loaded.model, replace(CONFIG, policy="certified", tau=1.0), profile=PROFILE) as trace,
    ):
        found = loaded.model(prompt()).logits
    assert float((found - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())
    assert {choice.pattern for choice in trace.decisions} <= {"dense"}


def test_routed_at_a_price_records_a_certificate_for_every_sparse_unit(hub, tmp_path):
    published, _, loaded = hub
    with torch.no_grad(), route(loaded.model, CONFIG, profile=PROFILE) as trace:
        logits = loaded.model(prompt()).logits
    assert bool(torch.isfinite(logits).all())
    if not trace.decisions:
        # Every layer has a window that this prompt reaches, and runs dense within it.
        assert published["model_type"] == "mistral" and published["sliding_window"] // LENGTHS < TOKENS
        return
    record = read_bundle(trace.to_bundle(tmp_path / "bundle"))
    assert (record.run.heads, record.run.kv_heads, record.run.head_dim) == (
        loaded.heads,
        loaded.kv_heads,
        loaded.head_dim,
    )
    sparse = [choice for choice in record.choices if choice.pattern != "dense"]
    assert sparse
    assert all(choice.lower_mass is not None and 0 <= choice.lower_mass <= 1 for choice in sparse)
    assert all(row.lower_mass is not None for row in record.layers if row.layer in {c.layer for c in sparse})
