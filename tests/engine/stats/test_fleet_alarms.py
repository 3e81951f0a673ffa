"""Alarms of the page Fleet: how often they are false, what they find, what they leave unjudged. No model, no GPU."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from routesparse.engine.stats import fleet_alarms
from routesparse.engine.stats.fleet_alarms import FEWEST, LEVEL, judge

DAY = "2026-11-20"


def requests(random, day, n, red=0.02, drift=0.04, fell_back=0.3, area=0.0, model="m"):
    """n requests of a day: most do not fall back, and the area is skewed, as with real prompts."""
    return pd.DataFrame(
        {
            "model": model,
            "day": day,
            "red": random.random(n) < red,
            "drift_alarm": (random.random(n) < drift).astype(float),
            "fell_back": np.where(random.random(n) < fell_back, random.random(n) ** 3, 0.0),
            "density": np.exp(random.normal(-1.5 + area, 0.4, n)),
        }
    )


def one_day(random, n, before, **changes):
    """A day of n requests after seven days of ``before`` requests in all."""
    days = [f"2026-11-{day}" for day in random.integers(13, 20, before)]
    return pd.concat([requests(random, days, before), requests(random, DAY, n, **changes)])


def of_day(found):
    return found[found["day"] == DAY].set_index("figure")


@pytest.mark.parametrize(("n", "before"), [(20, 20), (20, 140), (120, 400)])
def test_false_alarms_are_no_more_frequent_than_stated(n, before):
    """Of 120 days without a change at most as many raise an alarm as the level allows, here one loose enough to see."""
    random, level, days = np.random.default_rng(17), 0.1, 120
    false = sum(
        (of_day(judge(one_day(random, n, before), level))["state"] == "alarm").any() for _ in range(days)
    )
    assert false <= days * level + 3 * math.sqrt(days * level * (1 - level))


@pytest.mark.parametrize(("n", "before"), [(20, 20), (33, 140), (60, 200)])
@pytest.mark.parametrize("figure", ["red", "area"])
def test_at_the_shipped_level_no_figure_takes_more_than_its_part(monkeypatch, n, before, figure):
    """Exactly, without draws: for any number of the kind among all requests, the chance of an alarm of one figure is at
    most LEVEL over the number of figures, where Holm's procedure stops first. So a day's is at most LEVEL."""
    part = LEVEL / len(fleet_alarms.FIGURES)
    both = fleet_alarms.FIGURES[figure].both_sides
    reached = 0.0
    for kind in range(n + before + 1):
        chances = fleet_alarms._chances(n, before, kind)
        alarm = 0.0
        for count in range(max(0, kind - before), min(n, kind) + 1):
            yes = np.repeat([1.0, 0.0], [count, n - count])
            others = np.repeat([1.0, 0.0], [kind - count, before - kind + count])
            plain = fleet_alarms.Figure(figure, None, both)
            p, counted = fleet_alarms._test(plain, yes, others)
            assert counted["count"] == count
            alarm += chances[count] * (p <= part)
        assert alarm <= part * (1 + 1e-9)
        reached = max(reached, alarm)
    assert reached > part / 20, "a test that never alarms would keep any level"


@pytest.mark.parametrize(
    ("figure", "n", "before", "changes"),
    [
        ("red", 50, 300, {"red": 0.25}),
        ("drift", 50, 300, {"drift": 0.4}),
        ("fell_back", 50, 300, {"fell_back": 0.8}),
        ("area", 50, 300, {"area": 0.6}),
        ("area", 50, 300, {"area": -0.6}),  # less than before is a change, too
        ("red", 20, 140, {"red": 0.6}),
    ],
)
def test_a_bad_day_raises_its_alarm(figure, n, before, changes):
    random = np.random.default_rng(3)
    found = [of_day(judge(one_day(random, n, before, **changes))) for _ in range(15)]
    assert np.mean([one.loc[figure, "state"] == "alarm" for one in found]) >= 0.8


def test_fewer_red_requests_than_before_are_no_alarm():
    random = np.random.default_rng(5)
    before = requests(random, "2026-11-19", 200, red=0.9)
    found = of_day(judge(pd.concat([before, requests(random, DAY, 100, red=0.0)])))
    assert found.loc["red", "state"] == "no alarm" and found.loc["red", "p"] > 0.9


def test_chances_are_those_of_drawing_without_replacement():
    """Against counting: 3 of 8, of which 4 are of the kind."""
    chances = fleet_alarms._chances(3, 5, 4)
    wanted = [math.comb(4, k) * math.comb(4, 3 - k) / math.comb(8, 3) for k in range(4)]
    assert np.allclose(chances, wanted, rtol=1e-12)


def test_few_requests_are_not_judged_on_either_side():
    random = np.random.default_rng(1)
    few = of_day(judge(one_day(random, FEWEST - 1, 200, red=1.0)))
    alone = of_day(judge(one_day(random, 200, FEWEST - 1, red=1.0)))
    assert set(few["state"]) == {"too few"} and set(alone["state"]) == {"nothing before"}
    assert few["p"].isna().all() and few.loc["red", "count"] == FEWEST - 1


def test_only_the_seven_days_before_and_the_own_model_are_compared():
    random = np.random.default_rng(2)
    parts = [
        requests(random, "2026-11-12", 100),  # eight days before
        requests(random, "2026-11-13", 30),
        requests(random, "2026-11-19", 100, model="other"),
        requests(random, DAY, 40),
    ]
    found = of_day(judge(pd.concat(parts)[lambda rows: (rows["model"] == "m") | (rows["day"] != DAY)]))
    assert set(found["before_n"]) == {30} and set(found["n"]) == {40}


def test_what_was_not_measured_is_not_counted():
    random = np.random.default_rng(4)
    rows = one_day(random, 50, 200).assign(drift_alarm=np.nan)
    found = of_day(judge(rows))
    assert found.loc["drift", "n"] == 0 and found.loc["drift", "state"] == "too few"
    assert found.loc["red", "state"] == "no alarm" and found["p"].dropna().between(LEVEL, 1).all()


def test_no_requests_are_no_tests():
    rows = one_day(np.random.default_rng(0), 1, 1).iloc[:0]
    assert judge(rows).empty and "state" in judge(rows)
