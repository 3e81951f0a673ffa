"""Runs that were submitted together in the store: listed per sweep, older bundles without one still read. No GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routesparse.engine.store import compare_queries
from routesparse.engine.store.owner_view import OwnerView

ANN, BOB = "a" * 32, "b" * 32


@pytest.fixture
def stored(small, factory, store, take_in):
    """Two sweeps of Ann's with two and one runs, a run of hers without, and one of Bob's under her sweep's id."""
    records = []
    for place, (owner, sweep) in enumerate(((ANN, "5a"), (ANN, "5a"), (ANN, "5b"), (ANN, None), (BOB, "5a"))):
        record = factory.rename(small, f"{place}0000000feedbeef")
        run = replace(record.run, owner=owner, sweep=sweep, created_at=f"2026-11-2{place}T00:00:00Z")
        records.append(replace(record, run=run))
    take_in(*records)
    return store


def test_the_runs_of_a_sweep_are_its_owner_s_oldest_first(stored):
    found = compare_queries.runs_of(OwnerView(stored, ANN), "5a")
    assert [run_id[0] for run_id in found["run_id"]] == ["0", "1"]
    assert "uncertified_units" in found and set(found["sweep"]) == {"5a"}
    assert list(compare_queries.runs_of(OwnerView(stored, BOB), "5a")["run_id"].str[0]) == ["4"]
    assert compare_queries.runs_of(OwnerView(stored, None), "5a").empty
    assert compare_queries.runs_of(OwnerView(stored, ANN), "").empty


def test_sweeps_are_listed_newest_first_without_single_runs(stored):
    found = compare_queries.sweeps(OwnerView(stored, ANN))
    assert list(zip(found["sweep"], found["runs"], strict=True)) == [("5b", 1), ("5a", 2)]
    assert compare_queries.sweeps(OwnerView(stored, None)).empty
