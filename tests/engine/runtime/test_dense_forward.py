"""The full audit against a dense forward pass: outputs per layer and head. CPU, random inputs."""

from types import SimpleNamespace

import pytest
import torch

from routesparse.engine.audit.rows import RowAuditor
from routesparse.engine.config import RouterConfig
from routesparse.engine.runtime.dense_forward import (
    LAST_ROWS,
    SAMPLED_ROWS,
    DenseRouter,
    SampledRouter,
    relative_error,
    sample_rows,
    with_forward_errors,
)
from routesparse.engine.runtime.session import RoutingSession


def test_the_last_rows_are_always_sampled_and_the_others_once():
    rows = sample_rows(5_000, 0)
    assert len(rows) == SAMPLED_ROWS + LAST_ROWS == len(set(rows.tolist()))
    assert rows[-LAST_ROWS:].tolist() == list(range(5_000 - LAST_ROWS, 5_000))
    assert torch.equal(rows, rows.sort().values)
    assert sample_rows(100, 0).tolist() == list(range(100))


def attend(router, inputs, layer=0):
    return router.attend(inputs, layer=layer)


def test_the_dense_router_is_exact_and_the_sample_is_of_its_output(oracle):
    inputs = oracle.draw_inputs(0)
    rows = torch.tensor([0, 5, 699])
    sampled = SampledRouter(DenseRouter(), rows)
    out = attend(sampled, inputs, layer=3)
    torch.testing.assert_close(out.double(), oracle.attention(inputs), atol=1e-5, rtol=0)
    assert torch.equal(sampled.outputs[3], out[:, :, rows])


def test_a_routed_layers_forward_error_is_the_relative_error_of_its_sampled_rows(oracle, config):
    inputs = oracle.draw_inputs(1)
    rows = sample_rows(700, 0)
    session = RoutingSession(config, profile=oracle.PROFILE, auditor=RowAuditor(rows=None))
    routed, dense = SampledRouter(session, rows), SampledRouter(DenseRouter(), rows)
    mine, exact = attend(routed, inputs), attend(dense, inputs)
    record = with_forward_errors(session.trace.record(), routed.outputs, dense.outputs, rows)
    wanted = relative_error(mine[:, :, rows], exact[:, :, rows])
    assert record.layers[0].forward_error == pytest.approx(wanted) and wanted > 1e-3
    assert len(record.audits) >= 2
    for audit in record.audits:
        head = relative_error(mine[0, audit.head, rows], exact[0, audit.head, rows])
        assert audit.forward_error == pytest.approx(head)


def test_a_heads_error_is_taken_over_the_rows_of_its_segment_only():
    rows = torch.tensor([1, 2, 11])
    dense = {0: torch.ones(1, 1, 3, 4)}
    routed = {0: torch.ones(1, 1, 3, 4)}
    routed[0][0, 0, 2] = 0.0
    choices = [SimpleNamespace(segment=s, first_token=10 * s, tokens=10) for s in range(3)]
    record = SimpleNamespace(choices=choices)
    from routesparse.engine.runtime import dense_forward

    assert dense_forward._segments(record.choices) == {0: (0, 10), 1: (10, 20), 2: (20, 30)}
    assert relative_error(routed[0][0, 0, rows < 10], dense[0][0, 0, rows < 10]) == 0.0
    assert relative_error(routed[0][0, 0, rows >= 10], dense[0][0, 0, rows >= 10]) == 1.0


def test_break_even_of_a_sampled_run_counts_the_layers_that_an_unsampled_one_counts(oracle):
    session = RoutingSession(RouterConfig(), profile=oracle.PROFILE)
    SampledRouter(session, torch.tensor([0])).serve(40)
    SampledRouter(DenseRouter(), torch.tensor([0])).serve(40)
    assert session._layers == 40
