"""What the audit keeps of each KV block and of the worst rows, against a materialised float64 softmax. CPU only."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.audit.passages import LOST_BLOCKS, WORST_ROWS, plan_reads
from routesparse.engine.audit.rows import Executed, RowAuditor
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.record.block_reads import within_bytes
from routesparse.engine.rows import BlockReadsRow


@pytest.fixture
def audited(oracle, decided):
    """(inputs, decision, what a full audit found, mask of the chosen candidate per (batch, head))."""
    inputs, decision, _ = decided
    settings = LayerSettings(oracle.SMALL, 0.6, oracle.PROFILE)
    dense_rows = torch.zeros(decision.batch, decision.heads, decision.segment.query_blocks, dtype=torch.bool)
    found = RowAuditor(None).audit(
        inputs, decision, settings, Executed(dense_attention(inputs, None), dense_rows)
    )
    masks = {
        (b, h): oracle.plan_of_candidate(
            inputs, decision.segment, decision.candidates, decision.indices, int(c)
        ).to_mask()[b, h]
        for (b, h), c in np.ndenumerate(decision.choice)
    }
    return inputs, decision, found, masks


def by_block(weights, block):
    """Sums over KV blocks, float64 [rows, N]."""
    padding = -weights.shape[1] % block
    return torch.nn.functional.pad(weights, (0, padding)).view(len(weights), -1, block).sum(-1).numpy()


def truth(oracle, inputs, decision, mask, b, h):
    """Attention on each KV block, and the part that the mask leaves out, of every audited row."""
    low = max(0, int(inputs.first_keys()[b]) - decision.segment.position)
    weights = oracle.softmax(inputs)[0][b, h, low : decision.segment.body]
    kept = weights * mask[low : decision.segment.body]
    block = decision.segment.block_k
    return low, by_block(weights, block), by_block(weights - kept, block)


def test_the_attention_of_each_block_and_what_is_lost_of_it_are_the_means_over_the_rows(oracle, audited):
    inputs, decision, found, masks = audited
    assert len(found.block_reads) == decision.sparse.sum()
    for row in found.block_reads:
        _, mass, lost = truth(
            oracle, inputs, decision, masks[row.batch_index, row.head], row.batch_index, row.head
        )
        assert (row.cells, row.pool) == (decision.segment.key_blocks, 1)
        np.testing.assert_allclose(np.frombuffer(row.mass, "<f2"), mass.mean(0), atol=2e-4)
        np.testing.assert_allclose(np.frombuffer(row.lost, "<f2"), lost.mean(0), atol=2e-4)


def test_the_worst_rows_and_their_lost_blocks_are_those_of_the_float64_truth(oracle, audited):
    inputs, decision, found, masks = audited
    for unit in found.units:
        place = (unit.batch_index, unit.head)
        rows = [w for w in found.worst_rows if (w.batch_index, w.head) == place]
        low, _, lost = truth(oracle, inputs, decision, masks[place], *place)
        assert [w.rank for w in rows] == list(range(WORST_ROWS))
        assert len({w.position for w in rows}) == WORST_ROWS
        assert rows[0].error == pytest.approx(unit.max_error, rel=1e-4)
        assert [w.error for w in rows] == sorted((w.error for w in rows), reverse=True)
        for worst in rows:
            expected = lost[worst.position - decision.segment.position - low]
            blocks, mass = np.frombuffer(worst.lost_blocks, "<i4"), np.frombuffer(worst.lost_mass, "<f4")
            assert len(blocks) <= LOST_BLOCKS
            np.testing.assert_allclose(mass, np.sort(expected)[::-1][: len(mass)], atol=2e-5)
            np.testing.assert_allclose(expected[blocks], mass, atol=2e-5)
            assert worst.mass + expected.sum() == pytest.approx(1, abs=1e-4)


def test_reads_are_the_share_of_later_rows_and_keys_in_the_plan(oracle, audited):
    inputs, decision, _, masks = audited
    segment = decision.segment
    seen = 0
    for (b, h), mask in masks.items():
        reads = plan_reads(decision, b, h)
        # Padding is no row of a prompt that is kept as text; its level map is not asked for.
        for block in range(-(-int(inputs.first_keys()[b]) // segment.block_k), segment.key_blocks):
            end = (block + 1) * segment.block_k
            first = -(-max(0, end - segment.position) // segment.block_q) * segment.block_q
            later = mask[
                first : segment.body // segment.block_q * segment.block_q, end - segment.block_k : end
            ]
            if later.numel():
                seen += 1
                assert reads[block] == pytest.approx(float(later.double().mean()), abs=1e-9)
            else:
                assert reads[block] == 0
    assert seen > 100


def test_an_audit_of_some_rows_names_each_row_once(oracle, decided):
    inputs, decision, _ = decided
    settings = LayerSettings(oracle.SMALL, 0.6, oracle.PROFILE)
    dense_rows = torch.zeros(decision.batch, decision.heads, decision.segment.query_blocks, dtype=torch.bool)
    ran = Executed(dense_attention(inputs, None), dense_rows)
    for count in (3, 400):
        found = RowAuditor(count).audit(inputs, decision, settings, ran)
        for unit in found.units:
            rows = [w for w in found.worst_rows if (w.batch_index, w.head) == (unit.batch_index, unit.head)]
            assert 0 < len(rows) == len({w.position for w in rows}) <= WORST_ROWS


def blocks_row(cells):
    random = np.random.default_rng(0)
    mass = random.dirichlet(np.ones(cells)).astype("<f2")
    reads = np.zeros(cells, np.uint8)
    reads[1] = 1
    return BlockReadsRow("", 0, 0, 0, 0, cells, 1, reads.tobytes(), mass.tobytes(), (mass / 2).tobytes())


def test_block_reads_of_a_large_run_are_pooled_until_they_fit():
    rows = [replace(blocks_row(37), head=head) for head in range(4)]
    assert [r.pool for r in within_bytes("a", rows, 5 * 4 * 37)] == [1] * 4
    small = list(within_bytes("a", rows, 5 * 4 * 10))
    assert [(r.pool, r.cells, r.run_id) for r in small] == [(4, 10, "a")] * 4
    whole, part = (np.frombuffer(r.mass, "<f2").astype(float) for r in (rows[0], small[0]))
    np.testing.assert_allclose(part, [whole[i : i + 4].sum() for i in range(0, 37, 4)], rtol=1e-3)
    # A cell that is read at all is never 0.
    assert list(np.frombuffer(small[0].reads, np.uint8)[:2]) == [1, 0]
