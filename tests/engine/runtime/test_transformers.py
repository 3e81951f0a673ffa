"""The transformers integration against each family's own eager attention; CPU, float32, tiny models."""

import copy
import sys
from dataclasses import dataclass, field

import pytest
import torch
import transformers
from transformers import AttentionInterface, DynamicCache

from routesparse.engine.errors import UnsupportedModelError
from routesparse.engine.models.refusals import MODEL_FAMILIES
from routesparse.engine.runtime import transformers as hf
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.kernels.interface import RowPlan, sparse_attention
from tests.engine import tiny_shape

TOKENS = 320
BLOCK_Q, BLOCK_K = 32, 16
WINDOW = 48
SHAPE = {**tiny_shape.SHAPE, "num_hidden_layers": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
MIXTURE = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ALTERNATE = {"sliding_window": WINDOW, "layer_types": ALTERNATING}
CAPPED = {"sliding_window": WINDOW, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16}
FAMILIES = {
    **{name: {} for name in ("Llama", "Qwen3", "Glm", "Glm4", "Gemma", "Ministral3", "Arcee", "SeedOss")},
    **{name: {} for name in ("Helium", "Apertus", "Nemotron", "Ernie4_5", "HunYuanDenseV1", "Olmo2")},
    **{name: {"sliding_window": WINDOW} for name in ("Mistral", "Phi3", "Starcoder2")},
    **dict.fromkeys(("Ministral", "Exaone4", "Olmo3", "Cohere2"), ALTERNATE),
    **dict.fromkeys(("Phimoe", "Qwen3Moe", "Mixtral", "MiniMaxM2"), MIXTURE),
    **dict.fromkeys(("Gemma2", "VaultGemma"), CAPPED),
    "Qwen2": {"use_sliding_window": True, **ALTERNATE},
    "Glm4Moe": {**MIXTURE, "n_routed_experts": 4, "first_k_dense_replace": 1},
    "Phi": {"qk_layernorm": True},
    "Qwen2Moe": {**MIXTURE, "shared_expert_intermediate_size": 32},
    "SmolLM3": {"no_rope_layers": [1, 1, 1, 0]},
    "StableLm": {"partial_rotary_factor": 0.25},
    "Cohere": {"use_qk_norm": True},
    "Granite": {"attention_multiplier": 0.25},
    "Gemma3": {**ALTERNATE, "query_pre_attn_scalar": 16},
    "GptOss": {**ALTERNATE, "num_local_experts": 4, "num_experts_per_tok": 2},
}
FEATURES = {name: ("window",) for name, fields in FAMILIES.items() if "sliding_window" in fields}
FEATURES |= {
    "Gemma2": ("window", "softcap"),
    "VaultGemma": ("window", "softcap"),
    "GptOss": ("window", "sinks"),
}


def build(family, **overrides):
    """A tiny random model in eager attention, in eval mode."""
    name = "Gemma3Text" if family == "Gemma3" else family
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **FAMILIES[family], **overrides})
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for module in hf.attention_modules(model):
        if hasattr(module, "sinks"):
            torch.nn.init.normal_(module.sinks, mean=1.0)
    model.set_attn_implementation("eager")
    return model


def prompt(tokens=TOKENS, batch=1, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SHAPE["vocab_size"], (batch, tokens), generator=generator)


def logits(model, ids, **inputs):
    with torch.no_grad():
        return model(ids, **inputs).logits


def relative(found, wanted):
    """Largest difference, relative to the largest wanted value."""
    return float((found - wanted).abs().max() / wanted.abs().max())


@dataclass
class DenseRouter(AttentionRouter):
    """Everything dense; `forget` drops a feature, for negative controls."""

    forget: str = ""
    calls: list = field(default_factory=list)

    @property
    def forwards(self):
        """Query rows of each forward pass so far."""
        return [n_q for layer, n_q, _, _ in self.calls if layer == 0]

    def attend(self, inputs, *, layer, window=None):
        q, k, v = inputs.q, inputs.k, inputs.v
        features = {name: getattr(inputs, name) for name in ("key_start", "softcap", "sinks")}
        features["window"] = window
        features.pop(self.forget, None)
        self.calls.append((layer, q.shape[2], k.shape[2], window))
        plan = self.plan(layer, q, k, features)
        return sparse_attention(q, k, v, plan, scale=inputs.scale)[0]

    def plan(self, layer, q, k, features):
        return RowPlan.dense(q.shape[0], q.shape[1], q.shape[2], k.shape[2], BLOCK_Q, BLOCK_K, **features)


