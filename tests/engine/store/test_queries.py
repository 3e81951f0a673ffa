"""The pages' reads: filters, links, candidates, probes. No GPU."""

from __future__ import annotations

import numpy as np
import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.store import queries, thumbnail
from routesparse.engine.store.queries import RunFilter, Unit


def test_runs_that_share_their_label_get_whole_ids_in_links(filled, take_in, factory, small):
    twin = "20261120-d4e5b678"
    take_in(factory.rename(small, twin))
    assert queries.short_id(filled, twin) == twin


@pytest.fixture
def filled(take_in, record, small, factory):
    return take_in(record, factory.rename(small, "3f9a1c20ffff0000"))


def test_filters_narrow_the_list(filled, take_in, factory):
    prose = factory.make_record("90ab", name="Ledger.txt", domain="prose", layers=1, heads=1, segments=1)
    take_in(prose)
    assert len(queries.runs(filled)) == 3
    assert list(queries.runs(filled, RunFilter(domains=("prose",)))["run_id"]) == ["90ab"]
    assert list(queries.runs(filled, RunFilter(text="ledger"))["run_id"]) == ["90ab"]
    assert len(queries.runs(filled, RunFilter(text="3f9a"))) == 2
    assert queries.runs(filled, RunFilter(models=("other",))).empty
    assert queries.filter_values(filled)["domain"] == ["needles", "prose"]


def test_filter_text_is_no_sql(filled):
    assert queries.runs(filled, RunFilter(text="' OR 1=1 --")).empty


def test_short_ids_are_unique_and_resolve(filled, record):
    short = queries.short_id(filled, record.run.run_id)
    assert short == "d4e5b678" and queries.resolve(filled, short) == record.run.run_id
    assert queries.resolve(filled, record.run.run_id) == record.run.run_id
    with pytest.raises(InputError, match="could be any of"):
        queries.resolve(filled, "3f9a1c20")
    with pytest.raises(InputError, match="no run"):
        queries.resolve(filled, "deadbeef")


def test_candidates_carry_the_certificates_that_were_tested(filled, record):
    event = record.fallbacks[0]
    unit = Unit(record.run.run_id, event.layer, event.head, event.segment)
    found = queries.candidates(filled, unit).set_index("candidate")
    assert len(found) == 21
    assert found.loc[event.from_candidate, "lower_mass"] == event.lower_mass
    assert found["chosen"].sum() == 1
    assert found["lower_mass"].notna().sum() <= 3
    assert len(queries.fallbacks(filled, unit)) >= 1


def test_layers_count_their_fallbacks(filled, record):
    layers = queries.layers(filled, record.run.run_id)
    assert list(layers["layer"]) == list(range(8))
    assert layers["units"].sum() == record.run.units
    assert layers["expanded"].sum() == record.run.expanded_units


def test_thumbnail_keeps_the_peaks_of_the_full_probe(filled, record):
    unit = Unit(record.run.run_id, 3, 4, 1)
    thumb, full = queries.probe_thumbnail(filled, unit), queries.probe_full(filled, unit)
    assert full.mass.shape == (272, 128) and thumb.mass.shape == (55, 128)
    pooled = np.maximum.reduceat(full.mass, np.arange(0, 272, thumb.row_pool), axis=0)
    assert np.abs(np.sqrt(thumb.mass) - np.sqrt(pooled)).max() < 1 / 255
    assert thumb.positions[-1] == full.positions[-1]
    assert thumb.kinds[-1] & 1


def test_thumbnail_of_zeros_and_of_not_a_number_is_black():
    mass = np.array([[0, np.nan], [np.inf, 0]], "<f2")
    key = dict.fromkeys(("batch_index", "layer", "head", "segment", "pool"), 0)
    positions, kinds = np.array([1, 2], "<i4").tobytes(), bytes([0, 1])
    row = {**key, "rows": 2, "columns": 2, "scale": 1.0, "positions": positions, "kinds": kinds}
    assert thumbnail.of_probe({**row, "mass": mass.tobytes()})["thumb"] == bytes(4)
