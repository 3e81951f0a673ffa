"""The store's macros compute what the engine's definitions compute. CPU only."""

import math
from itertools import product

import numpy as np

from routesparse.engine.method import families
from routesparse.engine.method.router import gate_statistic
from routesparse.engine.rows import OUTCOMES, is_layer_uncertified, outcome
from routesparse.engine.store.owner_view import OwnerView


def test_the_macro_of_g_is_the_definition(store):
    mass, recent_mass = np.random.default_rng(0).random((2, 200))
    view = OwnerView(store, None)
    found = view.rows(
        "SELECT gate_statistic(mass, recent_mass) FROM (SELECT unnest(?) AS mass, unnest(?) AS recent_mass)",
        [mass.tolist(), recent_mass.tolist()],
    )
    assert np.array(found)[:, 0].tolist() == gate_statistic(mass, recent_mass).tolist()
    assert view.rows("SELECT gate_statistic(NULL, 0.5), gate_statistic(0.5, NULL)") == [(None, None)]


def test_the_macro_of_the_outcome_is_the_definition(store):
    pairs = list(product(families.in_order(), (None, "expand", "dense")))
    patterns, fallbacks = map(list, zip(*pairs, strict=True))
    found = OwnerView(store, None).rows(
        "SELECT outcome(pattern, fallback) FROM (SELECT unnest(?) AS pattern, unnest(?) AS fallback)",
        [patterns, fallbacks],
    )
    assert [row[0] for row in found] == [outcome(*pair) for pair in pairs]
    assert {row[0] for row in found} == set(OUTCOMES)


def test_the_macro_of_an_uncertified_layer_is_the_definition(store):
    cases = list(product((None, math.nan, 0.0, 0.69, 0.7, 1.0), (None, 0.7), (True, False)))
    masses, taus, sparse = map(list, zip(*cases, strict=True))
    found = OwnerView(store, None).rows(
        "SELECT layer_uncertified(mass, tau, sparse) "
        "FROM (SELECT unnest(?::DOUBLE[]) AS mass, unnest(?::DOUBLE[]) AS tau, unnest(?::BOOLEAN[]) AS sparse)",
        [masses, taus, sparse],
    )
    assert [row[0] for row in found] == [is_layer_uncertified(*case) for case in cases]
    assert sum(row[0] for row in found) == 4
