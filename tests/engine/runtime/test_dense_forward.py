"""The full audit against a dense forward pass: outputs per layer and head. CPU, random inputs."""

from dataclasses import replace

import pytest
import torch

from routesparse.engine.audit.rows import RowAuditor
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
    settings = replace(config, segment_tokens=320)
    session = RoutingSession(settings, profile=oracle.PROFILE, auditor=RowAuditor(rows=None))
    routed, dense = SampledRouter(session, rows), SampledRouter(DenseRouter(), rows)
    mine, exact = attend(routed, inputs), attend(dense, inputs)
    record = with_forward_errors(session.trace.record(), routed.outputs, dense.outputs, rows)
    wanted = relative_error(mine[:, :, rows], exact[:, :, rows])
    assert record.layers[0].forward_error == pytest.approx(wanted) and wanted > 1e-3
    assert len({audit.segment for audit in record.audits}) == 2
    firsts = {choice.segment: (choice.first_token, choice.tokens) for choice in record.choices}
    for audit in record.audits:
        first, tokens = firsts[audit.segment]
        own = rows[(rows >= first) & (rows < first + tokens)]
        head = relative_error(mine[0, audit.head, own], exact[0, audit.head, own])
        assert audit.forward_error == pytest.approx(head)


def test_break_even_of_a_sampled_run_counts_the_layers_that_an_unsampled_one_counts():
    told = []

    class Told(DenseRouter):
        def serve(self, layers):
            told.append(layers)

    SampledRouter(Told(), torch.tensor([0])).serve(40)
    assert told == [40]
