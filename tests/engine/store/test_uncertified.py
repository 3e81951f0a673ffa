"""Units without certified mass: the engine and the pages define and count them alike. No GPU."""

import math
from dataclasses import replace

import pytest

from routesparse.engine.rows import is_uncertified
from routesparse.engine.store import compare_queries, fallback_queries, queries

TAU = 0.9
MASSES = [None, math.nan, 0.0, 0.5, math.nextafter(TAU, 0.0), TAU, math.nextafter(TAU, 1.0), 1.0]


@pytest.fixture
def stored(take_in, small):
    """store_with(masses): a run whose units have these certificates, all sparse but those of pattern dense."""

    def store_with(pairs):
        choices = tuple(
            replace(small.choices[0], layer=0, head=i, pattern=pattern, lower_mass=mass)
            for i, (pattern, mass) in enumerate(pairs)
        )
        run = replace(small.run, tau=TAU, units=len(choices), heads=len(choices))
        record = replace(small, run=run, choices=choices, candidates=(), fallbacks=(), audits=(), probes=())
        return record, take_in(record)

    return store_with


def test_the_pages_and_the_engine_call_the_same_units_uncertified(stored):
    pairs = [(pattern, mass) for pattern in ("a_shape", "floor", "dense") for mass in MASSES]
    record, view = stored(pairs)
    shown = queries.choices(view, record.run.run_id, 0)["uncertified"].tolist()
    told = [is_uncertified(pattern, mass, TAU) for pattern, mass in pairs]
    assert shown == told
    assert told == [pattern != "dense" and mass not in (TAU, *MASSES[-2:]) for pattern, mass in pairs]
    assert [c.head for c in record.uncertified] == [i for i, missed in enumerate(told) if missed]


def test_every_count_is_the_sum_of_these_units(stored):
    record, view = stored([("a_shape", 0.5), ("floor", 0.95), ("dense", None), ("a_shape", 0.89)])
    run_id = record.run.run_id
    assert len(record.uncertified) == 2
    assert queries.runs(view)["uncertified_units"].tolist() == [2]
    assert queries.layers(view, run_id)["uncertified"].tolist()[0] == 2
    assert fallback_queries.kinds_by_layer(view, [run_id])["uncertified"].sum() == 2
    assert compare_queries.choices_of_runs(view, [run_id])["uncertified"].sum() == 2
