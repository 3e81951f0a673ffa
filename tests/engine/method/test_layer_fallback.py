"""Step 5 of the policy "priced": heads and layers climb nested levels; what is claimed and how often it is wrong."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.method.layer_fallback import Climb, climb, levels_above, next_levels, read_climb
from routesparse.engine.method.records import Candidate

CONFIG = RouterConfig(policy="priced", tau_layer=0.8, tau_head=0.5, max_tests=3)
ROWS = 128
# Two families of nested levels, three and four, then dense.
CANDIDATES = tuple(
    Candidate(i, pattern, level)
    for i, (pattern, level) in enumerate(
        [*(("a_shape", n) for n in range(3)), *(("floor", n) for n in range(4)), ("dense", 0)]
    )
)
COST = np.array([10.0, 20, 40, 10, 20, 40, 60, 100])
DENSE = len(CANDIDATES) - 1


def run(masses, choice, config=CONFIG, cost=COST, batch=1):
    """masses [U, rows, C] or [U, C] for constant rows; choice of each unit."""
    masses, choice = np.asarray(masses, float), np.asarray(choice)
    if masses.ndim == 2:
        masses = np.repeat(masses[:, None], ROWS, 1)
    costs = np.tile(cost, (len(choice), 1))
    found = climb(*map(torch.from_numpy, (costs, masses, choice)), CANDIDATES, config, batch)
    return read_climb(Climb(**{name: x.numpy() for name, x in vars(found).items()}), masses, config, batch)


def heads(*floors, a_shape=0.99):
    """One unit a tuple: masses of the floor's four levels."""
    return [[a_shape, a_shape, a_shape, *levels, 1.0] for levels in floors]


def test_levels_are_those_of_the_choices_own_family_and_cheaper_than_dense():
    following = torch.from_numpy(next_levels(CANDIDATES))
    cost = torch.tensor(np.tile(COST, (4, 1)))
    cost[3, 5] = 100.0
    found = levels_above(cost, torch.tensor([1, 4, DENSE, 4]), following, 3)
    assert found.tolist() == [[1, 2, -1], [4, 5, 6], [-1, -1, -1], [4, -1, -1]]


def test_a_layer_whose_certificates_pass_keeps_the_routers_choice():
    found = run(heads((0.9, 0.95, 0.97, 0.99), (0.95, 0.96, 0.97, 0.99)), [3, 3])
    assert found.choice.tolist() == [3, 3] and found.fallback == (None, None)
    assert found.layer.rung.tolist() == [0] and 0.8 <= found.layer.lower_mass[0] <= 0.925
    assert (found.lower_mass <= [0.9, 0.95]).all() and (found.lower_mass > 0.8).all()


def test_a_head_below_its_floor_climbs_alone():
    found = run(heads((0.3, 0.7, 0.9, 0.99), *[(0.99,) * 4] * 7), [3] * 8)
    assert found.layer.rung.tolist() == [0]
    assert found.choice.tolist() == [4, *[3] * 7] and found.fallback[:2] == ("expand", None)
    assert found.lower_mass[0] == CONFIG.tau_head  # what a rung above a failed one may claim
    assert [(t.candidate, t.passed) for t in found.tests if t.unit == 0] == [(3, False), (4, True)]


def test_a_layer_below_its_tau_climbs_as_a_whole():
    found = run(heads((0.7, 0.9, 0.95, 0.99), (0.7, 0.92, 0.95, 0.99)), [3, 3])
    assert found.layer.rung.tolist() == [1] and found.choice.tolist() == [4, 4]
    assert found.layer.lower_mass[0] == CONFIG.tau_layer
    assert found.fallback == ("expand", "expand") and all(t.passed for t in found.tests)


def test_past_the_last_level_stands_dense():
    found = run(heads((0.2, 0.3, 0.4, 0.45), *[(0.99,) * 4] * 9), [3] * 10)
    assert found.choice.tolist() == [DENSE, *[3] * 9] and found.fallback[0] == "dense"
    assert np.isnan(found.lower_mass[0]) and found.layer.lower_mass[0] >= CONFIG.tau_layer
    whole = run(heads((0.6, 0.6, 0.6, 0.6), (0.6, 0.6, 0.6, 0.6)), [3, 3])
    assert whole.choice.tolist() == [DENSE, DENSE] and whole.layer.rung.tolist() == [CONFIG.max_tests]
    assert np.isnan(whole.layer.lower_mass[0])


def test_a_dense_head_counts_as_keeping_everything():
    found = run(heads((0.7, 0.7, 0.7, 0.7), (0.9,) * 4), [3, DENSE])
    assert found.choice.tolist() == [3, DENSE] and found.fallback == (None, None)
    assert found.layer.lower_mass[0] <= 0.85


def test_a_layer_that_the_router_made_dense_claims_nothing_and_was_not_raised():
    found = run(heads((0.9,) * 4, (0.9,) * 4), [DENSE, DENSE], replace(CONFIG, tau_layer=0.999))
    assert np.isnan(found.layer.lower_mass[0]) and found.layer.rung.tolist() == [0]
    assert found.fallback == (None, None) and found.tests == ()


def test_a_bound_that_was_found_to_reach_tau_is_claimed_as_tau_at_least():
    masses = np.repeat(np.array(heads((0.9,) * 4, (0.95,) * 4))[:, None], ROWS, 1)
    bound = float(run(masses, [3, 3]).layer.bounds[0, 0])
    found = run(masses, [3, 3], replace(CONFIG, tau_layer=bound + 2**-26))
    assert found.layer.rung.tolist() == [0] and found.layer.lower_mass[0] >= bound + 2**-26


def test_without_fallback_nothing_climbs_and_the_bounds_are_told():
    found = run(heads((0.3, 0.7, 0.9, 0.99), (0.3,) * 4), [3, 3], replace(CONFIG, fallback=False))
    assert found.layer.rung.tolist() == [0] and found.head_rung.tolist() == [0, 0]
    assert found.choice.tolist() == [3, 3] and found.fallback == (None, None)
    assert (found.lower_mass < CONFIG.tau_head).all() and found.layer.lower_mass[0] < CONFIG.tau_layer


def test_prompts_of_a_batch_are_certified_apart():
    found = run(heads((0.7, 0.9, 0.95, 0.99), (0.99,) * 4), [3, 3], batch=2)
    assert found.layer.rung.tolist() == [1, 0] and found.choice.tolist() == [4, 3]


@pytest.mark.parametrize("units", [2, 8])
def test_a_false_claim_about_the_layer_is_rarer_than_allowed(units):
    """Nested beta masses; the first level lies just below tau_layer, the next ones above it."""
    rng, trials = np.random.default_rng(units), 300
    means, false, kept = np.array([0.795, 0.9, 0.95, 0.99]), 0, 0
    for _ in range(trials):
        uniform = rng.random((units, ROWS, 1))
        # A row's loss is the level's mean loss times a factor of mean 1, so levels are nested row by row.
        masses = 1.0 - (1.0 - means) * (0.2 + 1.6 * uniform)
        rows = np.concatenate([np.ones((units, ROWS, 3)), masses, np.ones((units, ROWS, 1))], -1)
        found = run(rows, [3] * units)
        kept += found.layer.rung[0] == 0
        false += found.layer.lower_mass[0] > means[found.layer.rung[0]]
    assert kept < trials and false <= 0.05 * trials + 3 * np.sqrt(0.05 * 0.95 * trials)
