"""What a served configuration says, by files written after NVIDIA's format. CPU, no model.

The format was read in NVIDIA/Model-Optimizer, modelopt/torch/sparsity/attention_sparsity/conversion.py and
plugins/sparse_attn_config.py (config_groups, ignore, formula, a and b of each phase), and in NVIDIA/TensorRT-LLM,
tensorrt_llm/_torch/attention_backend/sparse/skip_softmax/params.py and its guide to sparse attention (numbers, one
group alone, lambda = threshold_scale_factor / length).
"""

import json
import math
from copy import deepcopy

import pytest

from routesparse.engine.certification.served import read_served
from routesparse.engine.errors import ConfigError

GROUP = {
    "algorithm": "skip_softmax",
    "targets": ["LlamaAttention"],
    "ignore": ["model.layers.0.self_attn", "*.layers.3.*"],
    "threshold_scale_factor": {
        "formula": "a * exp(b * target_sparsity)",
        "prefill": {"a": 7.93, "b": 8.61},
        "decode": {"a": 0.12, "b": 9.85},
    },
    "target_sparsity": {"prefill": 0.5, "decode": 0.3},
}
MODULES = [(layer, f"model.layers.{layer}.self_attn") for layer in range(12)]


def exported(group):
    producer = {"name": "modelopt", "version": "0.45.0"}
    return {"sparse_attention_config": {"config_groups": {"group_0": group}, "producer": producer}}


@pytest.fixture
def saved(tmp_path):
    def write(values, name="config.json"):
        (tmp_path / name).write_text(json.dumps(values))
        return tmp_path / name

    return write


def test_a_checkpoint_s_threshold_falls_with_the_prompt_and_ignored_layers_are_dense(saved):
    path = saved({"model_type": "llama"} | exported(GROUP))
    found = read_served(path)
    assert found == read_served(saved(exported(GROUP)["sparse_attention_config"]))
    threshold, dense = found.of(32_768, MODULES)
    assert threshold == pytest.approx(7.93 * math.exp(8.61 * 0.5) / 32_768) and dense == {0, 3}
    assert found.of(65_536, MODULES)[0] == pytest.approx(threshold / 2)
    assert read_served(path.parent).scale_factor == found.scale_factor
    assert read_served(saved(exported(GROUP | {"target_sparsity": 0.5}))).scale_factor == found.scale_factor


@pytest.mark.parametrize("scale", [1000, {"prefill": 1000.0, "decode": 500.0}])
def test_a_number_is_the_scale_factor_itself(saved, scale):
    found = read_served(saved({"algorithm": "skip_softmax", "threshold_scale_factor": scale}))
    assert found.of(4_000, MODULES) == (0.25, frozenset())


def test_our_own_settings_are_read_by_name(saved):
    ours = {"price": 0.25, "break_even_tokens": 4096}
    assert read_served(saved(ours, "ours.json")) == ours


def changed(path, value):
    """The exported file with one field set, or taken out for None."""
    values = deepcopy(GROUP)
    *parents, last = path.split(".")
    inner = values
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    if value is None:
        del inner[last]
    return exported(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            changed("algorithm", "sparse_softmax"),
            'group_0.algorithm is "sparse_softmax", it must be one of skip_softmax',
        ),
        (
            changed("initial_disabled_steps", 5),
            "group_0.initial_disabled_steps is 5, it must be left out; known are alg",
        ),
        (changed("threshold_scale_factor.formula", "a + b * target_sparsity"), 'formula is "a \\+ b'),
        (changed("threshold_scale_factor.formula", None), "threshold_scale_factor.formula is null"),
        (
            changed("threshold_scale_factor.prefill.log_a", 1.0),
            "prefill.log_a is 1.0, it must be left out; known are a",
        ),
        (
            changed("threshold_scale_factor.prefill.b", 1e9),
            "prefill.b is 1000000000.0, it must be a number from 0 to",
        ),
        (changed("threshold_scale_factor", None), "threshold_scale_factor.prefill is null"),
        (
            changed("target_sparsity", None),
            "target_sparsity.prefill is null, it must be a number from 0 to 1",
        ),
        (changed("target_sparsity.prefill", 50), "target_sparsity.prefill is 50"),
        (changed("ignore", "model.layers.0.self_attn"), "ignore is"),
        (
            {"sparse_attention_config": {"config_groups": {}}},
            "config_groups is {}, it must be an object of one group",
        ),
        ({"model_type": "llama"}, "has no sparse_attention_config, so its attention is served dense"),
        ({"prise": 1}, "unknown configuration names prise"),
        ([], "it is one list, not an object"),
    ],
)
def test_what_is_not_understood_is_named(saved, values, message):
    with pytest.raises(ConfigError, match=message):
        read_served(saved(values))


def test_no_file_and_no_checkpoint_are_told(tmp_path, saved):
    with pytest.raises(ConfigError, match="can't be read"):
        read_served(tmp_path)
    found = read_served(saved(changed("ignore", ["layers.1"])))
    with pytest.raises(
        ConfigError, match=r"'layers.1' names no attention layer; write it like 'model.layers.0.self"
    ):
        found.of(32_768, MODULES)
    with pytest.raises(ConfigError, match="needs a prompt of more than 587 tokens, this has 500"):
        found.of(500, MODULES)
