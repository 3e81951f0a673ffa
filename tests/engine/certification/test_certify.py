"""``with certify(...)``: models of every family, foreign attention functions, broken ones. CPU, tiny models."""

import contextlib
import inspect
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from routesparse.engine import RouterConfig, certify, route
from routesparse.engine.certification.certify import Request, certify_attention
from routesparse.engine.errors import ConfigError, PromptError
from routesparse.engine.lab.rivals.rule import RuleRouter
from routesparse.engine.lab.rivals.xattention import XAttention
from routesparse.engine.profiles.measure import free_profile
from routesparse.engine.runtime.transformers import FORWARD_ARGUMENTS, routed_by
from tests.engine.runtime import test_transformers as families
from tests.engine.runtime.test_transformers import prompt

TOKENS = 320
# What makes each family's attention special: windows, soft caps, sinks.
FAMILIES = ("Llama", "Qwen2", "Qwen3", "Mistral", "Phi3", "Glm4", "Gemma2", "Gemma3", "Cohere2", "GptOss")


def build(family="Llama", attention="eager"):
    layers = {"num_hidden_layers": 2}
    if "layer_types" in families.FAMILIES[family]:
        layers["layer_types"] = families.ALTERNATING[:2]
    model = families.build(family, **layers).requires_grad_(False)
    model.set_attn_implementation(attention)
    return model


@contextlib.contextmanager
def registered(name, attend=None):
    """A foreign attention function in transformers' table; without one, plain causal attention without extras."""

    def plain(module, query, key, value, attention_mask, scaling=None, **kwargs):
        out = (attend or causal)(query, key, value, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, plain)
    try:
        yield
    finally:
        del AttentionInterface._global_mapping[name]


def causal(*tensors, **options):
    return F.scaled_dot_product_attention(*tensors, is_causal=True, **options)


@pytest.fixture
def nothing_left_behind():
    """Afterwards transformers' table has no entry of ours."""
    before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    yield
    assert ALL_ATTENTION_FUNCTIONS._local_mapping == before


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_s_own_attention_is_exact(family, nothing_left_behind):
    model, ids = build(family), prompt()
    wanted = model(ids).logits
    with certify(model, rows=24) as report:
        found = model(ids).logits
    assert torch.equal(found, wanted)
    assert report.verdict.level == "exact" and report.last.name == "eager"
    assert [claims.layer for claims in report.by_layer] == [0, 1] and len(report.by_head) == 8
    assert report.run.rows == 2 * 4 * 24
    assert torch.equal(model(ids).logits, wanted)


@pytest.mark.parametrize("family", ["Gemma2", "Mistral", "GptOss"])
def test_a_function_that_forgets_soft_cap_window_or_sinks_is_found(family):
    with registered("forgetful"):
        model = build(family, "forgetful")
        with certify(model, rows=24) as report:
            with pytest.raises(PromptError, match="nothing was certified yet"):
                print(report.verdict)
            model(prompt())
    assert report.verdict.level == "differs" and report.run.mean_error > 0.02


def test_a_foreign_attention_function_is_certified_beside_its_plan(nothing_left_behind):
    """A function that somebody registered: a band of 64 keys and the first 16. Its mask is given as a plan."""
    near = torch.arange(TOKENS).view(-1, 1) - torch.arange(TOKENS)
    read = ((near < 64) | (torch.arange(TOKENS) < 16)) & (near >= 0)

    def inside(b, h, q, k):
        return ((q - k < 64) | (k < 16)) & (q >= k)

    def banded(*tensors, **options):
        return F.scaled_dot_product_attention(*tensors, attn_mask=read, **options)

    mask = create_block_mask(inside, 1, 1, TOKENS, TOKENS, device="cpu", BLOCK_SIZE=(32, 32))
    with registered("banded", banded):
        model = build(attention="banded")
        with certify(model, plan=mask, plan_name="band", rows=32, tolerance=0.01) as report:
            model(prompt())
    kept = report.run
    assert (report.last.name, report.last.plan, report.verdict.level) == ("banded", "band", "differs")
    assert kept.disagreement < 1e-4 and 0 < kept.mass < 1
    assert kept.plan_error == pytest.approx(report.run.mean_error, rel=0.2)
    assert not any("does not compute this plan" in told for told in report.verdict.findings)
    assert report.worst_heads(1)[0].mean_error == max(c.mean_error for c in report.by_head)


