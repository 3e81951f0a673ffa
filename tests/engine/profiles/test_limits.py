"""The least T_l of the form is where deciding refuses a limit. No GPU."""

from dataclasses import replace

import pytest

from routesparse.engine.config import LatencyBudget
from routesparse.engine.errors import ConfigError
from routesparse.engine.profiles.limits import least_limit
from routesparse.engine.runtime.session import RoutingSession


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_a_limit_is_refused_exactly_where_the_form_says_so(oracle, config, factor, segments):
    inputs = oracle.draw_inputs(0)
    heads, tokens = inputs.q.shape[1], inputs.q.shape[2]
    config = replace(config, segment_tokens=704 // segments, break_even_tokens=0)
    profile = replace(oracle.PROFILE, probe_base_us=30.0)
    least = least_limit(profile, tokens, heads, config)
    assert least.leaves(LatencyBudget(least.share * factor, "fraction")) == (factor > 1)
    budget = LatencyBudget(least.limit_us * factor, "us")
    assert least.leaves(budget) == (factor > 1)
    session = RoutingSession(replace(config, policy="certified", budget=budget), profile=profile)
    if factor < 1:
        with pytest.raises(ConfigError, match="below the probe's"):
            session.attend(inputs, layer=0)
    else:
        session.attend(inputs, layer=0)
        assert len(list(session.trace.prompts[-1].decisions())) == segments
