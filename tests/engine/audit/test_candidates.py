"""The truth about every candidate against a materialised float64 softmax. CPU only."""

import numpy as np
import pytest
import torch

from routesparse.engine.audit.candidates import candidate_errors, candidate_masses, draw_body_rows
from routesparse.engine.audit.rows import measure_rows


def test_masses_and_errors_of_all_candidates_equal_the_float64_truth(oracle, decided):
    inputs, decision, config = decided
    rows = draw_body_rows(inputs, decision, 24, seed=0)
    mass = candidate_masses(inputs, decision, rows, config)
    errors = candidate_errors(inputs, decision, rows)
    weights, sink = oracle.softmax(inputs)
    place = rows + decision.segment.first
    weights, sink = oracle.at_rows(weights, place), sink.gather(2, place)
    values = inputs.v.double().repeat_interleave(inputs.groups, 1)
    exact = weights @ values
    for candidate in decision.candidates:
        mask = oracle.plan_of_candidate(
            inputs, decision.segment, decision.candidates, decision.indices, candidate.index
        ).to_mask()
        kept = weights * oracle.at_rows(mask, place)
        wanted = kept.sum(-1) + sink
        np.testing.assert_allclose(mass[..., candidate.index], wanted, atol=2e-5)
        lost = (kept @ values) / wanted.unsqueeze(-1) - exact
        relative = lost.flatten(2).norm(dim=-1) / exact.flatten(2).norm(dim=-1)
        np.testing.assert_allclose(errors[..., candidate.index], relative, atol=1e-4)


def test_the_chosen_candidate_has_the_same_truth_as_in_the_units_own_audit(decided):
    inputs, decision, config = decided
    rows = draw_body_rows(inputs, decision, 40, seed=3).sort(-1).values
    mass = candidate_masses(inputs, decision, rows, config)
    errors = candidate_errors(inputs, decision, rows)
    sparse = np.flatnonzero(decision.sparse)
    assert len(sparse) >= 2
    for unit in sparse:
        b, h = divmod(int(unit), decision.heads)
        found = measure_rows(inputs, decision, b, h, rows[b, h])
        chosen = int(decision.choice[b, h])
        np.testing.assert_allclose(mass[b, h, :, chosen], found["mass"], atol=1e-5)
        relative = np.linalg.norm(found["error"]) / np.linalg.norm(found["norm"])
        assert errors[b, h, chosen].item() == pytest.approx(relative, abs=1e-5)


def test_rows_are_real_body_rows_and_every_unit_has_its_own(decided):
    inputs, decision, _ = decided
    rows = draw_body_rows(inputs, decision, 200, seed=0)
    assert (rows < decision.segment.body).all()
    assert (rows + decision.segment.position >= inputs.first_keys().view(-1, 1, 1)).all()
    assert len({tuple(r.tolist()) for r in rows.flatten(0, 1)}) == decision.batch * decision.heads
    assert not torch.equal(rows, draw_body_rows(inputs, decision, 200, seed=1))


def test_all_rows_are_the_whole_body_in_order(decided):
    inputs, decision, _ = decided
    rows = draw_body_rows(inputs, decision, None, seed=0)
    assert torch.equal(rows[-1, -1], torch.arange(decision.segment.body))


def test_rows_that_see_only_the_first_keys_are_measured_too(decided, monkeypatch):
    inputs, decision, config = decided
    rows = draw_body_rows(inputs, decision, None, seed=0)[..., :150]
    whole = candidate_masses(inputs, decision, rows, config)
    monkeypatch.setattr("routesparse.engine.audit.candidates.ROWS_AT_ONCE", 7)
    monkeypatch.setattr("routesparse.kernels.block_lse.naive.KEY_CHUNK", 64)
    monkeypatch.setattr("routesparse.kernels.recent_marginals.naive.KEY_CHUNK", 64)
    torch.testing.assert_close(candidate_masses(inputs, decision, rows, config), whole, atol=1e-5, rtol=0)
