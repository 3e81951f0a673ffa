"""What the integration refuses: one line each, and never a silently wrong result. CPU, tiny models."""

import pytest
import torch
import transformers
from torch.nn.attention.flex_attention import create_block_mask
from transformers import StaticCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from routesparse.engine import route
from routesparse.engine.errors import PromptError, UnsupportedModelError
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.models import refusals
from routesparse.engine.runtime import transformers as hf
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.continuous import route_requests

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
IDS = torch.arange(3, 43)[None]


class DenseRouter(AttentionRouter):
    def attend(self, inputs, *, layer, window=None):
        return dense_attention(inputs, window)


def llama(**overrides):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SHAPE, **overrides})).eval()


def refused(error, match, model, *args, **inputs):
    """The routed call raises the error with a message of one line, and the model comes back unharmed."""
    before = model.config._attn_implementation
    with pytest.raises(error, match=match) as caught, torch.no_grad(), hf.routed_by(model, DenseRouter()):
        model(*args, **inputs)
    assert "\n" not in str(caught.value)
    assert model.config._attn_implementation == before
    assert hf.router_of(model) is None


def test_llama4_is_refused_before_anything_runs():
    config = transformers.Llama4TextConfig(**{**SHAPE, "num_local_experts": 2, "intermediate_size_mlp": 48})
    model = transformers.Llama4ForCausalLM(config)
    with pytest.raises(UnsupportedModelError, match=r"'llama4_text'.*chunked attention") as caught:
        hf.check_supported(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["GPT2", "Olmoe", "Bloom"])
def test_a_family_off_the_list_is_refused_and_the_list_is_shown(name):
    if name == "GPT2":
        config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=97)
        model = transformers.GPT2LMHeadModel(config)
    else:
        model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**SHAPE))
    with pytest.raises(UnsupportedModelError, match=r"never compared.*\(supported: apertus, ") as caught:
        hf.check_supported(model)
    assert "\n" not in str(caught.value)


def test_every_refusal_by_name_is_about_a_family_that_transformers_has_and_we_do_not_route():
    known = set(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
    named = set(refusals._WHY_REFUSED)
    assert named and not named & refusals.MODEL_FAMILIES
    assert sorted(named - known) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("deepseek_v3", "another head size than its keys"),
        ("glm_moe_dsa", "sparse attention of its own"),
        ("qwen3_next", "recurrent state"),
        ("gemma4_text", "read the keys of others"),
        ("qwen3_vl", "images or sound"),
    ],
)
def test_a_newer_family_is_refused_by_name_with_its_reason(name, why):
    config = transformers.AutoConfig.for_model(name)
    with pytest.raises(UnsupportedModelError, match=f"'{name}' is not supported: .*{why}") as caught:
        refusals.check_family(config)
    assert "\n" not in str(caught.value)


def test_a_refused_family_is_also_refused_without_route():
    config = transformers.OlmoeConfig(**SHAPE, num_experts=2, num_experts_per_tok=1)
    model = transformers.OlmoeForCausalLM(config).eval()
    model.set_attn_implementation(hf.NAME)
    with pytest.raises(UnsupportedModelError, match="'olmoe'"), torch.no_grad():
        model(IDS)


def test_something_that_is_no_transformers_model_is_refused():
    with pytest.raises(UnsupportedModelError, match="pass the one inside this Linear"):
        hf.check_supported(torch.nn.Linear(2, 2))


def test_a_static_cache_is_refused():
    model = llama()
    refused(UnsupportedModelError, "StaticCache", model, IDS, past_key_values=StaticCache(model.config, 128))


def test_generate_with_a_static_cache_is_refused():
    model = llama()
    with pytest.raises(UnsupportedModelError, match="StaticCache"), hf.routed_by(model, DenseRouter()):
        model.generate(
            IDS, attention_mask=torch.ones_like(IDS), cache_implementation="static", max_new_tokens=2
        )


@pytest.mark.parametrize("padded", [slice(30, 40), slice(10, 12)], ids=["right", "hole"])
def test_padding_that_is_not_left_is_refused(padded):
    mask = torch.ones_like(IDS)
    mask[:, padded] = 0
    refused(PromptError, "padding_side = 'left'", llama(), IDS, attention_mask=mask)


