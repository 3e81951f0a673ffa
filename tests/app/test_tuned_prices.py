"""Tuned prices on the pages Calibration and New run. No GPU, no browser, no model loaded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from routesparse.app.shell import new_run_address, setting_words
from routesparse.engine import paths
from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.tuned import Part, PriceResult, TunedPrice
from routesparse.engine.errors import CalibrationError
from routesparse.engine.jobs import analysis
from routesparse.engine.jobs.request import RunRequest
from tests.app.conftest import press

PROSE = tuned.load("prose-kl")


def make(name: str, price: float, **others) -> TunedPrice:
    """The bundled one of prose, with results at three prices."""
    tested = tuple(
        PriceResult(p, 0.004 * p, 0.009 * p, 0.02, 0.1, area, p <= price)
        for p, area in ((0.5, 0.3), (1.0, 0.2), (1.4, 0.15))
    )
    parts = (Part(name.removesuffix("-kl"), "window", 96, 4, 4),)
    return replace(PROSE, name=name, domain=name, price=price, tested=tested, parts=parts, **others)


@pytest.fixture
def prices():
    """Two domains with one target; code must pay more."""

    def save(*more: TunedPrice, revision: str = PROSE.model_revision) -> None:
        both = (
            make(name, price, model_revision=revision)
            for name, price in (("prose-kl", 1.4), ("code-kl", 0.5))
        )
        for one in (*both, *more):
            one.save(tuned.own_folder() / f"{one.name}.json")

    return save


def test_what_each_target_chooses_and_saves_is_shown(filled, record, open_page, prices):
    prices(make("other-kl", 1.0, model_revision="another"), revision=record.run.model_revision)
    (paths.calibrations() / "tuned" / "broken.json").write_text(json.dumps({"kind": tuned.KIND}))
    page = open_page("domains", tuned="1")
    html = page.told
    assert "What a quality target chooses" in html
    row = html.split("prose-kl</td>")[1].split("</tr>")[0]
    assert all(f"<td>{shown}</td>" in row for shown in ("1.4", "0.0056", "0.0126", "15.0 %", "50.0 %", "96"))
    assert "<td>0.0 %</td>" in html.split("code-kl</td>")[1].split("</tr>")[0]
    assert "broken" in html and "The others are shown" in html


def test_a_quality_sets_the_price_of_a_new_run(form, prices):
    prices(make("other-kl", 1.0, model_revision="another"))
    page = form(quality="prose-kl")
    assert page.selectbox(key="quality").options == ["none", "code-kl", "prose-kl"]
    told = (
        "KL to dense at most 0.01 nats a token on prose (the 4 documents measured), in the mean over windows of up to "
        "16,384 tokens, each counted up to 0.04, with confidence 0.95"
    )
    assert told in page.told
    assert page.number_input(key="price").disabled
    request = form.asked(page)
    assert (request.price, request.quality) == (1.4, "prose-kl")
    # The same settings again: the target, and its price for the day when it is gone.
    address = new_run_address.of_request(request)
    assert (address["quality"], address["price"]) == ("prose-kl", 1.4)


def test_a_run_names_the_target_that_set_its_price(factory):
    run = replace(
        factory.make_record().run, policy="priced", price=0.6, tau_layer=0.7, tuned_price="prose-kl"
    )
    assert setting_words.parts(vars(run))["quality"] == "quality prose-kl"
    # Beside the price, since the column Settings of a narrow table cuts what comes last.
    assert setting_words.of_run(vars(run)).startswith("priced 0.6, quality prose-kl, τ layer 0.70, ")
    address = new_run_address.of_run(run)
    assert (address["quality"], address["price"]) == ("prose-kl", 0.6)
    by_hand = replace(run, tuned_price=None)
    assert "quality" not in setting_words.parts(vars(by_hand))
    assert new_run_address.of_run(by_hand)["price"] == 0.6
    assert setting_words.differing([setting_words.parts(vars(one)) for one in (run, by_hand)]) == [
        "quality prose-kl", ""
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("quality", "price", "taken"),
    [("gone-kl", "0.7", 0.7), ("gone-kl", None, None), ("prose-kl", "0.7", 1.4)],
)
def test_running_again_keeps_the_price_of_a_target_that_is_gone(form, prices, quality, price, taken):
    prices()
    address = {"quality": quality} if price is None else {"quality": quality, "price": price}
    page = form(**address)
    assert ("names what is not here: quality=gone-kl." in page.told) == (quality == "gone-kl")
    request = form.asked(page)
    assert (request.price, request.quality) == (taken, quality if quality == "prose-kl" else None)


def test_a_target_that_says_nothing_here_blocks_until_only_its_price_is_used(form, open_page, prices):
    prices(make("old-kl", 1.0, library_hash="another"))
    page = form(quality="old-kl")
    assert "tuned with pattern library another" in page.told and page.button(key="submit").disabled
    varied = open_page("new_run", source="Paste", quality="old-kl", vary="time limit", limits="0.3, 0.5")
    assert "tuned with pattern library another" in varied.told
    press(page, "Use price 1 without it")
    assert not page.button(key="submit").disabled
    assert page.selectbox(key="quality").value == "none" and page.number_input(key="price").value == 1.0


def test_a_target_that_was_tuned_on_far_shorter_windows_says_so(form, prices):
    prices(make("short-kl", 1.0, tokens=50), make("long-kl", 1.0, tokens=65_536))
    page = form(quality="short-kl")
    assert "tuned on windows of up to 50 tokens, this prompt has" in page.told.replace("&#x27;", "'")
    assert not page.button(key="submit").disabled
    # The worker's segments are as long where it has a GPU; a shorter one that was asked for is wrong on any.
    page = form(quality="long-kl")
    assert "tuned on windows" not in page.told and not page.button(key="submit").disabled


def test_a_target_of_longer_windows_takes_longer_segments_where_none_were_asked_for(form, open_page, prices):
    prices(make("long-kl", 1.4, tokens=32_768))
    page = form(quality="long-kl")
    assert "in one segment" not in page.told and not page.button(key="submit").disabled
    short = open_page("new_run", source="Paste", quality="long-kl", segment=16_384)
    assert "tuned on windows of 32,768 tokens in one segment" in short.told
    press(short, "Use segments of 32,768 tokens")
    assert short.number_input(key="segment").value == 32_768
    assert "in one segment" not in short.told


def test_a_job_whose_target_changed_meanwhile_says_so(home, prices):
    prices()
    asked = RunRequest(model="demo", quality="prose-kl", price=1.4)
    assert analysis._target(asked).price == 1.4
    prices(make("prose-kl", 0.9))
    with pytest.raises(
        CalibrationError, match="'prose-kl' changed or was deleted since this job was submitted"
    ):
        analysis._target(asked)
    (tuned.own_folder() / "code-kl.json").unlink()
    with pytest.raises(CalibrationError, match="'code-kl' changed or was deleted"):
        analysis._target(RunRequest(model="demo", quality="code-kl", price=0.5))
