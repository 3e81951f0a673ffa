"""Routed contexts with dense continuations, as the harness is served, on the bundled model. CPU, no harness."""

import dataclasses
from pathlib import Path

import pytest
import torch

from routesparse.engine.calibration import tuned
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError, ConfigError, UnsupportedModelError
from routesparse.engine.lab.harness.lm_eval_routed import RoutedModel
from routesparse.engine.models.load import load_model

# A high price without dense last rows: answers differ from dense ones by more than rounding.
CONFIG = RouterConfig(break_even_tokens=0, price=4.0, tail_tokens=0)
PROSE = Path(__file__).resolve().parents[4] / "data" / "samples" / "prompts" / "prose.txt"


@pytest.fixture(scope="module")
def loaded():
    return load_model("demo", device="cpu")


@pytest.fixture(scope="module")
def context(loaded):
    return [0, *loaded.tokenizer(PROSE.read_text()[:8_000])["input_ids"][:1_199]]


def log_p(logits):
    return logits.float().log_softmax(-1)


@torch.no_grad()
def behind(model, out, continuation):
    """Nats of a continuation token by token behind a prefill, and whether it is the greedy one."""
    total, greedy = 0.0, True
    logits, cache = log_p(out.logits[0, -1]), out.past_key_values
    for token in continuation:
        total += float(logits[token])
        greedy &= int(logits.argmax()) == token
        step = model(torch.tensor([[token]]), past_key_values=cache)
        logits, cache = log_p(step.logits[0, -1]), step.past_key_values
    return total, greedy


def test_a_continuation_is_scored_densely_behind_its_routed_context(loaded, context):
    model, tokens = loaded.model, [5, 9, 40, 41]
    made = RoutedModel(model, CONFIG)
    ids = torch.tensor([context])
    with torch.no_grad():
        dense = behind(model, model(ids, use_cache=True), tokens)
        with made.prompt(ids):
            out = model(ids, use_cache=True)
        routed = behind(model, out, tokens)
    ((nats, greedy),) = made.continuations(context, [tokens])
    assert nats == pytest.approx(routed[0], rel=1e-5) and greedy == routed[1]
    assert nats != pytest.approx(dense[0], rel=1e-4)
    about = made.about()
    assert (about["routed_prefills"], about["dense_prefills"]) == (2, 0)
    assert about["area_of_routed"] < 1 and about["config"]["price"] == 4


def test_continuations_share_a_prefill_and_depend_on_no_other_one_nor_another_prompt(loaded, context):
    made = RoutedModel(loaded.model, CONFIG)
    choices = [[5, 9, 40], [7], [5, 9, 41, 3], [7]]
    together = made.continuations(context, choices)
    assert made.about()["routed_prefills"] == 1
    other = RoutedModel(loaded.model, CONFIG)
    other.continuations(context[1:], [[3]])
    ((alone, _),) = other.continuations(context, [choices[2]])
    assert together[2][0] == pytest.approx(alone, rel=1e-6)
    assert together[1] == together[3]


def test_what_greedy_decoding_writes_is_told(loaded, context):
    made = RoutedModel(loaded.model, CONFIG)
    ids = torch.tensor([context])
    with torch.no_grad(), made.prompt(ids):
        written = loaded.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, pad_token_id=0
        )[0, len(context) :].tolist()
    other = [*written[:-1], (written[-1] + 1) % 50]
    assert [greedy for _, greedy in made.continuations(context, [written, other])] == [True, False]


def test_a_window_is_scored_by_the_routed_prefill_itself(loaded, context):
    made = RoutedModel(loaded.model, CONFIG)
    ids = torch.tensor([context])
    with torch.no_grad(), made.prompt(ids[:, :-1]):
        logits = log_p(loaded.model(ids[:, :-1]).logits[0])
    expected = float(logits.gather(-1, ids[0, 1:, None]).sum())
    nats, greedy = made.window(context[:1], context[1:])
    assert nats == pytest.approx(expected, rel=1e-6) and not greedy


def test_a_calibration_s_name_may_be_a_tuned_price_as_for_analyze(loaded):
    known = tuned.load("prose-kl")
    about = RoutedModel(loaded.model, RouterConfig(), calibration="prose-kl").about()
    assert (about["calibration"], about["config"]["price"]) == ("prose-kl", known.price)
    assert RoutedModel(loaded.model, RouterConfig(), calibration="prose").about()["calibration"] == "prose"
    with pytest.raises(CalibrationError, match="contradicts 'prose-kl'"):
        RoutedModel(loaded.model, RouterConfig(price=known.price + 1), calibration="prose-kl")
    other = dataclasses.replace(known, model_revision="other")
    with pytest.raises(CalibrationError, match="was tuned for model"):
        RoutedModel(loaded.model, RouterConfig(), calibration=other)


def test_below_break_even_the_model_is_dense_and_it_is_said_once(loaded, context, capsys):
    made = RoutedModel(loaded.model, RouterConfig(break_even_tokens=10_000))
    found = [made.continuations(context, [[5, 9]])[0] for _ in range(2)]
    ids = torch.tensor([context])
    with torch.no_grad():
        dense, _ = behind(loaded.model, loaded.model(ids, use_cache=True), [5, 9])
    assert [nats for nats, _ in found] == pytest.approx([dense] * 2, rel=1e-5)
    assert capsys.readouterr().err.count("a prompt of 1,200 tokens runs dense") == 1
    assert made.about()["dense_prefills"] == 2 and made.about()["area_of_routed"] is None


def test_what_cannot_be_routed_is_refused_before_the_first_prompt(loaded):
    with pytest.raises(ConfigError, match="too short to be probed"):
        RoutedModel(loaded.model, RouterConfig(segment_tokens=128))
    with pytest.raises(UnsupportedModelError, match="PreTrainedModel"):
        RoutedModel(torch.nn.Linear(2, 2), CONFIG)