def test_a_mask_over_the_last_chunk_alone_is_refused():
    model, cache = llama(), transformers.DynamicCache()
    with torch.no_grad():
        model(IDS, past_key_values=cache)
    refused(
        PromptError, "covers 40 of 80", model, IDS, past_key_values=cache, attention_mask=torch.ones(1, 40)
    )


def test_a_four_dimensional_mask_is_refused():
    mask = torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
    refused(UnsupportedModelError, "4-D attention mask", llama(), IDS, attention_mask=mask)


@pytest.mark.parametrize("kind", ["none", "hole", "block"])
def test_a_mask_by_kind_of_layer_is_refused_on_every_way_in(kind):
    """transformers hands such masks over unchecked: this one would be read as left padding."""
    hole = torch.ones(1, 40, dtype=torch.bool)
    hole[:, 10:12] = False
    mask = {"full_attention": hole if kind == "hole" else None}
    if kind == "block":
        mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 40, 40, device="cpu")
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHAPE)).eval()
    told = f"a {type(mask).__name__} attention mask"
    refused(UnsupportedModelError, told, model, IDS, attention_mask=mask)
    refused(UnsupportedModelError, told, model, IDS, mask)
    with pytest.raises(UnsupportedModelError, match=told), hf.routed_by(model, DenseRouter()):
        model.model(IDS, attention_mask=mask)
    if kind == "hole":
        model.set_attn_implementation(hf.NAME)
        with pytest.raises(PromptError, match="padding_side = 'left'"), torch.no_grad():
            model(IDS, attention_mask=mask)


@pytest.mark.parametrize("name", ["somebodys", "sdpa"])
@pytest.mark.parametrize("block", [route, route_requests])
def test_an_attention_function_that_does_not_run_is_named(name, block, monkeypatch):
    """sdpa: registered in the place of transformers' own."""
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, lambda *_, **__: pytest.fail("it ran"))
    model = llama()
    model.set_attn_implementation(name)
    with (
        pytest.warns(UserWarning, match=f"your attention function '{name}' does not run") as told,
        block(model),
    ):
        pass
    assert told[0].filename == __file__ and model.config._attn_implementation == name


def test_packed_sequences_are_refused():
    positions = torch.cat((torch.arange(25), torch.arange(15)))[None]
    refused(PromptError, "packed", llama(), IDS, position_ids=positions, use_cache=False)
    lengths = torch.tensor([0, 25, 40], dtype=torch.int32)
    refused(PromptError, "packed", llama(), IDS, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths)


def test_output_attentions_is_refused():
    refused(UnsupportedModelError, "output_attentions", llama(), IDS, output_attentions=True)


def test_training_is_refused_but_train_mode_without_gradients_is_not():
    model = llama().train()
    with pytest.raises(UnsupportedModelError, match=r"model\.eval"), hf.routed_by(model, DenseRouter()):
        model(IDS)
    with torch.no_grad(), hf.routed_by(model, DenseRouter()):
        model(IDS)


def test_dropout_is_refused():
    refused(UnsupportedModelError, "model.eval", llama(attention_dropout=0.1).train(), IDS)


def test_bidirectional_attention_is_refused():
    model = llama()
    model.config.is_causal = False
    with pytest.raises(UnsupportedModelError, match="both directions"):
        hf.check_supported(model)
    model = llama()
    model.model.layers[0].self_attn.is_causal = False
    refused(UnsupportedModelError, "bidirectional", model, IDS)
    with pytest.raises(UnsupportedModelError, match="both directions"):
        hf.check_supported(
            transformers.Gemma3ForCausalLM(
                transformers.Gemma3TextConfig(**SHAPE, use_bidirectional_attention=True)
            )
        )


def test_the_mask_function_never_builds_a_square_mask():
    request = {"batch_size": 2, "q_length": 50, "kv_length": 80, "q_offset": 30}
    assert hf.padding_mask(**request) is None
    assert hf.padding_mask(**request, attention_mask=torch.ones(2, 80, dtype=torch.bool)) is None
    mask = torch.arange(80) >= torch.tensor([[0], [7]])
    assert torch.equal(hf.padding_mask(**request, attention_mask=mask), mask)
    cropped = hf.padding_mask(2, 50, 70, q_offset=30, kv_offset=10, attention_mask=mask)
    assert torch.equal(cropped, mask[:, 10:])