def test_a_plan_that_the_function_does_not_compute_is_said_to_be_another(nothing_left_behind):
    model = build(attention="sdpa")
    plan = torch.ones(4, 3, 5, dtype=torch.bool)
    plan[:, 2, 1] = False
    with certify(model, plan=plan) as report:
        model(prompt())
    assert report.verdict.level == "exact" and report.run.mass < 1
    assert any("does not compute this plan" in told for told in report.verdict.findings)


@pytest.mark.parametrize("outside", ["route", "certify"])
def test_our_own_routed_attention_is_certified_in_either_order(outside, nothing_left_behind):
    model, ids = build(attention="sdpa"), prompt(900)
    config = RouterConfig(break_even_tokens=0, price=4.0)
    blocks = {
        "route": lambda: route(model, config, profile=free_profile(config)),
        "certify": lambda: certify(model),
    }
    inside = "certify" if outside == "route" else "route"
    with blocks[outside]() as one, blocks[inside]() as other:
        model(ids)
    report, trace = (other, one) if outside == "route" else (one, other)
    assert report.last.name == "routesparse" and len(trace.prompts) == 1
    assert report.run.rows == 2 * 4 * 64
    assert model.config._attn_implementation == "sdpa"


def test_a_rule_is_certified_with_the_plan_that_it_made(nothing_left_behind):
    model, router = build(attention="sdpa"), RuleRouter(XAttention(0.6), extras=False)
    with routed_by(model, router), certify(model, plan=lambda layer: router.plan) as report:
        model(prompt(700))
    kept = report.run
    assert kept.disagreement < 1e-4 and 0.5 < kept.mass < 1.0
    assert report.run.mean_error == pytest.approx(kept.plan_error, rel=1e-2)


def test_only_prefills_are_certified_and_one_in_so_many(nothing_left_behind):
    model = build(attention="sdpa")
    with certify(model, rows=8, every=2) as report:
        for seed in range(3):
            model.generate(prompt(40, seed=seed), max_new_tokens=3, do_sample=False)
    assert [one.queries for one in report.passes] == [40, 40] and report.skipped == 1


def test_left_padding_is_neither_drawn_nor_read_wherever_the_mask_stands(nothing_left_behind):
    """Read as no mask, the padding would be compared with attention over padded keys."""
    model, ids = build(attention="sdpa"), prompt(200, batch=2)
    real = torch.ones_like(ids)
    real[1, :70] = 0
    for placed, named in (((), {"attention_mask": real}), ((real,), {})):
        with certify(model, rows=16) as report:
            model(ids, *placed, **named)
        assert report.verdict.level == "exact"
        for claims, scores in zip(report.by_layer, report.last.scores, strict=True):
            assert scores["positions"][1].min() >= 70 and claims.rows == 2 * 4 * 16
    with pytest.raises(PromptError, match="pad on the left"), certify(model):
        model(ids, real.flip(1))
    with pytest.raises(PromptError, match="packed sequences"), certify(model):
        model(ids, None, torch.arange(100).repeat(2)[None].expand(2, -1))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_its_first_arguments_in_one_order(family):
    parameters = list(inspect.signature(type(build(family)).forward).parameters)
    assert tuple(parameters[1:6]) == FORWARD_ARGUMENTS


def test_a_chunk_of_padding_alone_is_refused(nothing_left_behind):
    model, ids = build(attention="sdpa"), prompt(40, batch=2)
    real = torch.ones_like(ids)
    real[1] = 0
    with pytest.raises(PromptError, match="row 1 of the batch holds padding alone"), certify(model):
        model(ids, attention_mask=real)


def test_chunks_of_a_prompt_are_certified_one_by_one(nothing_left_behind):
    model, ids = build(attention="sdpa"), prompt(200)
    with certify(model, rows=16) as report:
        cache = model(ids[:, :120], use_cache=True).past_key_values
        model(ids[:, 120:], past_key_values=cache)
    assert [(one.queries, one.keys, one.verdict.level) for one in report.passes] == [
        (120, 120, "exact"),
        (80, 200, "exact"),
    ]


def test_rows_are_placed_by_the_prompt_and_the_seed():
    model = build(attention="sdpa")

    def positions(seed, ids):
        with certify(model, rows=8, seed=seed) as report:
            model(ids)
        return report.last.scores[0]["positions"].tolist()

    first = positions(0, prompt())
    assert first == positions(0, prompt())
    assert first != positions(1, prompt()) and first != positions(0, prompt(seed=2))


