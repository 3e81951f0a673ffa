"""A target kept by itself: on texts harder and easier than the fit's, by hand and by simulation. No model."""

import math

import numpy as np
import pytest

from routesparse.engine.calibration import keeping_log
from routesparse.engine.calibration.keeping import PATIENCE, STEP, Keeper, State
from routesparse.engine.errors import CalibrationError
from tests.engine.calibration.test_fitted import made, rows

PRICES = (0.1, 0.2, 0.4, 0.8)
BOUNDS = (0.1, 0.8)


def fit_of(ratio=1.5):
    """A loss of .004 at price .25, in proportion to the price; true over replayed is ratio. One kind."""
    return made(rows("code", 24, lambda place: ratio, prices=PRICES))


def serve(keeper, requests, harder=1.0, ratio=1.5, dense=0, spread=0.0):
    """True losses of texts that lose so many times what the fit's do, with a true ratio of their own."""
    random, losses = np.random.default_rng(0), []
    for number in range(requests):
        price = keeper.state.price
        true = 0.016 * price * harder * math.exp(spread * random.normal() - spread**2 / 2)
        known = true if dense and number % dense == 0 else None
        keeper.seen("2026-11-27T12:00:00", str(number), price, (true / ratio, 2.0, 2.5), known)
        losses.append(true)
    return losses


@pytest.mark.parametrize("harder", [0.6, 1.0, 1.8])
def test_the_mean_loss_comes_to_the_target_whatever_the_texts(harder):
    keeper = Keeper(fit_of(), 0.005, BOUNDS, start=0.2)
    losses = serve(keeper, 400, harder, spread=0.5)
    assert np.mean(losses[100:]) == pytest.approx(0.005, rel=0.1)


def test_a_step_is_bounded_and_one_wild_request_moves_little():
    keeper = Keeper(fit_of(), 0.005, BOUNDS, start=0.3)
    serve(keeper, 200)
    before = keeper.state.price
    keeper.seen("t", "wild", before, (50.0, 2.0, 2.5))
    assert keeper.state.price == pytest.approx(before * math.exp(-STEP))
    serve(keeper, 100)
    assert keeper.state.price == pytest.approx(before, rel=0.05)


def test_texts_that_lose_nothing_do_not_hide_later_ones_that_do():
    keeper = Keeper(fit_of(), 0.005, BOUNDS, start=0.3)
    serve(keeper, 2_000, harder=0.0)
    assert keeper.state.price == 0.8 and keeper.state.level < 0.01
    assert np.mean(serve(keeper, 200)[100:]) == pytest.approx(0.005, rel=0.1)


def test_measured_losses_correct_texts_whose_replay_says_too_little():
    """True over replayed is 3 and the fit says 1.5: half is seen without dense attention, nearly all with it."""
    off, on = (Keeper(fit_of(), 0.005, BOUNDS, start=0.2) for _ in range(2))
    assert np.mean(serve(off, 300, ratio=3.0)[200:]) == pytest.approx(0.010, rel=0.1)
    assert np.mean(serve(on, 300, ratio=3.0, dense=10)[200:]) == pytest.approx(0.005, rel=0.2)


def test_the_price_stays_within_its_bounds_and_an_alarm_says_so():
    keeper = Keeper(fit_of(), 0.005, (0.2, 0.3), start=0.8)
    assert keeper.state.price == 0.3
    losses = serve(keeper, PATIENCE, harder=4.0)
    assert keeper.state.price == pytest.approx(0.2, rel=0.05) and not keeper.state.alarms
    serve(keeper, PATIENCE, harder=4.0)
    assert keeper.state.alarms == ("beyond", "bounded") and losses[-1] > 0.006


def test_a_request_that_ran_with_an_older_price_counts_as_it_ran():
    keeper, other = (Keeper(fit_of(), 0.005, BOUNDS, start=0.3) for _ in range(2))
    for price in (0.1, 0.8):
        keeper.seen("t", "a", price, (0.016 * price / 1.5, 2.0, 2.5))
        other.seen("t", "a", 0.3, (0.016 * 0.3 / 1.5, 2.0, 2.5))
    assert keeper.state.level == pytest.approx(other.state.level, rel=1e-4)


def test_bounds_that_the_fit_knows_nothing_of_are_refused():
    for bounds in ((0.05, 0.5), (0.2, 0.9), (0.5, 0.2)):
        with pytest.raises(CalibrationError, match=r"the fit measured 0\.1 to 0\.8"):
            Keeper(fit_of(), 0.005, bounds, start=0.2)


def test_a_server_that_is_started_again_goes_on_from_its_log(tmp_path):
    path, whole = tmp_path / "some.jsonl", Keeper(fit_of(), 0.005, BOUNDS, start=0.2)
    for number in range(40):
        price = whole.state.price
        kept = whole.seen("t", str(number), price, (0.02 * price / 1.5, 2.0, 2.5), 0.02 * price)
        keeping_log.append(path, kept)
    with path.open("a") as file:
        file.write('\n{"time": "t", "requ')
    keeping_log.append(path, kept)
    assert [one.request for one in keeping_log.read(path)] == [*map(str, range(40)), "39"]
    state = keeping_log.resumed(path, "abc", 0.005)
    assert state == whole.state and state != State(price=0.2, mean=0.005)
    assert keeping_log.resumed(path, "other weights", 0.005) is None
    assert keeping_log.resumed(path, "abc", 0.01) is None
    assert keeping_log.resumed(tmp_path / "none", "abc", 0.005) is None


def test_a_log_that_means_nothing_is_named(tmp_path):
    (tmp_path / "some.jsonl").write_text('\n{"state": {"corrections": {}}}')
    with pytest.raises(CalibrationError, match=r"some.jsonl: time is missing; move the file away"):
        keeping_log.read(tmp_path / "some.jsonl")
    (tmp_path / "some.jsonl").write_bytes(b"\n\xff")
    with pytest.raises(CalibrationError, match=r"some.jsonl: 'utf-8' codec .*; move the file away"):
        keeping_log.read(tmp_path / "some.jsonl")


def test_a_full_log_gives_way_to_a_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr(keeping_log, "MOST_BYTES", 10)
    path, keeper = tmp_path / "some.jsonl", Keeper(fit_of(), 0.005, BOUNDS, start=0.2)
    for name in ("a", "b"):
        keeping_log.append(path, keeper.seen("t", name, 0.2, (0.001, 2.0, 2.5)))
    assert [one.request for one in keeping_log.read(path)] == ["b"]
    assert [one.request for one in keeping_log.read(tmp_path / "some.before")] == ["a"]
