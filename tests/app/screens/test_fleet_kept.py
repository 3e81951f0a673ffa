"""Kept loss targets on the page Fleet: from a log, without one, damaged, and with a login. No GPU, no browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routesparse.app.screens.fleet import kept
from routesparse.app.ui import design
from routesparse.engine.calibration import keeping_log
from routesparse.engine.calibration.keeping import PATIENCE, Kept, State
from tests.app.conftest import ANN

TARGET = 0.01
FIRST = Kept(
    "2026-11-18T10:00:00+00:00", "r", "<b>m</b>", "abc", TARGET, "code", 0.25, 0.004, None, State(0.26, 0.004)
)


@pytest.fixture
def log(home):
    """Three requests of one day and two of the next, the last one measured and in alarm."""
    path = keeping_log.log_of("m", TARGET)
    for loss in (0.004, 0.006, 0.008):
        keeping_log.append(path, replace(FIRST, predicted=loss))
    later = replace(FIRST, time="2026-11-19T10:00:00+00:00", price=0.5, predicted=0.02)
    keeping_log.append(path, later)
    state = State(0.7, 0.013, beyond=PATIENCE + 1, bounded=PATIENCE)
    keeping_log.append(path, replace(later, measured=0.01, state=state))
    return path


def test_a_log_is_shown_by_day_against_its_target_with_its_alarms(log, open_page):
    page = open_page("fleet")
    html = page.words
    assert "<b>m</b></bdi>: loss target 0.01" in html and "n = 5 requests" in html
    assert f"For more than {PATIENCE} requests the mean loss 0.013 lies beyond 1.2 targets of 0.01." in html
    assert "on a bound" not in html
    days = kept.by_day(kept.frame(keeping_log.read(log))).set_index("day")
    assert list(days["of the target"]) == ["60 %", "150 %"] and list(days["requests in alarm"]) == ["0", "1"]
    assert days.loc["2026-11-19", "prices"] == "0.5 to 0.5" and "n = 1" in days.loc["2026-11-19", "measured"]
    assert "<b>m</b>" not in page.told


def test_the_chart_has_losses_their_mean_the_target_and_the_price(log):
    drawn = kept.figure(kept.frame(keeping_log.read(log)), design.current_theme())
    target, predicted, measured, mean, price = drawn["marks"]
    assert target["y"] == [TARGET] * 2 and mean["y"][-1] == 0.013
    assert predicted["y"] == [0.004, 0.006, 0.008, 0.02] and measured["y"] == [0.01]
    assert price["panel"] == 1 and price["y"][0] == 0.25 and price["y"][-1] == 0.5


def test_without_a_log_the_page_says_how_to_get_one(home, open_page):
    html = open_page("fleet").words
    assert "ROUTESPARSE_VLLM_KEEP=1" in html and "loss target 0.01" not in html


def test_a_damaged_log_is_named(log, open_page):
    log.write_text('\n{"state": {"corrections": {}}}')
    page = open_page("fleet")
    assert "m-0.01.jsonl: time is missing; move the file away" in page.words


def test_a_log_is_nobodys_on_a_dashboard_with_a_login(log, open_page, login):
    login()
    assert "loss target 0.01" not in open_page("fleet", user=ANN).words


@pytest.mark.parametrize(("mean", "side"), [(0.004, "below"), (0.02, "above")])
def test_a_price_on_its_bound_says_on_which_side_the_loss_lies(mean, side, home):
    path = keeping_log.log_of("m", TARGET)
    keeping_log.append(path, replace(FIRST, state=State(0.7, mean, bounded=PATIENCE + 1)))
    (told,) = kept.alarm_words(kept.frame(keeping_log.read(path)).iloc[-1])
    assert told.endswith(f"the price lies on a bound, 0.7, and the mean loss {side} the target.")