def test_a_second_thread_inside_the_model_is_refused_and_disturbs_nothing(nothing_left_behind):
    inside, tried, errors = threading.Event(), threading.Event(), []

    def pausing(*tensors, **options):
        """Waits, in its first call, for another thread to try."""
        if not inside.is_set():
            inside.set()
            assert tried.wait(30)
        return causal(*tensors, **options)

    def second():
        assert inside.wait(30)
        try:
            model(prompt(seed=2))
        except PromptError as error:
            errors.append(str(error))
        finally:
            tried.set()

    thread = threading.Thread(target=second)
    with registered("pausing", pausing):
        model = build(attention="pausing")
        with certify(model, rows=8) as report:
            thread.start()
            model(prompt())
            thread.join(30)
            model(prompt(seed=3))
    assert "give each thread a copy" in errors[0]
    assert [one.verdict.level for one in report.passes] == ["exact", "exact"]


@pytest.mark.parametrize("inside", [True, False], ids=["caught inside", "caught outside"])
def test_an_interrupted_pass_leaves_nothing_behind(inside, nothing_left_behind):
    model = build()
    interrupt = model.model.layers[1].mlp.register_forward_pre_hook(raise_interrupt)
    caught = contextlib.suppress(KeyboardInterrupt)
    before = ALL_ATTENTION_FUNCTIONS._local_mapping.get("eager")
    if inside:
        with certify(model, rows=8) as report:
            for _ in range(2):
                with caught:
                    model(prompt())
            interrupt.remove()
            model(prompt())
        assert [one.verdict.level for one in report.passes] == ["exact"]
    else:
        with pytest.raises(KeyboardInterrupt), certify(model, rows=8):
            model(prompt())
    assert ALL_ATTENTION_FUNCTIONS._local_mapping.get("eager") is before


def raise_interrupt(*_):
    raise KeyboardInterrupt


def test_an_error_in_a_pass_leaves_nothing_behind(nothing_left_behind):
    model = build()
    with pytest.raises(PromptError, match="pad on the left"), certify(model):
        right = torch.ones(1, TOKENS, dtype=torch.long)
        right[0, -5:] = 0
        model(prompt(), attention_mask=right)
    with pytest.raises(ConfigError, match="block sizes"), certify(model, plan=torch.ones(4, 1, 1).bool()):
        model(prompt())
    with pytest.raises(PromptError, match="nothing was certified"), certify(model):
        pass
    with certify(model, rows=8) as report:
        model(prompt())
    assert report.verdict.passed


def test_layers_without_a_plan_are_counted(nothing_left_behind):
    model, half = build(attention="sdpa"), torch.ones(4, 3, 5, dtype=torch.bool)
    half[:, 2, 1] = False
    for plan, dense in (({1: half}, [0]), (half, [])):
        with certify(model, plan=plan, rows=8) as report:
            model(prompt())
        assert report.as_dict()["dense_layers"] == dense
        told = [line for line in report.verdict.findings if "1 of 2 layers have no plan" in line]
        assert len(told) == len(dense)
    for key in (2, "0", -1):
        with pytest.raises(ConfigError, match=f"has the key '{key}'; the model's layers"):
            certify(model, plan={0: half, key: half}).__enter__()
    for layers in (1, 3):
        stacked = half.expand(layers, -1, -1, -1)
        with pytest.raises(ConfigError, match="layers, the model 2"), certify(model, plan=stacked):
            pass


def test_a_foreign_mask_is_described_by_its_shape_and_a_dense_layer_is_not():
    """Columns 3 and 5, sink and diagonal, of 16 cells of 64 keys."""
    q, k, v = (torch.randn(1, 2, 1024, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
    mask = torch.eye(8).bool().repeat_interleave(2, 1)
    mask[:, [0, 3, 5]] = True
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    masks = mask.expand(2, 2, 8, 16).clone()
    masks[1, 1] = True  # head 1 of layer 1 reads everything
    found = [
        certify_attention(q, k, v, out, layer=layer, request=Request(plan=masks)).by_head for layer in (0, 1)
    ]
    one, all_read = found[0][0], found[1][1]
    parts = (one.sink_share, one.local_share, one.vertical_share, one.slash_share, one.scattered_share)
    assert sum(parts) == pytest.approx(1) and one.vertical_share > max(
        one.slash_share, one.scattered_share, 0.2
    )
    assert all_read.vertical_share is None, "it reads everything"
    dense = certify_attention(q, k, v, out, request=Request(plan={1: mask[None]})).by_head[0]
    assert dense.mass == pytest.approx(1) and dense.vertical_share is None
