"""How long a job will take, from what past ones took. No GPU."""

import itertools
import random

import pytest

from routesparse.engine.jobs.estimate import FARTHEST, Estimate, scaled


def test_one_past_job_gives_its_own_time_and_a_range_for_others():
    assert scaled([(1_000, 10.0)], 1_000) == Estimate(10.0, 10.0, 1)
    assert scaled([(1_000, 10.0)], 4_000) == Estimate(40.0, 160.0, 1)
    assert scaled([(1_000, 10.0)], 500) == Estimate(2.5, 5.0, 1)


@pytest.mark.parametrize("past", [[], [(0, 1.0)], [(1_000, 10.0)]], ids=["none", "without a size", "too far"])
def test_where_nothing_is_near_there_is_no_estimate(past):
    assert scaled(past, round(1_000 * FARTHEST) + 1) is None


def test_the_range_is_as_wide_as_past_jobs_of_one_size():
    assert scaled([(1_000, 8.0), (1_000, 10.0), (1_000, 25.0)], 1_000) == Estimate(8.0, 25.0, 3)


@pytest.mark.parametrize("seed", range(20))
def test_a_longer_prompt_is_never_estimated_faster(seed):
    """Also where a short one once took long, as on a busy machine."""
    draw = random.Random(seed)
    past = [(draw.choice((500, 1_000, 3_000, 8_000)), draw.lognormvariate(3, 1.5)) for _ in range(8)]
    found = [scaled(past, size) for size in range(400, 9_000, 97)]
    for shorter, longer in itertools.pairwise(found):
        assert shorter.low_s <= longer.low_s * (1 + 1e-12) and shorter.high_s <= longer.high_s * (1 + 1e-12)
        assert longer.low_s <= longer.high_s
