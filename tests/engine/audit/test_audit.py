"""The dense audit against a materialised float64 softmax, and what a certificate promised. CPU only."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.audit.rows import Executed, RowAuditor, audit_units, measure_rows
from routesparse.engine.method import attend
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.rows import deviates
from routesparse.engine.runtime.session import RoutingSession

right = attend.sparse_attention


@pytest.fixture
def case(oracle, decided):
    """(inputs, decision, mask of the chosen candidates before the tail override)."""
    inputs, decision, _ = decided
    masks = torch.stack(
        [
            oracle.plan_of_candidate(
                inputs, decision.segment, decision.candidates, decision.indices, int(c)
            ).to_mask()[b, h]
            for (b, h), c in np.ndenumerate(decision.choice)
        ]
    )
    assert decision.sparse.sum() >= 2
    return inputs, decision, masks.unflatten(0, decision.choice.shape)


def truth(oracle, inputs, decision, mask, b, h):
    """mass, error, norm of every row, float64."""
    weights, sink = oracle.softmax(inputs)
    weights, sink = weights[b, h], sink[b, h]
    values = inputs.v[b, h // inputs.groups].double()
    kept = weights * mask[b, h]
    mass = kept.sum(-1) + sink
    exact = weights @ values
    sparse = (kept @ values) / mass.clamp_min(1e-300).unsqueeze(-1)
    return mass.numpy(), (exact - sparse).norm(dim=-1).numpy(), exact.norm(dim=-1).numpy()


def test_audited_rows_equal_the_float64_truth(oracle, case):
    inputs, decision, mask = case
    for unit in np.flatnonzero(decision.sparse):
        b, h = divmod(int(unit), decision.heads)
        low = max(0, int(inputs.first_keys()[b]) - decision.segment.position)
        rows = torch.arange(low, decision.segment.body)
        found = measure_rows(inputs, decision, b, h, rows)
        mass, error, norm = truth(oracle, inputs, decision, mask, b, h)
        np.testing.assert_allclose(found["mass"], mass[low : decision.segment.body], atol=2e-5)
        np.testing.assert_allclose(found["error"], error[low : decision.segment.body], atol=5e-5)
        np.testing.assert_allclose(found["norm"], norm[low : decision.segment.body], atol=5e-5)


def test_a_full_audit_sums_up_the_whole_body(oracle, case):
    inputs, decision, mask = case
    audits = audit_units(inputs, decision, None, seed=0)
    assert [(a.batch_index, a.head) for a in audits] == [
        divmod(int(u), decision.heads) for u in np.flatnonzero(decision.sparse)
    ]
    for a in audits:
        low = max(0, int(inputs.first_keys()[a.batch_index]) - decision.segment.position)
        mass, error, norm = (
            x[low : decision.segment.body]
            for x in truth(oracle, inputs, decision, mask, a.batch_index, a.head)
        )
        assert a.rows == decision.segment.body - low
        assert a.mass == pytest.approx(mass.mean(), abs=1e-5)
        assert a.min_mass == pytest.approx(mass.min(), abs=2e-5)
        assert a.mean_error == pytest.approx(np.linalg.norm(error) / np.linalg.norm(norm), abs=1e-4)
        assert a.max_error == pytest.approx((error / norm).max(), rel=1e-3)
        assert a.violations == 0
        assert a.bound_tight <= a.bound_paper + 1e-6
        assert a.max_error <= a.bound_tight + 1e-4


def test_the_share_of_rows_above_the_row_statement_is_measured(oracle, case):
    inputs, decision, mask = case
    level = 0.9
    assert all(a.row_covered is None for a in audit_units(inputs, decision, 20, seed=0))
    for a in audit_units(inputs, decision, None, seed=0, row_level=level):
        unit = a.batch_index * decision.heads + a.head
        rows = np.sort(decision.certificate_mass[unit, :, int(decision.choice[a.batch_index, a.head])])
        bound = rows[int((1 - level) * (len(rows) + 1)) - 1]
        low = max(0, int(inputs.first_keys()[a.batch_index]) - decision.segment.position)
        mass, _, _ = truth(oracle, inputs, decision, mask, a.batch_index, a.head)
        wanted = (mass[low : decision.segment.body] >= bound).mean()
        assert a.row_covered == pytest.approx(wanted, abs=0.01)


def test_a_row_audit_draws_body_rows_of_its_own(oracle, case):
    inputs, decision, _ = case
    audits = audit_units(inputs, decision, 40, seed=0)
    assert all(a.rows == 40 for a in audits)
    assert audit_units(inputs, decision, 40, seed=0) == audits != audit_units(inputs, decision, 40, seed=1)
    assert len({(a.mass, a.min_mass) for a in audits}) == len(audits)
    # Rows outside of the body, or of padding, would see other keys.
    outside = replace(inputs, q=inputs.q.clone())
    outside.q[:, :, decision.segment.first + decision.segment.body :] = torch.nan
    for b, first in enumerate(inputs.first_keys().tolist()):
        outside.q[b, :, : max(0, first - decision.segment.position)] = torch.nan
    assert audit_units(outside, decision, 40, seed=0) == audits


def test_a_value_that_is_nan_violates_every_bound(oracle, case):
    inputs, decision, _ = case
    v = inputs.v.clone()
    v[:, :, -40] = float("nan")
    broken = audit_units(replace(inputs, v=v), decision, 20, seed=0)
    assert all(a.violations == 20 for a in broken)


@pytest.mark.parametrize(("rows", "depth"), [(64, "rows"), (None, "full")])
def test_a_session_audits_every_sparse_unit_and_no_dense_one(oracle, rows, depth):
    routed = RoutingSession(
        replace(oracle.SMALL, tau=0.5, gate_threshold=0.6, segment_tokens=320),
        profile=oracle.PROFILE,
        auditor=RowAuditor(rows),
    )
    inputs = oracle.draw_inputs(2)
    routed.attend(inputs, layer=0)
    record = routed.trace.record()
    sparse = {(c.layer, c.head, c.segment) for c in record.choices if c.pattern != "dense"}
    for found in (record.audits, record.worst_rows, record.block_reads):
        assert sparse and {(a.layer, a.head, a.segment) for a in found} == sparse
        assert {a.run_id for a in found} == {record.run.run_id}
    assert record.run.audit_depth == depth
    assert record.run.audit_rows == (rows or max(c.body_tokens for c in record.choices))


def attended(oracle, audited, dtype="float32", kernel=None, monkeypatch=None, **inputs):
    """The record of a routed and audited prompt."""
    routed = RoutingSession(
        replace(oracle.SMALL, tau=0.4, gate_threshold=0.5, segment_tokens=320),
        profile=oracle.PROFILE,
        auditor=RowAuditor(audited),
    )
    if kernel is not None:
        monkeypatch.setattr(attend, "sparse_attention", kernel)
    drawn = oracle.draw_inputs(1, **({"n_q": 713} | inputs), dtype=getattr(torch, dtype))
    routed.attend(drawn, layer=0)
    return routed.trace.record()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "inputs", [{}, {"batch": 2, "key_start": [0, 137]}, {"softcap": 3.0}, {"sinks": True}], ids=str
)
def test_what_ran_is_what_the_audit_rebuilds_up_to_rounding(oracle, dtype, inputs):
    record = attended(oracle, 200, dtype, **inputs)
    assert len({a.segment for a in record.audits}) == 2
    found = [a.executed_error for a in record.audits]
    assert min(found) > 0 and not any(deviates(error, dtype) for error in found)


def is_off_in_one_row(q, k, v, plan, scale):
    """A kernel whose last thread writes one row of each head from its neighbour."""
    out, lse = right(q, k, v, plan, scale)
    return torch.where((torch.arange(out.shape[2]) % 32 == 31)[:, None], out.roll(1, 2), out), lse


def is_nan_in_one_column(q, k, v, plan, scale):
    out, lse = right(q, k, v, plan, scale)
    out[..., 3] = torch.nan
    return out, lse


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", [is_off_in_one_row, is_nan_in_one_column])
def test_a_broken_kernel_is_caught_in_every_unit(oracle, monkeypatch, dtype, kernel):
    record = attended(oracle, 200, dtype, kernel, monkeypatch)
    assert record.audits and all(deviates(a.executed_error, dtype) for a in record.audits)


def test_a_kernel_that_skips_a_block_is_caught_in_its_head_alone(oracle, monkeypatch):
    def kernel(q, k, v, plan, scale):
        # A hidden sink block: every row reads it.
        out, lse = right(q, k, v, plan, scale)
        out[:, 1] = right(q, k, v, replace(plan, key_start=torch.tensor([16], dtype=torch.int32)), scale)[0][
            :, 1
        ]
        return out, lse

    record = attended(oracle, 200, "float32", kernel, monkeypatch)
    caught = {a.head for a in record.audits if deviates(a.executed_error, "float32")}
    assert caught == {1} and len({a.head for a in record.audits}) > 1


def test_rows_that_execution_made_dense_are_compared_with_the_dense_output(oracle, case):
    """As where a row's list overflows: the choice says sparse, the row reads everything."""
    inputs, decision, _ = case
    out = dense_attention(inputs, None)
    blocks = torch.zeros(*decision.choice.shape, decision.segment.query_blocks, dtype=torch.bool)
    for dense in (True, False):
        executed = Executed(out, blocks | dense)
        found = [a.executed_error for a in audit_units(inputs, decision, None, seed=0, executed=executed)]
        assert all(deviates(error, "float32") != dense for error in found)
    assert all(a.executed_error is None for a in audit_units(inputs, decision, 20, seed=0))


def test_certificates_cover_on_real_attention(oracle, lab):
    """At least the promised .95 of the sparse units of 2 prompts x 4 layers x 8 heads."""
    audits = []
    for kind in ("prose", "needle"):
        routed = RoutingSession(lab.config, profile=oracle.PROFILE, auditor=RowAuditor(512))
        for layer, inputs in list(lab.layers(kind).items())[1::2]:
            routed.attend(inputs, layer=layer)
        audits += routed.trace.record().audits
    assert len(audits) > 30
    assert sum(a.violations for a in audits) == 0
    assert np.mean([a.covered for a in audits]) >= 0.95
    assert not any(deviates(a.executed_error, "float32") for a in audits)
