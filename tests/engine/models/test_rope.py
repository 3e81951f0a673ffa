"""Longer contexts by rescaled rotary positions: angles, parity, records, calibrations. CPU, a tiny random Llama."""

import json
from dataclasses import replace

import pytest
import torch
import transformers

from routesparse.engine.analyze import analyze_prompt
from routesparse.engine.calibration.artifact import Calibration, stamp_of
from routesparse.engine.errors import CalibrationError, ConfigError, ModelError, PromptError
from routesparse.engine.export.report_page import command
from routesparse.engine.method.families import library_hash
from routesparse.engine.models.files import revision_of
from routesparse.engine.models.load import load_model, revision_of_model
from routesparse.engine.models.rope import KINDS, RopeScaling
from routesparse.engine.models.token_count import refuse_before_loading
from routesparse.engine.prompts.text import decode_prompt, tokenize
from routesparse.engine.runtime.route import route
from tests.engine import tiny_shape

PAIRS = 8  # of the tiny model's head size, 16
SHORT, LONG = [1.0] * PAIRS, [1.0 + place for place in range(PAIRS)]
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "short_factor": SHORT, "long_factor": LONG},
}
CONFIG = tiny_shape.config(512)
PROFILE = tiny_shape.profile()
pytestmark = pytest.mark.usefixtures("home")
THETA, TRAINED, TOKENS = 10_000.0, 1_000, 1_400

kinds = pytest.mark.parametrize("kind", KINDS)


def loaded_with(folder, kind):
    return load_model(str(folder), device="cpu", rope=RopeScaling.of(SCALINGS[kind]))


def prompt():
    return torch.randint(0, 250, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def text(tokens):
    words = "".join(chr(97 + (place * place) % 23) for place in range(tokens - 1))
    return decode_prompt(words.encode(), "letters")


def text_prompt(loaded, tokens=TOKENS):
    return tokenize(text(tokens), loaded.tokenizer, loaded.max_tokens)


@kinds
def test_the_model_is_the_one_that_transformers_makes_of_the_same_configuration(folder, kind):
    loaded = loaded_with(folder, kind)
    assert loaded.max_tokens == 4 * TRAINED
    rope = {**SCALINGS[kind], "rope_theta": THETA}
    if kind != "linear":
        rope["original_max_position_embeddings"] = TRAINED
    longer = {"rope_parameters": rope, "max_position_embeddings": 4 * TRAINED}
    config = transformers.AutoConfig.from_pretrained(folder, **longer)
    twin = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)
    plain = load_model(str(folder), device="cpu").model
    with torch.no_grad():
        found = loaded.model(prompt()).logits
        assert torch.equal(found, twin.eval()(prompt()).logits)
        assert float((found - plain(prompt()).logits).abs().max()) > 1e-2, "the scaling must matter"


@kinds
def test_beyond_the_original_context_full_budget_is_dense_and_a_price_routes(folder, kind):
    loaded = loaded_with(folder, kind)
    dense = replace(CONFIG, policy="certified", tau=1.0)
    with torch.no_grad():
        wanted = loaded.model(prompt()).logits
        with route(loaded.model, dense, profile=PROFILE) as full:
            assert torch.allclose(loaded.model(prompt()).logits, wanted, atol=1e-4)
        with route(loaded.model, CONFIG, profile=PROFILE) as trace:
            loaded.model(prompt())
    assert {choice.pattern for choice in full.decisions} == {"dense"}
    sparse = [choice for choice in trace.decisions if choice.pattern != "dense"]
    assert sparse and all(0 <= choice.lower_mass <= 1 for choice in sparse)


def test_another_scaling_is_another_revision(folder):
    plain = load_model(str(folder), device="cpu")
    found = {kind: loaded_with(folder, kind) for kind in KINDS}
    twice = load_model(str(folder), device="cpu", rope=RopeScaling.of({"rope_type": "linear", "factor": 2.0}))
    revisions = {plain.revision, twice.revision, *(one.revision for one in found.values())}
    assert len(revisions) == 5
    assert plain.revision == revision_of(folder)
    assert all(revision_of_model(one.model) == one.revision for one in (plain, twice, *found.values()))


@kinds
def test_a_number_written_whole_is_the_same_scaling(folder, kind):
    def whole(value):
        return [whole(one) for one in value] if isinstance(value, list) else int(value)

    written = {name: value if name == "rope_type" else whole(value) for name, value in SCALINGS[kind].items()}
    found = RopeScaling.of({**written, "original_max_position_embeddings": TRAINED})
    assert found == RopeScaling.of({**SCALINGS[kind], "original_max_position_embeddings": TRAINED})
    assert type(found.values["original_max_position_embeddings"]) is int
    loaded = load_model(str(folder), device="cpu", rope=RopeScaling.of(written))
    assert loaded.revision == loaded_with(folder, kind).revision


