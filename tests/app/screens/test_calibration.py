"""The Calibration page filled, empty and in error, and the words and pictures on it. No GPU, no browser."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from routesparse.app.screens.calibration import figures, wording
from routesparse.app.screens.calibration import profile as profile_page
from routesparse.app.ui import design, states
from routesparse.engine import paths
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.store import bundle

RUN = "3f9a1c20d4e5b678"


@pytest.fixture
def calibrations(home, tmp_path, data, make_calibration):
    """Two calibrations in the data folder: prose, and a code one that asks for more; neither makes a claim at .99."""
    shipped = tmp_path / "data"
    for name, gate, delta in (("prose", 0.94, 0.014), ("code", 0.955, 0.031)):
        make_calibration(name, gate, delta).save(shipped / "calibrations")
    data(shipped)
    return shipped / "calibrations"


@pytest.fixture
def profile(home):
    """A latency profile of this machine, named as the synthetic runs name theirs."""
    cells = []
    for tokens in (2_048, 8_192):
        blocks = tokens // 128
        tiles = 8 * blocks * (blocks + 1)
        cells.append(cell(tokens, "dense", 15.0 * tiles, tiles, 0))
        cells.append(cell(tokens, "density 0.05, 0 columns", 3.0 * tiles, tiles // 20, 0))
        cells.append(cell(tokens, "density 0.05, 256 columns", 4.0 * tiles, tiles // 20, 256 * blocks))
        cells.append({**cell(tokens, "probe, builders, router, certificate", 9e5, 0, 0), "tiles": None})
    made = LatencyProfile(
        "cpu-2", "CPU, 2 cores", "torch", "float32", 64, 2, 2, 128, 64, 1.0, 15.0, 1.0, 9.0, 15.0, 7e5, 0.0, 30.0, 0.05,
        cells=tuple(cells), versions={"torch": "2.13.0"}, created_at="2026-11-20T20:00:00+00:00",
        command="routesparse profile",
    )  # fmt: skip
    made.save(paths.profiles())
    return made


def cell(tokens: int, mix: str, median_us: float, tiles: int, columns: int) -> dict[str, object]:
    return {
        "n": tokens,
        "mix": mix,
        "repeats": 3,
        "best_us": median_us * 0.98,
        "median_us": median_us,
        "p95_us": median_us * 1.1,
        "tiles": tiles,
        "columns": columns,
    }


def test_two_calibrations_stand_side_by_side_each_with_a_plain_sentence(calibrations, filled, open_page):
    page = open_page("calibration", names="prose,code")
    html = page.told
    assert html.count("gate threshold λ") == 2
    for gate, delta in ((0.94, 0.014), (0.955, 0.031)):
        assert f"only if g ≥ {gate:.3f}" in html and f"it subtracts δ = {delta}" in html
    assert html.count("95 of 100 selected heads") == 2
    assert open_page("calibration", names="code").told.count("only if g ≥") == 1


def test_an_infinite_delta_is_said_in_words(calibrations, home, open_page):
    page = open_page("calibration", names="prose,code", q="0.99")
    html = page.told
    assert html.count("It makes no conformal claim at this confidence: 40 windows are too few") == 2
    assert html.count("<td>infinite</td>") == 2
    assert page.selectbox(key="q-choice").value == 0.99


def test_unreadable_calibration_is_named_and_the_other_shown(calibrations, home, open_page):
    (calibrations / "code.json").write_text('{"schema": 2, "name": "co')
    page = open_page("calibration", names="prose,code")
    html = page.told
    assert "calibration &#x27;code&#x27; is corrupt" in html and "only if g ≥ 0.940" in html


def test_unknown_name_in_the_address_is_explained(calibrations, home, open_page):
    html = open_page("calibration", names="<b>x,prose").told
    assert "no calibration &#x27;&lt;b&gt;x&#x27;" in html and "only if g ≥ 0.940" in html


def test_without_calibrations_the_page_says_what_to_do(home, open_page):
    page = open_page("calibration")
    html = page.told
    assert "No calibrations yet" in html and "No latency profile yet" in html
    assert [block.value for block in page.code] == [
        states.here(".venv/bin/routesparse calibrate demo FILE... --domain NAME"),
        states.here(".venv/bin/routesparse profile"),
    ]


def test_profile_shows_surface_and_clock(calibrations, profile, filled, record, open_page):
    page = open_page("calibration")
    html = page.told
    assert "The fitted model misses the random plans of the fit by 5.0 %" in html and "FLOPs alone" in html
    assert "median and p95 of 3 repeats" in html
    assert f"n = {record.run.layers + 2} layers of the newest 2 runs" in html
    assert not page.get("plotly_chart"), "closed, no browser loads Plotly"
    assert open_page("calibration", profile=profile.name).get("plotly_chart")


def test_flops_are_set_to_the_longest_dense_measurement(profile):
    measured = profile_page.cells(profile)
    longest = measured[(measured["mix"] == "dense") & (measured["tokens"] == 8_192)].iloc[0]
    assert longest["flops_us"] == pytest.approx(longest["median_us"])
    sparse = measured[measured["mix"] == "density 0.05, 0 columns"]
    assert (sparse["flops_us"] < sparse["median_us"] / 2).all(), "a sparse tile costs more than its FLOPs"
    with_columns = measured[measured["mix"] == "density 0.05, 256 columns"]
    assert (with_columns["flops_us"].to_numpy() > sparse["flops_us"].to_numpy()).all()
    assert measured.loc[measured["mix"].str.startswith("probe"), "flops_us"].isna().all()


def test_profile_without_work_or_p95_shows_what_it_has(profile):
    old = replace(
        profile,
        cells=tuple(
            {"n": c["n"], "mix": c["mix"], "median_us": c["median_us"], "p80_us": c["p95_us"]}
            for c in profile.cells
        ),
    )
    measured = profile_page.cells(old)
    assert set(measured["upper"]) == {"p80"} and measured["flops_us"].isna().all()
    drawn = profile_page.surface(measured, design.LIGHT)
    assert "dense" in {trace.name.partition(",")[0] for trace in drawn.data}
    assert not any("FLOPs alone" in trace.name for trace in drawn.data)


def test_profile_of_another_machine_shows_only_times(calibrations, filled, open_page):
    html = open_page("calibration").told
    assert "Not on this machine" in html and "Median |predicted − measured|" in html


def test_corrupt_profile_is_explained(calibrations, profile, filled, open_page):
    (paths.profiles() / "cpu-2.json").write_text("[]")
    page = open_page("calibration", profile="cpu-2")
    assert "This profile can’t be read" in page.told


def test_drift_threshold_is_where_the_p_value_crosses_the_level():
    distances = list(np.random.default_rng(0).gamma(4, 0.25, 199))
    threshold = figures.drift_threshold(distances, 0.02)

    def p_value(distance: float) -> float:
        return (1 + sum(d >= distance for d in distances)) / (len(distances) + 1)

    assert p_value(threshold + 1e-9) <= 0.02 < p_value(threshold)
    assert figures.drift_threshold(distances[:30], 0.02) == math.inf, "30 windows can't alarm at .02"


def test_documents_in_both_folds_are_an_error_on_the_page(calibrations, home, open_page):
    html = open_page("calibration", names="prose,code").told
    assert "No document is in both folds" in html and "prose B1 (20)" in html
    one = load_calibration("prose")
    leaked = {"name": "emma", "sha256": one.folds["A"]["documents"][0]["sha256"], "prompts": 1}
    fold = {**one.folds["B"], "documents": [*one.folds["B"]["documents"], leaked]}
    replace(one, folds={**one.folds, "B": fold}).save(calibrations)
    html = open_page("calibration", names="prose,code").told
    assert "In both folds, so δ is too small: prose: emma" in html and "rs-error" in html


def test_all_parts_of_two_calibrations_are_drawn(calibrations, filled, open_page):
    page = open_page("calibration", names="prose,code")
    html = page.told
    assert not page.get("plotly_chart"), "Plotly takes longer to load than the page to draw"
    charts = {"by-length", "drift", "plan-clock"}
    drawn = [one.proto.id for one in page.get("bidi_component")]
    assert all(any(name in key for key in drawn) for name in charts)
    fit = load_calibration("prose").predictor.fit
    assert f"{fit['prompts']:,} windows, {fit['candidates']:,} candidates" in html
    assert "as in this version" in html


def test_calibration_of_another_library_says_that_runs_refuse_it(calibrations, home, open_page):
    replace(load_calibration("prose"), library_hash="0" * 16).save(calibrations)
    assert "another: runs refuse it" in open_page("calibration", names="prose").told


def test_drift_of_stored_runs_is_counted_by_domain(calibrations, home, record, factory, open_page):
    for number, (domain, alarm) in enumerate(
        (("prose", False), ("code", True), ("code", True), ("docs", None))
    ):
        made = factory.rename(record, f"abcd000{number}abcd000{number}")
        distance = None if alarm is None else 4.2 if alarm else 1.1
        run = replace(
            made.run,
            domain=domain,
            drift_alarm=alarm,
            drift_distance=distance,
            drift_p=None if alarm is None else 0.01 if alarm else 0.5,
        )
        bundle.write_bundle(replace(made, run=run), home / "spool")
    html = open_page("calibration", names="prose,code").told
    assert "prose on code: 2 alarms in 2 runs" in html and "prose on prose: no alarm in 1 run<" in html
    assert "n = 3 of 4 stored runs" in html, "a run that was not assessed is not counted as calm"


def test_a_run_without_a_domain_is_drawn_and_called_so(calibrations):
    runs = pd.DataFrame(
        [("prose", "a", domain, 5_000, 1.0, 0.5, False) for domain in ("prose", None)],
        columns=[
            "calibration", "prompt_name", "domain", "tokens", "drift_distance", "drift_p", "drift_alarm",
        ],
    )  # fmt: skip
    chart = figures.drift({"prose": load_calibration("prose").drift}, runs, design.DARK)
    told = [row for mark in chart["marks"] for row in mark.get("told", []) if row[0] == "a"]
    assert [row[1] for row in told] == ["prose", "no domain"]
    json.dumps(chart, allow_nan=False)


def test_by_length_draws_delta_over_its_bucket_only(calibrations):
    one = load_calibration("prose")
    rows = wording.delta_rows([one])
    prompts = figures.prompt_rows([one])
    chart = figures.by_length(prompts, rows, 0.95, design.DARK)
    windows, (line,) = chart["marks"][0], chart["marks"][1]["at"]
    assert line[:2] == [4_096, 8_192] and sum(line[2:]) / 2 == pytest.approx(0.014)
    assert len(windows["x"]) == 40, "fold A gives no delta"
    assert figures.by_length(prompts, rows, 0.99, design.DARK)["marks"][1]["at"] == [], "infinite is no line"


def test_of_several_lengths_the_largest_delta_is_said_and_a_robust_one_says_of_what(calibrations):
    one = load_calibration("prose")
    longer = replace(one.buckets[0], min_tokens=8_193, max_tokens=16_384, deltas={"0.95": 0.05})
    robust = replace(one, buckets=(*one.buckets, longer), provenance={"robust": True})
    text = wording.sentence(robust, 0.95)
    assert "subtracts up to δ = 0.050" in text and "the largest of its domains" in text


@pytest.mark.parametrize("query", [{"q": "7"}, {"profile": "../../etc"}, {"names": ","}])
def test_senseless_addresses_fall_back(calibrations, filled, open_page, query):
    page = open_page("calibration", **query)
    assert not page.exception
    assert page.selectbox(key="q-choice").value == 0.95
