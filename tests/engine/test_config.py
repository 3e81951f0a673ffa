"""RouterConfig and LatencyBudget: what is accepted, what is refused, and with which words. No GPU."""

import math

import numpy
import pytest

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.errors import ConfigError

# Another value for each setting than its default.
CHANGES = {"policy": "budgeted", "budget": LatencyBudget(0.5, "fraction"), "beta": 0.5, "solver": "device"}
CHANGES |= {"tau": 0.8, "tau_layer": 0.6, "tau_head": 0.3, "price": 0.2, "confidence": 0.9, "seed": 1}
CHANGES |= {"segment_tokens": 8_192, "tail_tokens": 0, "block_q": 64, "block_k": 32, "probe": "pooled"}
CHANGES |= {"recent_rows": 32, "routing_rows": 32, "certificate_rows": 64, "boundary_rows": 0, "max_tests": 1}
CHANGES |= {
    "bound": "bernstein",
    "fallback": False,
    "fallback_limit": 0.5,
    "gate_threshold": 0.5,
    "alpha": 0.0,
}
CHANGES |= {"launch": "grouped", "break_even_tokens": 0, "head_floors": ((0.1, -0.1),)}


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("0.25", 0.25, "fraction"),
        (".5", 0.5, "fraction"),
        ("1", 1.0, "fraction"),
        ("800us", 800.0, "us"),
        (" 800 us ", 800.0, "us"),
        ("2.5e3us", 2500.0, "us"),
        ("1e-2", 0.01, "fraction"),
        ("1e-07", 1e-7, "fraction"),
    ],
)
def test_a_budget_is_a_fraction_of_dense_or_microseconds(text, value, unit):
    budget = LatencyBudget.parse(text)
    assert (budget.value, budget.unit) == (value, unit)
    assert LatencyBudget.parse(str(budget)) == budget


@pytest.mark.parametrize(
    "text", ["", " ", "us", "0.25ms", "a quarter", "25%", "0,25", "1 2", "nan", "inf", "0x10", "1e", "--1"]
)
def test_a_budget_that_is_no_number_is_refused_with_both_forms(text):
    with pytest.raises(ConfigError, match=r"is not understood; pass a fraction like 0.25 or"):
        LatencyBudget.parse(text)


@pytest.mark.parametrize("text", ["0", "0us", "-0.25", "-800us", "1e400", "1e400us"])
def test_a_budget_without_time_is_refused(text):
    with pytest.raises(ConfigError, match=r"budget is .* must be a number above 0 .*; pass a fraction"):
        LatencyBudget.parse(text)