def calibration(revision):
    stamps = (revision, library_hash(), stamp_of(CONFIG))
    return Calibration("mine", "mine", None, 0.5, "tiny", *stamps, (), (), 0, {})


@kinds
def test_a_calibration_belongs_to_the_scaling_that_it_was_made_with(folder, kind):
    scaled, plain = loaded_with(folder, kind), load_model(str(folder), device="cpu")
    for model, other in ((scaled, plain), (plain, scaled)):
        with (
            pytest.raises(CalibrationError, match="pass a calibration of this model"),
            route(model.model, CONFIG, calibration=calibration(other.revision)),
        ):
            pass
        with pytest.raises(CalibrationError, match=other.revision):
            analyze_prompt(text_prompt(scaled), model, CONFIG, calibration=calibration(other.revision))
    calibration(scaled.revision).check(scaled.revision, CONFIG, "float32", None)


def test_the_run_records_the_scaling_and_its_command_repeats_it(folder):
    scaled, plain = loaded_with(folder, "yarn"), load_model(str(folder), device="cpu")
    record = analyze_prompt(text_prompt(scaled), scaled, CONFIG, check_answer=False, profile=PROFILE)
    rope = json.loads(record.run.config_json)["rope"]
    assert json.loads(rope) == SCALINGS["yarn"]
    assert record.run.model_revision == scaled.revision
    assert record.run.routed and record.run.tokens == TOKENS > TRAINED
    assert f"--rope '{rope}'" in command(record)
    other = analyze_prompt(text_prompt(plain, 700), plain, CONFIG, check_answer=False, profile=PROFILE)
    assert "rope" not in json.loads(other.run.config_json) and "--rope" not in command(other)


def test_a_prompt_beyond_the_longer_context_is_refused_before_loading(folder):
    rope = RopeScaling.of(SCALINGS["linear"])
    with pytest.raises(PromptError, match="1,000"):
        refuse_before_loading(str(folder), text(20_000))
    refuse_before_loading(str(folder), text(2_000), rope)
    with pytest.raises(PromptError, match="4,000"):
        refuse_before_loading(str(folder), text(80_000), rope)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("yarn", "is no JSON object; pass one such as"),
        ('{"factor": 2}', "rope_type 'None': it is unknown"),
        ('{"rope_type": "dynamic", "factor": 2}', "cached keys no longer fit; pass yarn"),
        ('{"rope_type": "llama3", "factor": 8}', "models trained with it"),
        ('{"rope_type": "default"}', "changes nothing"),
        ('{"rope_type": "yarn"}', "rope.factor is missing"),
        ('{"rope_type": "yarn", "factor": 0.5}', "rope.factor is 0.5"),
        ('{"rope_type": "linear", "factor": 2, "beta_fast": 3}', "rope.beta_fast is 3"),
        ('{"rope_type": "yarn", "factor": 2, "rope_theta": 1e6}', "rope.rope_theta"),
        (
            '{"rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}',
            "beta_fast is 1.0, it must be above",
        ),
        (
            '{"rope_type": "longrope", "factor": 2, "short_factor": [1], "long_factor": [0]}',
            "rope.long_factor",
        ),
    ],
)
def test_a_wrong_request_is_one_line(given, told):
    with pytest.raises(ConfigError) as caught:
        RopeScaling.parse(given)
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({**SCALINGS["longrope"], "long_factor": [1.0]}, "has 1 numbers, model 'tiny' has 8 rotary pairs"),
        ({**SCALINGS["yarn"], "original_max_position_embeddings": 2_000}, "more than the model reads, 1,000"),
    ],
)
def test_a_request_that_does_not_fit_the_model_is_one_line(folder, values, told):
    with pytest.raises(ConfigError, match=told):
        load_model(str(folder), device="cpu", rope=RopeScaling.of(values))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            transformers.LlamaConfig(
                rope_parameters={
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 512,
                }
            ),
            "of the kind 'llama3' already",
        ),
        (transformers.Gemma3TextConfig(), "several kinds by layer"),
    ],
    ids=["llama3", "gemma3"],
)
def test_a_model_with_positions_of_its_own_kind_is_refused(config, told):
    with pytest.raises(ModelError, match=told):
        RopeScaling.of(SCALINGS["yarn"]).extend(config, "other")
