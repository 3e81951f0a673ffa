"""What pages learn about words: shares of each block over segments, worst rows, offsets of tokens. No GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.store import executed_reads, word_queries
from routesparse.engine.store.block_shares import block_shares


@pytest.fixture
def record(factory):
    return factory.make_record(layers=2, heads=3, segments=2, tokens=4096, probe_columns=64, hardness=0.9)


def later(record, segment, block):
    """Whole query blocks of a segment's body that begin after a KV block."""
    choice = next(c for c in record.choices if c.segment == segment)
    starts = choice.first_token + 128 * np.arange(choice.body_tokens // 128)
    return int((starts >= 64 * (block + 1)).sum())


def test_shares_of_all_segments_weigh_each_by_its_later_rows(record, take_in):
    view = take_in(record)
    shares = block_shares(view, record.run.run_id, None)
    assert (shares.pool, shares.source, shares.reads.shape) == (1, "audit", (2, 3, 64))
    rows = {(r.layer, r.head, r.segment): np.frombuffer(r.reads, np.uint8) / 255 for r in record.block_reads}
    dense = {(c.layer, c.head, c.segment) for c in record.choices if c.pattern == "dense"}
    for layer in range(2):
        for head in range(3):
            for block in (0, 3, 20, 40, 61):
                read = rows_after = 0
                for segment in range(2):
                    weight = later(record, segment, block)
                    unit = (layer, head, segment)
                    share = 1.0 if unit in dense else rows[unit][block] if block < len(rows[unit]) else 0
                    read, rows_after = read + weight * share, rows_after + weight
                expected = read / rows_after if rows_after else np.nan
                np.testing.assert_allclose(shares.reads[layer, head, block], expected, rtol=1e-5)
    # Only the tail comes after the last blocks.
    assert np.isnan(shares.reads[:, :, -2:]).all()


def test_dense_heads_read_everything_and_lose_nothing(record, take_in):
    choices = tuple(
        replace(c, pattern="dense", lower_mass=None) if (c.layer, c.head) == (1, 2) else c
        for c in record.choices
    )
    of_others = {
        name: tuple(row for row in getattr(record, name) if (row.layer, row.head) != (1, 2))
        for name in ("block_reads", "worst_rows")
    }
    view = take_in(replace(record, choices=choices, **of_others))
    shares = block_shares(view, record.run.run_id, 1)
    known = ~np.isnan(shares.reads[1, 2])
    assert known.any() and (shares.reads[1, 2][known] == 1).all()
    assert (shares.lost[1, 2] == 0).all() and np.isnan(shares.mass[1, 2]).all()
    assert np.nansum(shares.lost[0, 0]) > 0


def test_an_older_run_answers_from_the_masks_of_its_probe(record, take_in):
    view = take_in(replace(record, block_reads=(), worst_rows=()))
    shares = block_shares(view, record.run.run_id, 0)
    assert shares.source == "probe" and shares.lost is shares.mass is None
    run = record.run
    _, of_units, pool = executed_reads.unit_shares(view.bundle(run.run_id), 0, 0, run.block_k)
    mean = np.repeat(np.nanmean(of_units, 0), pool)
    np.testing.assert_allclose(np.nanmean(shares.reads[..., :20], (0, 1)), mean[:20], rtol=1e-5)


def test_a_run_without_probe_and_audit_says_nothing(record, take_in):
    view = take_in(replace(record, block_reads=(), worst_rows=(), audits=(), probes=()))
    assert block_shares(view, record.run.run_id, None) is None
    assert word_queries.worst_rows(view, record.run.run_id, 0, 5).empty
    assert block_shares(view, "deadbeef", None) is None


def test_a_damaged_bundle_is_an_error_that_says_what_to_do(record, take_in):
    view = take_in(record)
    (view.bundle(record.run.run_id) / "block_reads.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(InputError, match="copy the bundle again"):
        block_shares(view, record.run.run_id, 1)


def test_worst_rows_come_worst_first_and_can_be_narrowed(record, take_in):
    view = take_in(record)
    every = word_queries.worst_rows(view, record.run.run_id, 0, 1000)
    assert len(every) == len(record.worst_rows)
    assert list(every["error"]) == sorted((row.error for row in record.worst_rows), reverse=True)
    worst = max(record.worst_rows, key=lambda row: row.error)
    assert every["lost_blocks"].iloc[0] == np.frombuffer(worst.lost_blocks, "<i4").tolist()
    few = word_queries.worst_rows(view, record.run.run_id, 0, 2, worst.layer, worst.head, worst.segment)
    assert len(few) == 2 and few["position"].iloc[0] == worst.position


def test_words_know_where_blocks_and_tokens_stand(record, take_in):
    view = take_in(record)
    words = word_queries.words(view, record.run.run_id)
    assert words.text == record.prompt.text
    start, end = words.span_of_block(3)
    assert words.blocks_of(start, end) == (3, 3)
    assert words.blocks_of(start - 1, end + 1) == (2, 4)
    token = words.span_of_token(3 * 64, 64)
    assert start <= token[0] < token[1] <= end
    assert words.span_of_block(10**6) == (len(words.text), len(words.text))
    older = word_queries.Words(words.text, words.block_starts, None)
    assert older.span_of_token(3 * 64 + 5, 64) == (start, end)
    assert word_queries.words(view, "deadbeef") is None