@dataclass
class FixedPlanRouter(DenseRouter):
    """A sparse plan that depends on layer, head and shape only: sink, diagonal, some blocks, some columns."""

    def plan(self, layer, q, k, features):
        return fixed_plan(layer, q.shape[0], q.shape[1], q.shape[2], k.shape[2], **features)


def fixed_plan(layer, batch, heads, n_q, n_k, **features):
    generator = torch.Generator().manual_seed(layer)
    rows, blocks = -(-n_q // BLOCK_Q), -(-n_k // BLOCK_K)
    mask = torch.rand((1, heads, rows, blocks), generator=generator) < 0.15
    mask[..., 0] = True
    columns = torch.randint(0, n_k, (1, heads, 6), generator=generator, dtype=torch.int32)
    return RowPlan.from_block_mask(
        mask.expand(batch, -1, -1, -1),
        n_q,
        n_k,
        BLOCK_Q,
        BLOCK_K,
        columns=columns.expand(batch, -1, -1),
        **features,
    ).validate()


def masked_eager(module, query, key, value, attention_mask, **kwargs):
    """The family's own eager attention over the materialised mask of fixed_plan."""
    window = kwargs.get("sliding_window")
    plan = fixed_plan(module.layer_idx, *query.shape[:3], key.shape[2], window=window)
    assert window is not None or plan.density < 0.5
    mask = torch.zeros(plan.to_mask().shape).masked_fill(~plan.to_mask(), torch.finfo(torch.float32).min)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return eager(module, query, key, value, mask, **kwargs)


AttentionInterface.register("test_masked_eager", masked_eager)


@dataclass
class Case:
    """A family's model, a prompt, and its logits by eager attention."""

    family: str
    model: transformers.PreTrainedModel
    ids: torch.Tensor
    eager: torch.Tensor


@pytest.fixture(scope="module", params=FAMILIES)
def case(request):
    model, ids = build(request.param), prompt()
    return Case(request.param, model, ids, logits(model, ids))


def test_every_family_on_the_list_is_compared_here():
    names = {f"{family}{'Text' if family == 'Gemma3' else ''}Config" for family in FAMILIES}
    assert {getattr(transformers, name).model_type for name in names} == MODEL_FAMILIES


def test_full_budget_equals_eager(case):
    router = DenseRouter()
    with hf.routed_by(case.model, router):
        found = logits(case.model, case.ids)
    assert relative(found, case.eager) < 1e-4
    assert [call[:3] for call in router.calls] == [(layer, TOKENS, TOKENS) for layer in range(4)]
    assert any(call[3] == WINDOW for call in router.calls) == ("window" in FEATURES.get(case.family, ()))


@pytest.mark.parametrize(("family", "feature"), [(name, one) for name in FEATURES for one in FEATURES[name]])
def test_a_forgotten_feature_is_seen_by_the_comparison(family, feature):
    """Negative control of the test above: without the window, soft cap or sinks the outputs differ."""
    model, ids = build(family), prompt()
    wanted = logits(model, ids)
    with hf.routed_by(model, DenseRouter(forget=feature)):
        assert relative(logits(model, ids), wanted) > 1e-2


def test_a_sparse_plan_equals_eager_over_its_mask(case):
    case.model.set_attn_implementation("test_masked_eager")
    wanted = logits(case.model, case.ids)
    case.model.set_attn_implementation("eager")
    with hf.routed_by(case.model, FixedPlanRouter()):
        found = logits(case.model, case.ids)
    assert relative(found, wanted) < 1e-4
    assert relative(found, case.eager) > 1e-2, "the plan must matter"


def test_chunked_prefill_and_decode_equal_one_dense_pass(case):
    cache, router, parts = DynamicCache(config=case.model.config), DenseRouter(), [150, 33, 134, 1, 1, 1]
    with hf.routed_by(case.model, router):
        found = [logits(case.model, part, past_key_values=cache) for part in case.ids.split(parts, dim=1)]
    assert relative(torch.cat(found, 1), case.eager) < 1e-4
    assert router.forwards == parts


def test_rows_of_a_left_padded_batch_equal_single_runs(case):
    model, lengths = case.model, [200, 143, 64]
    singles = [prompt(length, seed=length) for length in lengths]
    ids = torch.cat([torch.nn.functional.pad(single, (200 - single.shape[1], 0)) for single in singles])
    mask = torch.arange(200) >= 200 - torch.tensor(lengths)[:, None]
    cache = DynamicCache(config=model.config)
    steps = prompt(2, batch=3, seed=9)
    with hf.routed_by(model, DenseRouter()):
        found = [logits(model, ids[:, :110], attention_mask=mask[:, :110], past_key_values=cache)]
        found.append(logits(model, ids[:, 110:], attention_mask=mask, past_key_values=cache))
        for step in range(2):
            mask = torch.nn.functional.pad(mask, (0, 1), value=True)
            found.append(logits(model, steps[:, step : step + 1], attention_mask=mask, past_key_values=cache))
    rows = torch.cat(found, 1)
    for index, single in enumerate(singles):
        wanted = logits(model, torch.cat((single, steps[index : index + 1]), 1))
        assert relative(rows[index : index + 1, 200 - lengths[index] :], wanted) < 1e-4


def test_forgetting_the_padding_is_seen_by_the_comparison():
    model, single = build("Llama"), prompt(100)
    ids, mask = torch.nn.functional.pad(single, (60, 0)), (torch.arange(160) >= 60)[None]
    with hf.routed_by(model, DenseRouter(forget="key_start")):
        found = logits(model, ids, attention_mask=mask)
    assert relative(found[:, 60:], logits(model, single)) > 1e-2


def test_generate_with_chunked_prefill_gives_the_eager_tokens():
    model, ids = build("Gemma2"), prompt(100)
    arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 5, "do_sample": False}
    wanted = model.generate(ids, **arguments)
    router = DenseRouter()
    with hf.routed_by(model, router):
        assert torch.equal(model.generate(ids, **arguments), wanted)
        router.calls.clear()
        assert torch.equal(model.generate(ids, prefill_chunk_size=32, **arguments), wanted)
    assert router.forwards[:4] == [32, 32, 32, 4]


