"""Which share of rows read a block, against a count by hand over a run small enough to write down. No GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine import probe_masks
from routesparse.engine.store import bundle, executed_reads, spool
from routesparse.engine.store.owner_view import OwnerView

RUN = "5eed5eed5eed5eed"
COLUMNS, BLOCK = 4, 64
POSITIONS = np.array([70, 130, 250], "<i4")  # rows in key blocks 1, 2 and 3


def levels(a_shape):
    """Level maps of four families [3, 4]: the one of a_shape, the others never read."""
    never = np.full((len(POSITIONS), COLUMNS), probe_masks.NEVER, np.uint8)
    return probe_masks.pack(np.stack([a_shape, never, never, never])).tobytes()


@pytest.fixture
def take_in(factory, store, home):
    """take_in(**changes of the probes): a run of two heads; head 0 ran a_shape's second budget, head 1 was dense."""
    made = factory.make_record(
        RUN, layers=1, heads=2, segments=1, tokens=256, probe_columns=COLUMNS, audit=False
    )
    # Level 1 ran: it reads 0 and 1, not 2.
    seen = np.array([[0, 0, 15, 15], [2, 0, 0, 15], [0, 1, 2, 0]], np.uint8)

    def write(body=256, **changes):
        probes = tuple(
            replace(
                probe,
                rows=len(POSITIONS),
                columns=COLUMNS,
                positions=POSITIONS.tobytes(),
                kinds=bytes(len(POSITIONS)),
                mass=np.zeros((len(POSITIONS), COLUMNS), "<f2").tobytes(),
                **{"masks": levels(seen), "mask_columns": COLUMNS, "mask_pool": 1, **changes},
            )
            for probe in made.probes
        )
        ran = {0: (1, "a_shape"), 1: (factory.DENSE, "dense")}
        choices = tuple(
            replace(
                c,
                candidate=ran[c.head][0],
                pattern=ran[c.head][1],
                first_token=0,
                tokens=256,
                body_tokens=body,
            )
            for c in made.choices
        )
        bundle.write_bundle(replace(made, probes=probes, choices=choices), home / "spool")
        spool.ingest_spool(store)
        return OwnerView(store, None)

    return write


def reads(view):
    """Of both heads, or of none: shares [heads, cells], KV blocks in a cell."""
    units, shares, pool = executed_reads.unit_shares(view.bundle(RUN), 0, 0, BLOCK)
    assert len(units) == len(shares)
    return shares, pool


def test_share_is_of_the_masks_that_ran(take_in):
    shares, pool = reads(take_in())
    # Head 0: block 0 is read by two rows of three, block 1 by all three, block 2 by one of two, block 3 by its own.
    np.testing.assert_allclose(shares, [[2 / 3, 1, 1 / 2, 1], [1, 1, 1, 1]])
    assert pool == 1


def test_tail_is_not_counted_and_what_only_it_reads_is_unknown(take_in):
    np.testing.assert_allclose(reads(take_in(body=192))[0], [[1 / 2, 1, 1, np.nan], [1, 1, 1, np.nan]])


def test_run_without_masks_is_not_recorded(take_in):
    """Never 0: nobody measured it."""
    assert len(reads(take_in(masks=None, mask_columns=None, mask_pool=None))[0]) == 0


def test_pooled_cells_keep_their_width(take_in):
    two = probe_masks.pack(np.zeros((4, len(POSITIONS), 2), np.uint8)).tobytes()
    shares, pool = reads(take_in(masks=two, mask_columns=2, mask_pool=2))
    np.testing.assert_allclose(shares, [[1, 1], [1, 1]])
    assert pool == 2
