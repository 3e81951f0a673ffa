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
from routesparse.engine.models.load import load_model
from routesparse.engine.runtime import transformers as hf
from routesparse.engine.runtime.attention_router import AttentionRouter
from tests.engine import tiny_shape

SHAPE = tiny_shape.SHAPE | {"hidden_size": 32, "pad_token_id": 0}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 1}
IDS = torch.arange(3, 43)[None]


class DenseRouter(AttentionRouter):
    def attend(self, inputs, *, layer, window=None):
        return dense_attention(inputs, window)


def llama(**overrides):
    return tiny_shape.decoder(**{**SHAPE, **overrides})


def refused(error, match, model, *args, **inputs):
    """The routed call raises the error with a message of one line, and the model comes back unharmed."""
    before = model.config._attn_implementation
    with pytest.raises(error, match=match) as caught, torch.no_grad(), hf.routed_by(model, DenseRouter()):
        model(*args, **inputs)
    assert "\n" not in str(caught.value)
    assert model.config._attn_implementation == before
    assert tiny_shape.router_of(model) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpt2", r"never compared.*\(supported: apertus, "),
        ("bloom", "never compared"),
        ("llama4", "chunked attention"),
        ("llama4_text", "chunked attention"),
        ("gemma3", "load the text model"),
        ("gemma4", "images or sound"),
        ("gemma4_text", "read the keys of others"),
        ("deepseek_v3", "another head size than its keys"),
        ("glm_moe_dsa", "sparse attention of its own"),
        ("qwen3_next", "recurrent state"),
        ("qwen3_vl", "images or sound"),
    ],
)
def test_a_family_off_the_list_is_refused_by_name_with_its_reason(name, why, tmp_path):
    """By its configuration, and as a folder before a weight is read."""
    told = f"'{name}' is not supported: .*{why}"
    with pytest.raises(UnsupportedModelError, match=told) as caught:
        refusals.check_family(transformers.AutoConfig.for_model(name))
    assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text(f'{{"model_type": "{name}"}}')
    with pytest.raises(UnsupportedModelError, match=told):
        load_model(str(tmp_path))


def test_without_a_block_nothing_is_routed_whatever_the_model_is_set_to():
    unknown = tiny_shape.decoder("Olmoe", **SHAPE, num_experts=2, num_experts_per_tok=1)
    with pytest.raises(UnsupportedModelError, match="'olmoe'"):
        hf.check_supported(unknown)
    for model, told in ((unknown, "'olmoe'"), (llama(), "has no open route")):
        model.set_attn_implementation(hf.NAME)
        with pytest.raises(UnsupportedModelError, match=told), torch.no_grad():
            model(IDS)


def test_something_that_is_no_transformers_model_is_refused():
    with pytest.raises(UnsupportedModelError, match="pass the one inside this Linear"):
        hf.check_supported(torch.nn.Linear(2, 2))


def test_a_static_cache_is_refused():
    model = llama()
    refused(UnsupportedModelError, "StaticCache", model, IDS, past_key_values=StaticCache(model.config, 128))


@pytest.mark.parametrize("padded", [slice(30, 40), slice(10, 12)], ids=["right", "hole"])
def test_padding_that_is_not_left_is_refused(padded):
    mask = torch.ones_like(IDS)
    mask[:, padded] = 0
    refused(PromptError, "padding_side = 'left'", llama(), IDS, attention_mask=mask)


def test_a_mask_of_another_size_is_refused():
    model, cache = llama(), transformers.DynamicCache()
    with torch.no_grad():
        model(IDS, past_key_values=cache)
    mask, square = torch.ones(1, 40), torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
    refused(PromptError, "covers 40 of 80", model, IDS, past_key_values=cache, attention_mask=mask)
    refused(UnsupportedModelError, "4-D attention mask", llama(), IDS, attention_mask=square)


@pytest.mark.parametrize("kind", ["none", "hole", "block"])
def test_a_mask_by_kind_of_layer_is_refused_on_every_way_in(kind):
    """transformers hands such masks over unchecked: this one would be read as left padding."""
    hole = torch.ones(1, 40, dtype=torch.bool)
    hole[:, 10:12] = False
    mask = {"full_attention": hole if kind == "hole" else None}
    if kind == "block":
        mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 40, 40, device="cpu")
    model = tiny_shape.decoder("Qwen2", **SHAPE)
    told = f"a {type(mask).__name__} attention mask"
    refused(UnsupportedModelError, told, model, IDS, attention_mask=mask)
    refused(UnsupportedModelError, told, model, IDS, mask)
    with pytest.raises(UnsupportedModelError, match=told), hf.routed_by(model, DenseRouter()):
        model.model(IDS, attention_mask=mask)


@pytest.mark.parametrize("name", ["somebodys", "sdpa"])
def test_an_attention_function_that_does_not_run_is_named(name, monkeypatch):
    """sdpa: registered in the place of transformers' own."""
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, lambda *_, **__: pytest.fail("it ran"))
    model = llama()
    model.set_attn_implementation(name)
    with (
        pytest.warns(UserWarning, match=f"your attention function '{name}' does not run") as told,
        route(model),
    ):
        pass
    assert told[0].filename == __file__ and model.config._attn_implementation == name


def test_packed_sequences_and_attention_matrices_are_refused():
    positions = torch.cat((torch.arange(25), torch.arange(15)))[None]
    refused(PromptError, "packed", llama(), IDS, position_ids=positions, use_cache=False)
    lengths = torch.tensor([0, 25, 40], dtype=torch.int32)
    refused(PromptError, "packed", llama(), IDS, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths)
    refused(UnsupportedModelError, "output_attentions", llama(), IDS, output_attentions=True)


def test_training_is_refused_but_train_mode_without_gradients_is_not():
    model = llama().train()
    with pytest.raises(UnsupportedModelError, match=r"model\.eval"), hf.routed_by(model, DenseRouter()):
        model(IDS)
    with torch.no_grad(), hf.routed_by(model, DenseRouter()):
        model(IDS)
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
        refusals.check_family(transformers.Gemma3TextConfig(**SHAPE, use_bidirectional_attention=True))


def test_the_mask_function_never_builds_a_square_mask():
    request = {"batch_size": 2, "q_length": 50, "kv_length": 80, "q_offset": 30}
    assert hf.padding_mask(**request) is None
    assert hf.padding_mask(**request, attention_mask=torch.ones(2, 80, dtype=torch.bool)) is None
    mask = torch.arange(80) >= torch.tensor([[0], [7]])
    assert torch.equal(hf.padding_mask(**request, attention_mask=mask), mask)
    cropped = hf.padding_mask(2, 50, 70, q_offset=30, kv_offset=10, attention_mask=mask)
    assert torch.equal(cropped, mask[:, 10:])
