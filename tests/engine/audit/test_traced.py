"""Traced rows against a materialised softmax and the chosen plan's mask. CPU only."""

import numpy as np
import pytest
import torch

from routesparse.engine.audit.rows import Executed
from routesparse.engine.audit.traced import Tracer
from routesparse.engine.config import check_trace, parse_trace
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.errors import ConfigError
from routesparse.engine.method.attend import dense_attention


@pytest.mark.parametrize("is_tail", [False, True])
def test_a_row_has_its_strongest_keys_and_says_which_were_read(oracle, decided, is_tail):
    inputs, decision, _ = decided
    segment = decision.segment
    dense_rows = torch.full((decision.batch, decision.heads, segment.query_blocks), is_tail)
    position = segment.position + segment.body - 3
    tracer = Tracer((position, segment.position + segment.rows + 9))
    executed = Executed(dense_attention(inputs, None), dense_rows)
    found = tracer.audit(inputs, decision, LayerSettings(oracle.SMALL, 0.6, oracle.PROFILE), executed)
    assert (tracer.depth, found.units) == ("none", ())
    assert len(found.traced_rows) == decision.batch * decision.heads, "a row of another segment is not its"
    exact = oracle.softmax(inputs)[0]
    for row in found.traced_rows:
        b, h = row.batch_index, row.head
        mask = oracle.plan_of_candidate(
            inputs, segment, decision.candidates, decision.indices, int(decision.choice[b, h])
        ).to_mask()[b, h, position - segment.position]
        weights = exact[b, h, position - segment.position].numpy()
        kept = np.ones(len(weights), bool) if is_tail else mask.numpy()
        keys, read = np.frombuffer(row.keys, "<i4"), np.frombuffer(row.read, "u1").astype(bool)
        np.testing.assert_allclose(np.frombuffer(row.weights, "<f4"), weights[keys], atol=1e-5)
        assert (read == kept[keys]).all() and weights[keys].max() == pytest.approx(weights.max())
        sink = 1 - weights.sum()
        assert row.mass == pytest.approx((weights * kept).sum() + sink, abs=1e-4)
        dropped = np.where(kept, 0, weights)
        assert dropped.max() == 0 or dropped.argmax() in keys, "the strongest dropped key is among them"


def test_tokens_to_trace_are_checked():
    assert parse_trace(" 40, 7") == (7, 40) and parse_trace(None) == ()
    for wrong in ("x", "1,,2", "-1", ",".join(["1"] * 17)):
        with pytest.raises(ConfigError, match="pass at most 16 numbers"):
            parse_trace(wrong)
    with pytest.raises(ConfigError, match="token 90; the prompt has 0 to 79"):
        check_trace((3, 90), 80)
