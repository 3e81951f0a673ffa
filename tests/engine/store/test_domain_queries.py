"""What the page Domains reads of stored runs. No GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routesparse.engine.store import bundle, domain_queries, spool
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.owner_view import OwnerView
from tests.engine.store import factory

RUN = "3f9a1c20d4e5b678"


@pytest.fixture
def store(tmp_path):
    """One run of two segments, of which the first keeps .1 and the second .5 of every head."""
    made = factory.make_record(RUN, layers=2, heads=2, tokens=4096, probe_columns=32)
    choices = tuple(replace(one, density=0.5 if one.segment else 0.1) for one in made.choices)
    bundle.write_bundle(replace(made, choices=choices), tmp_path / "spool")
    opened = Store(tmp_path / "routesparse.duckdb")
    assert spool.ingest_spool(opened, tmp_path / "spool").ingested
    yield OwnerView(opened, None)
    opened.close()


def test_a_head_s_density_weighs_its_segments_by_their_causal_area(store):
    found = domain_queries.heads(store, [RUN])
    assert len(found) == 4
    # Two segments of one length: areas of 1 and 3.
    assert found["density"].tolist() == pytest.approx([(0.1 + 3 * 0.5) / 4] * 4, abs=0.01)
