"""Latency profiles on the page Models: filled, empty and in error, and the figures behind them. No GPU, no browser."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from routesparse.app.screens.models import profile as profile_page
from routesparse.app.ui import design, states
from routesparse.engine import paths
from routesparse.engine.method.latency import LatencyProfile


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


def test_profile_shows_surface_and_clock(demo_home, profile, stored, record, open_page):
    shutil.copytree(stored[0], demo_home, dirs_exist_ok=True)
    page = open_page("models", profile=profile.name)
    html = page.told
    assert "The fitted model misses the random plans of the fit by 5.0 %" in html and "FLOPs alone" in html
    assert "median and p95 of 3 repeats" in html
    assert f"n = {record.run.layers + 2} layers of the newest 2 runs" in html
    assert page.get("plotly_chart")
    assert not open_page("models").get("plotly_chart"), "closed, no browser loads Plotly"


def test_without_profiles_or_with_a_damaged_one_the_page_says_what_to_do(demo_home, open_page):
    page = open_page("models", profile="../../etc")
    assert "No latency profile yet" in page.told
    assert states.here(".venv/bin/routesparse profile") in [block.value for block in page.code]
    paths.profiles().mkdir(parents=True)
    (paths.profiles() / "cpu-2.json").write_text("[]")
    assert "This profile can’t be read" in open_page("models", profile="cpu-2").told
