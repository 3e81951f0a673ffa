"""RouterConfig and LatencyBudget: what is accepted, what is refused, and with which words. No GPU."""

import math

import pytest

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.errors import ConfigError, InputError


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
    ],
)
def test_a_budget_is_a_fraction_of_dense_or_microseconds(text, value, unit):
    budget = LatencyBudget.parse(text)
    assert (budget.value, budget.unit) == (value, unit)


@pytest.mark.parametrize(
    "text", ["", " ", "us", "0.25ms", "a quarter", "25%", "0,25", "1 2", "nan", "inf", "0x10", "1e", "--1"]
)
def test_a_budget_that_is_no_number_is_refused_with_both_forms(text):
    with pytest.raises(
        ConfigError, match=r"is not understood; pass a fraction like 0.25 or a time like 800us"
    ):
        LatencyBudget.parse(text)


@pytest.mark.parametrize("text", ["0", "0us", "-0.25", "-800us", "1e400", "1e400us"])
def test_a_budget_without_time_is_refused(text):
    with pytest.raises(ConfigError, match="leaves no time for any plan"):
        LatencyBudget.parse(text)


@pytest.mark.parametrize("text", ["0.25", "800us", "1e-07", "123456us"])
def test_a_budget_survives_its_own_text(text):
    budget = LatencyBudget.parse(text)
    assert LatencyBudget.parse(str(budget)) == budget


def test_a_fraction_scales_with_dense_time_and_microseconds_do_not():
    assert LatencyBudget(0.25, "fraction").limit_us(4_000.0) == 1_000.0
    assert LatencyBudget(800.0, "us").limit_us(4_000.0) == 800.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "fast"}, "policy 'fast' is unknown; choose one of priced, certified, budgeted, strict"),
        ({"probe": "full"}, "probe 'full' is unknown; choose one of exact, pooled"),
        ({"bound": "exact"}, "bound 'exact' is unknown; choose one of betting, bernstein"),
        ({"solver": "lp"}, "solver 'lp' is unknown; choose one of greedy, exact, device"),
        ({"launch": "one"}, "launch 'one' is unknown; choose one of fused, grouped, per_head"),
        ({"tau": 1.01}, r"tau 1.01 must lie in \[0, 1\]"),
        ({"tau": -0.1}, r"tau -0.1 must lie in \[0, 1\]"),
        ({"tau": math.nan}, r"tau nan must lie in \[0, 1\]"),
        ({"tau_layer": 1.5}, r"tau_layer 1.5 must lie in \[0, 1\]"),
        ({"tau_head": -0.1}, r"tau_head -0.1 must lie in \[0, 1\]"),
        ({"price": 0.0}, r"price 0.0 must lie in"),
        ({"price": math.inf}, r"price inf must lie in"),
        ({"tau": "0.9"}, r"tau '0.9' must lie in \[0, 1\]"),
        ({"confidence": 0.4}, r"confidence 0.4 must lie in \[0.5, 0.9999\]"),
        ({"confidence": 1.0}, r"confidence 1.0 must lie in \[0.5, 0.9999\]"),
        ({"gate_threshold": 1.5}, r"gate_threshold 1.5 must lie in \[0, 1\]"),
        ({"fallback_limit": 2}, r"fallback_limit 2 must lie in \[0, 1\]"),
        ({"alpha": -1.0}, "alpha -1.0 must be a finite number >= 0"),
        ({"alpha": math.inf}, "alpha inf must be a finite number >= 0"),
        ({"beta": math.nan}, "beta nan must be a finite number >= 0"),
        ({"block_k": 48}, "block_k 48 must be a power of two of at least 16"),
        ({"block_k": 8}, "block_k 8 must be a power of two of at least 16"),
        ({"block_q": 32, "block_k": 64}, "block_q 32 must be a multiple of block_k 64"),
        ({"segment_tokens": 0}, "segment 0 tokens must be a positive multiple of 128"),
        ({"segment_tokens": 1000}, "segment 1000 tokens must be a positive multiple of 128"),
        ({"recent_rows": 0}, "recent_rows 0 must be at least 1"),
        ({"routing_rows": 0}, "routing_rows 0 must be at least 1"),
        ({"certificate_rows": 7}, "certificate_rows 7 must be at least 8"),
        ({"max_tests": 0}, "max_tests 0 must be at least 1"),
        ({"tail_tokens": -1}, "tail_tokens -1 must be at least 0"),
        ({"boundary_rows": -1}, "boundary_rows -1 must be at least 0"),
        ({"policy": "budgeted"}, "policy 'budgeted' needs a latency limit; pass budget"),
        ({"policy": "strict"}, "policy 'strict' needs a latency limit; pass budget"),
    ],
    ids=lambda x: ",".join(f"{k}={v}" for k, v in x.items()) if isinstance(x, dict) else "",
)
def test_a_value_outside_its_range_is_refused_by_name_and_value(change, message):
    with pytest.raises(ConfigError, match=message):
        RouterConfig(**change)


def test_a_configuration_error_is_the_users_to_mend():
    assert issubclass(ConfigError, InputError)


def test_the_default_gate_lies_a_quarter_above_tau():
    assert RouterConfig(tau=0.9).effective_gate_threshold == pytest.approx(
        0.9 + 1.25 * math.log(3 / 0.05) / 128
    )
    assert RouterConfig(tau=0.9, gate_threshold=0.7).effective_gate_threshold == 0.7


@pytest.mark.parametrize(
    "config",
    [
        RouterConfig(),
        RouterConfig(policy="strict", budget=LatencyBudget(800.0, "us"), gate_threshold=0.5, seed=3),
    ],
    ids=["default", "strict"],
)
def test_a_configuration_survives_its_dictionary(config):
    assert RouterConfig.from_dict(config.to_dict()) == config


def test_a_configuration_with_the_older_name_of_lambda_is_read():
    assert RouterConfig.from_dict({"gate": 0.7}) == RouterConfig(gate_threshold=0.7)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="unknown configuration names taau; known are alpha, beta"):
        RouterConfig.from_dict({"taau": 0.9})


def test_the_digest_changes_with_every_value():
    base = RouterConfig()
    changes = {
        "policy": "strict",
        "tau": 0.8,
        "tau_layer": 0.6,
        "tau_head": 0.2,
        "price": 0.4,
        "confidence": 0.9,
        "gate_threshold": 0.5,
        "budget": LatencyBudget(0.5, "fraction"),
        "segment_tokens": 1024,
        "tail_tokens": 0,
        "block_q": 64,
        "block_k": 32,
        "probe": "pooled",
        "recent_rows": 1,
        "routing_rows": 1,
        "certificate_rows": 8,
        "boundary_rows": 0,
        "max_tests": 1,
        "bound": "bernstein",
        "alpha": 0.0,
        "beta": 1.0,
        "solver": "device",
        "launch": "grouped",
        "fallback": False,
        "fallback_limit": 0.5,
        "break_even_tokens": 0,
        "seed": 1,
    }
    assert set(changes) == set(base.to_dict())
    digests = set()
    for name, value in changes.items():
        extra = {"budget": LatencyBudget(0.5, "fraction")} if name == "policy" else {}
        digests.add(RouterConfig(**{name: value, **extra}).digest())
    assert len(digests) == len(changes)
    assert base.digest() not in digests
