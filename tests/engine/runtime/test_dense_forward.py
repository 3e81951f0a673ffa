"""The full audit against a dense forward pass: outputs per layer and head. CPU, random inputs."""

from dataclasses import replace

import pytest
import torch

from routesparse.engine.audit.rows import RowAuditor
from routesparse.engine.runtime.dense_forward import (
    LAST_ROWS,
    SAMPLED_ROWS,
    KeptRows,
    relative_error,
    sample_rows,
    with_forward_errors,
)
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.watching import Call


def test_the_last_rows_are_always_sampled_and_the_others_once():
    rows = sample_rows(5_000, 0)
    assert len(rows) == SAMPLED_ROWS + LAST_ROWS == len(set(rows.tolist()))
    assert rows[-LAST_ROWS:].tolist() == list(range(5_000 - LAST_ROWS, 5_000))
    assert torch.equal(rows, rows.sort().values)
    assert sample_rows(100, 0).tolist() == list(range(100))


def kept(inputs, rows, out):
    found = KeptRows(rows)
    found.heard(Call(0, inputs, None, out))
    return found


def test_a_routed_layers_forward_error_is_the_relative_error_of_its_sampled_rows(oracle, config):
    inputs, rows = oracle.draw_inputs(1), sample_rows(700, 0)
    settings = replace(config, segment_tokens=320)
    session = RoutingSession(settings, profile=oracle.PROFILE, auditor=RowAuditor(rows=None))
    mine, exact = session.attend(inputs, layer=0), oracle.attention(inputs).float()
    routed, dense = kept(inputs, rows, mine), kept(inputs, rows, exact)
    assert torch.equal(routed.outputs[0], mine[:, :, rows])
    record = with_forward_errors(session.trace.record(), routed, dense)
    wanted = relative_error(mine[:, :, rows], exact[:, :, rows])
    assert record.layers[0].forward_error == pytest.approx(wanted) and wanted > 1e-3
    assert len({audit.segment for audit in record.audits}) == 2
    firsts = {choice.segment: (choice.first_token, choice.tokens) for choice in record.choices}
    for audit in record.audits:
        first, tokens = firsts[audit.segment]
        own = rows[(rows >= first) & (rows < first + tokens)]
        head = relative_error(mine[0, audit.head, own], exact[0, audit.head, own])
        assert audit.forward_error == pytest.approx(head)
