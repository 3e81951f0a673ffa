"""All thumbnails of a segment in one raster. No GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine.store import queries, sprite


@pytest.fixture
def stored(take_in, factory):
    """A run of 4 x 4 heads whose head (1, 2) has no probe in segment 0."""
    record = factory.make_record(layers=4, heads=4, tokens=4096, probe_columns=32)
    kept = tuple(p for p in record.probes if (p.layer, p.head, p.segment) != (1, 2, 0))
    return take_in(replace(record, probes=kept)), record.run.run_id


def test_every_tile_is_the_thumbnail_of_its_head_pooled_by_maximum(stored):
    store, run_id = stored
    found = sprite.probe_sprite(store, run_id, 0, 0, (4, 4))
    for layer, head in ((0, 0), (3, 1)):
        thumb = queries.probe_thumbnail(store, queries.Unit(run_id, layer, head, 0))
        tile = found.values[
            layer * found.height : (layer + 1) * found.height, head * found.width : (head + 1) * found.width
        ]
        peak = thumb.mass.max()
        np.testing.assert_allclose(np.square(tile / 255.0).max(0), (thumb.mass / peak).max(0), atol=1e-6)
    assert found.known.sum() == 15 and not found.known[1, 2]


def test_a_sprite_stays_within_its_side_and_says_what_a_pixel_holds(stored, monkeypatch):
    store, run_id = stored
    whole = sprite.probe_sprite(store, run_id, 1, 0, (4, 4))
    monkeypatch.setattr(sprite, "MAX_SIDE", 40)
    small = sprite.probe_sprite(store, run_id, 1, 0, (4, 4))
    assert small.values.shape == (40, 40)
    assert small.block_pool == -(-whole.width // 10) * whole.block_pool
    assert small.values.max() == whole.values.max() == 255, "a single peak survives pooling"


def test_without_a_probe_there_is_no_sprite(stored):
    store, run_id = stored
    assert sprite.probe_sprite(store, run_id, 7, 0, (4, 4)) is None
    assert sprite.probe_sprite(store, "unknown", 0, 0, (4, 4)) is None