def test_a_window_over_all_keys_is_no_window():
    model, router = build("Mistral"), DenseRouter()
    with hf.routed_by(model, router):
        logits(model, prompt(WINDOW))
        logits(model, prompt(WINDOW + 1))
    assert {call[3] for call in router.calls[:4]} == {None}
    assert {call[3] for call in router.calls[4:]} == {WINDOW}


@pytest.mark.parametrize("before", ["eager", "sdpa"])
def test_two_models_at_once_each_have_their_router_and_get_back_their_implementation(before):
    models, routers = [build("Llama"), build("Llama")], [DenseRouter(), DenseRouter()]
    for model in models:
        model.set_attn_implementation(before)
    with hf.routed_by(models[0], routers[0]), hf.routed_by(models[1], routers[1]):
        assert {model.config._attn_implementation for model in models} == {hf.NAME}
        logits(models[0], prompt(20))
        logits(models[1], prompt(30))
    assert [router.forwards for router in routers] == [[20], [30]]
    for model in models:
        assert model.config._attn_implementation == before and tiny_shape.router_of(model) is None


def test_a_model_sharing_the_config_object_is_not_routed_in_secret():
    model = build("Llama")
    twin = transformers.LlamaForCausalLM(model.config).eval()
    own = transformers.LlamaForCausalLM(copy.deepcopy(model.config)).eval()
    with hf.routed_by(model, DenseRouter()):
        assert own.config._attn_implementation == "eager"
        with pytest.raises(UnsupportedModelError, match="build it from copy"):
            logits(twin, prompt(20))


def test_inference_mode_reads_as_no_grad_does_by_several_threads():
    """Threads of the CPU's kernel do not inherit the mode, and may not write what was made in it."""
    model, ids, before = build("Llama"), prompt(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with hf.routed_by(model, FixedPlanRouter()):
            wanted = logits(model, ids)
            with torch.inference_mode():
                found = model(ids).logits
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("trained", ["q_proj", "k_proj", "v_proj", "sinks"])
def test_a_gradient_that_routing_would_lose_is_an_error(trained):
    """Without it, backward() leaves the weight's gradient None where the queries need none."""
    model = build("GptOss" if trained == "sinks" else "Llama").requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    with hf.routed_by(model, DenseRouter()):
        found = model(prompt(40)).logits.sum()
    with pytest.raises(UnsupportedModelError, match="no backward pass"):
        found.backward()
