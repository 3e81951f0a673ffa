"""H1 to H3 from predictions: what is tested, on which prompts, and what is said where rows are missing. CPU, no GPU."""

import pandas as pd
import pytest

from routesparse.engine.lab.runner.conclude import conclude as concluded
from routesparse.engine.stats.hypotheses import TESTS

N = 30


def cell(task, length, methods, plain=True):
    """methods: (name, setting) -> (share of right prompts, ms, and perhaps area)."""
    shared = {
        "suite": "ruler",
        "length": length,
        "task": task,
        "extras": True,
        "plain_length": plain,
        "timed_alone": True,
    }
    return pd.DataFrame(
        {**shared, "method": name, "setting": setting, "sample_id": f"{length}/{task}/{i}", "cluster": i}
        | {"value": float(i < right * N), "likelihood": -1.0 if i < right * N else -5.0}
        | {"prefill_ms": ms, "area": area[0] if area else None}
        for (name, setting), (right, ms, *area) in methods.items()
        for i in range(N)
    )


def conclude(cells):
    return concluded(pd.concat(cells, ignore_index=True), 0)


ALL = {
    ("dense", 1.0): (1.0, 90.0),
    ("routesparse", 0.5): (0.9, 40.0),
    ("minference", 1.0): (0.5, 30.0),
    ("minference", 2.0): (0.7, 50.0),
    ("routesparse_no_fallback", 0.5): (0.4, 39.5),
}


def by_test(cells):
    return {row["test"]: row for row in conclude(cells)}


def test_all_five_are_judged_where_their_rows_are_there():
    cells = [
        cell(task, length, ALL, length == 4096) for task in ("niah_single_2", "vt") for length in (2048, 4096)
    ]
    found = by_test(cells)
    assert tuple(found) == TESTS
    # Half-way in time between 30 and 50 ms: .9 less the mean of .5 and .7.
    assert found["H1"]["estimates"][0]["value"] == pytest.approx(30)
    assert found["H1"]["verdict"] == "supported" and found["H1"]["n"] == 4 * N
    assert found["H1"]["settings"] == [["routesparse=0.5", "minference=1", "minference=2"]]
    # The gain is the same everywhere: a difference of differences of 0 resolves nothing.
    assert found["H2 both"]["estimates"][0]["value"] == pytest.approx(0)
    assert found["H2 both"]["verdict"] == "not resolved"
    points, nats = found["H3"]["estimates"]
    assert (
        points["value"] == pytest.approx(50)
        and found["H3"]["settings"][0][1] == "routesparse_no_fallback=0.5"
    )
    assert nats["value"] == pytest.approx(0)  # the worst tenth loses 4 nats with and without
    assert found["H3"]["verdict"] == "not resolved"


def test_holm_counts_five_tests_also_where_some_are_not_tested():
    some = {name: ALL[name] for name in ALL if name[0] != "routesparse_no_fallback"}
    alone = by_test([cell("vt", 4096, some)])["H1"]["p_holm"]
    assert alone == pytest.approx(5 * 2 / 10_001)


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (("minference", 2.0), "run a slower one"),
        (("routesparse", 0.5), "add --methods routesparse=0.5"),
        (("dense", 1.0), "no prompt has predictions of dense"),
    ],
)
def test_a_missing_row_is_named_and_nothing_is_claimed(without, said):
    found = by_test([cell("vt", 4096, {name: ALL[name] for name in ALL if name != without})])["H1"]
    assert found["verdict"] == "not tested" and said in found["why"] and "estimates" not in found


def with_fixed(*settings):
    """ALL with other settings of MInference: (setting, share of right prompts, ms, area)."""
    others = {name: ALL[name] for name in ALL if name[0] != "minference"}
    fixed = {("minference", setting): rest for setting, *rest in settings}
    return others | fixed | {("routesparse", 0.5): (0.6, 40.0)}


SLOW = (
    (1.0, 0.5, 60.0, 0.3),
    (0.25, 0.1, 50.0, 0.2),
    (2.0, 0.8, 70.0, 0.6),
)  # of a rival that is always slower


def raised(*ours, rivals=SLOW):
    """(price, share of right prompts, ms, area) of ours besides its default, against a rival that is always slower."""
    others = {("routesparse", price): rest for price, *rest in ours}
    return by_test([cell("vt", 4096, with_fixed(*rivals) | others)])["H1"]