def test_a_fraction_scales_with_dense_time_and_microseconds_do_not():
    assert LatencyBudget(0.25, "fraction").limit_us(4_000.0) == 1_000.0
    assert LatencyBudget(800.0, "us").limit_us(4_000.0) == 800.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "fast"}, 'policy is "fast", it must be one of priced, certified, budgeted, strict'),
        ({"probe": "full"}, 'probe is "full", it must be one of exact, pooled'),
        ({"bound": ["betting"]}, "it must be one of betting, bernstein"),
        ({"solver": "lp"}, "it must be one of greedy, device"),
        ({"launch": 1}, "it must be one of fused, grouped, per_head"),
        ({"tau": 1.01}, "tau is 1.01, it must be a number from 0 to 1"),
        ({"tau": math.nan}, "tau is NaN, it must be a number from 0 to 1"),
        ({"tau": "0.9"}, 'tau is "0.9", it must be a number from 0 to 1'),
        ({"tau_layer": True}, "tau_layer is true, it must be a number from 0 to 1"),
        ({"tau_head": numpy.float32(0.5)}, "it must be a number from 0 to 1"),
        ({"price": 0.0}, r"price is 0.0, it must be a number from 1e-06 to 1e\+06"),
        ({"price": math.inf}, "price is Infinity, it must be a number"),
        ({"confidence": 1.0}, "confidence is 1.0, it must be a number from 0.5 to 0.9999"),
        ({"gate_threshold": 1.5}, "gate_threshold is 1.5, it must be a number from 0 to 1"),
        ({"fallback_limit": 2}, "fallback_limit is 2, it must be a number from 0 to 1"),
        ({"fallback": "False"}, 'fallback is "False", it must be true or false'),
        ({"fallback": numpy.bool_(False)}, "it must be true or false"),
        ({"alpha": -1.0}, r"alpha is -1.0, it must be a number from 0 to 1e\+06"),
        ({"beta": math.nan}, "beta is NaN, it must be a number from 0"),
        ({"budget": 0.25}, "budget is 0.25, it must be a LatencyBudget"),
        ({"budget": {"value": 0.25, "unit": "us"}}, "it must be a LatencyBudget"),
        ({"block_k": 48}, "block_k is 48, it must be a power of two of at least 16"),
        ({"block_k": 8}, "block_k is 8, it must be a whole number from 16"),
        ({"tail_tokens": math.nan}, "tail_tokens is NaN, it must be a whole number from 0 to 16,777,216"),
        ({"tail_tokens": 128.0}, "tail_tokens is 128.0, it must be a whole number"),
        ({"recent_rows": 10**9}, "recent_rows is 1000000000, it must be a whole number from 1 to 65,536"),
        ({"routing_rows": numpy.int64(64)}, "it must be a whole number from 1 to 65,536"),
        ({"certificate_rows": 7}, "certificate_rows is 7, it must be a whole number from 8 to 65,536"),
        ({"boundary_rows": None}, "boundary_rows is null, it must be a whole number from 0"),
        ({"max_tests": 1e9}, "max_tests is 1000000000.0, it must be a whole number from 1 to 1,000"),
        ({"max_tests": 10**5000}, "max_tests is .* it must be a whole number from 1 to 1,000"),
        ({"break_even_tokens": True}, "break_even_tokens is true, it must be a whole number"),
        ({"seed": -1}, "seed is -1, it must be a whole number from 0"),
        ({"block_q": 32, "block_k": 64}, "block_q 32 must be a multiple of block_k 64"),
        ({"segment_tokens": 0}, "segment 0 tokens must be a positive multiple of 128"),
        ({"segment_tokens": 1000}, "segment 1000 tokens must be a positive multiple of 128"),
        ({"policy": "budgeted"}, "policy 'budgeted' needs a latency limit; pass budget"),
        ({"policy": "strict"}, "policy 'strict' needs a latency limit; pass budget"),
    ],
    ids=lambda x: ",".join(x) if isinstance(x, dict) else "",
)
def test_a_value_outside_its_range_is_refused_by_name_and_value(change, message):
    with pytest.raises(ConfigError, match=message):
        RouterConfig(**change)


def test_the_default_gate_lies_a_quarter_above_tau():
    assert RouterConfig(tau=0.9).effective_gate_threshold == pytest.approx(
        0.9 + 1.25 * math.log(3 / 0.05) / 128
    )
    assert RouterConfig(tau=0.9, gate_threshold=0.7).effective_gate_threshold == 0.7


def test_a_configuration_survives_its_dictionary():
    strict = RouterConfig(policy="strict", budget=LatencyBudget(800.0, "us"), gate_threshold=0.5, seed=3)
    for config in (RouterConfig(), strict):
        assert RouterConfig.from_dict(config.to_dict()) == config


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="unknown configuration names taau; known are alpha, beta"):
        RouterConfig.from_dict({"taau": 0.9})


def test_the_digest_changes_with_every_value():
    assert set(CHANGES) == set(RouterConfig().to_dict())
    budget = {"budget": LatencyBudget(0.25, "fraction")}
    digests = {
        RouterConfig(**{name: value, **(budget if name == "policy" else {})}).digest()
        for name, value in CHANGES.items()
    }
    assert len(digests) == len(CHANGES) and RouterConfig().digest() not in digests