def test_a_rival_that_is_always_slower_is_met_in_its_own_time_at_its_own_budget():
    """Neither at its fastest setting, which has the smallest budget, nor by ours at our time."""
    found = raised((0.25, 0.7, 50.0, 0.5), (0.1, 0.9, 70.0, 0.8), (0.01, 1.0, 90.0, 1.0))
    assert found["settings"] == [["minference=1", "routesparse=0.25", "routesparse=0.1"]]
    assert found["time_ratios"] == [[pytest.approx(5 / 6), pytest.approx(7 / 6)]]
    # Half-way in time between 50 and 70 ms: the mean of .7 and .9, less .5.
    assert found["estimates"][0]["value"] == pytest.approx(30) and found["verdict"] == "supported"


@pytest.mark.parametrize(("right", "verdict"), [(0.1, "rejected"), (1.0, "supported")])
def test_ours_that_reads_all_in_less_than_a_slower_rivals_time_stands(right, verdict):
    found = raised((0.25, 0.7, 50.0, 0.9), (0.01, right, 55.0, 0.99))
    assert found["settings"][0] == ["minference=1", "routesparse=0.01"] and found["unequal"] == "ours faster"
    assert found["verdict"] == verdict


@pytest.mark.parametrize(
    ("ours", "rivals", "said"),
    [
        ((), SLOW, "(setting: its time over it; 0.5: 0.667); run a slower one"),
        (((0.25, 1.0, 50.0, 0.97),), SLOW, "0.25: 0.833, 0.5: 0.667); run a slower one"),
        (((0.01, 1.0, 70.0, 1.0),), SLOW[1:], "add --methods minference=1, whose time ours is given"),
    ],
)
def test_a_slower_rival_is_not_compared_at_unequal_times(ours, rivals, said):
    found = raised(*ours, rivals=rivals)
    assert found["verdict"] == "not tested" and "estimates" not in found
    assert "every setting of minference that ran takes longer than ours (setting: its time" in found["why"]
    assert said in found["why"]


def test_uniform_growth_that_is_slower_is_met_at_the_default_price_in_both_measures():
    slow = {**ALL, ("routesparse_no_fallback", 0.5): (0.4, 50.0), ("routesparse", 0.25): (1.0, 50.0)}
    found = by_test([cell("vt", 4096, slow)])["H3"]
    points, nats = found["estimates"]
    assert points["value"] == pytest.approx(60) and nats["value"] == pytest.approx(4)
    assert found["settings"] == [["routesparse_no_fallback=0.5", "routesparse=0.25"]]


@pytest.mark.parametrize(("right", "verdict"), [(0.2, "supported"), (1.0, "rejected")])
def test_a_rival_that_reads_all_and_is_faster_may_win(right, verdict):
    found = by_test([cell("vt", 4096, with_fixed((1.0, 0.1, 20.0, 0.5), (4.0, right, 30.0, 0.99)))])["H1"]
    assert found["settings"][0][1:] == ["minference=4"] and found["unequal"] == "faster"
    assert found["verdict"] == verdict


def test_a_shift_is_not_tested_where_one_side_has_a_slower_rival():
    slow = with_fixed((1.0, 0.5, 60.0, 0.3))
    cells = [cell("niah_single_2", 4096, slow), cell("vt", 4096, ALL)]
    found = by_test(cells)["H2 domain"]
    assert found["verdict"] == "not tested" and "1: 1.500" in found["why"]


def test_times_of_processes_that_shared_a_machine_are_not_made_equal():
    found = conclude([cell("vt", 4096, ALL).assign(timed_alone=False)])
    assert {row["verdict"] for row in found} == {"not tested"} and "--processes 1" in found[0]["why"]


def test_a_shift_needs_prompts_on_both_sides():
    found = by_test([cell("niah_single_2", 4096, ALL)])
    assert found["H1"]["verdict"] != "not tested"
    for name in ("H2 domain", "H2 length", "H2 both"):
        assert found[name]["verdict"] == "not tested" and "one side of the shift" in found[name]["why"]


def test_strata_that_lack_a_setting_are_counted_and_the_suites_used_are_named():
    less = {name: ALL[name] for name in ALL if name != ("minference", 2.0)}
    whole, partial = cell("vt", 4096, ALL), cell("fwe", 4096, less)
    other = cell("story_chain", 4096, less).assign(suite="stories")
    found = by_test([whole, partial, other])["H1"]
    assert (found["suites"], found["strata"], found["dropped_strata"], found["n"]) == (["ruler"], 1, 2, N)
    assert by_test([whole])["H1"]["dropped_strata"] == 0
