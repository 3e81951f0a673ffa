"""The loss target of a fitted model on New run, and what pages tell of fits. No GPU, no browser, no model loaded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from routesparse.app.shell import new_run_address, setting_words
from routesparse.engine.calibration import fitted
from tests.app.conftest import press

DEFAULT = "Loss at most 0.01 (default)"


def test_a_fitted_model_aims_at_the_default_loss_and_says_the_price(form, fit):
    page = form()
    offered = [DEFAULT, "Loss at most 0.02", "Loss at most 0.05", "own price"]
    assert page.selectbox(key="quality").options == offered and page.selectbox(key="quality").value == DEFAULT
    assert "price 0.09: KL to dense at most 0.01 nats a token on the mean of code, dialog" in page.told
    assert "Fitted on code, dialog, prose" in page.told
    price = page.number_input(key="price")
    assert price.disabled and price.placeholder == "0.09"
    page.selectbox(key="quality").set_value("Loss at most 0.05").run()
    page.text_input(key="in_domain").set_value("dialog").run()
    assert "price 0.5: KL to dense at most 0.05 nats a token on dialog" in page.told
    request = form.asked(page)
    assert (request.loss, request.price, request.quality, request.domain) == (0.05, None, None, "dialog")
    address = new_run_address.of_request(request)
    assert address["quality"] == "Loss at most 0.05" and "price" not in address
    words = setting_words.asked(request)
    assert "loss at most 0.05" in words and "price 0.5" not in words


@pytest.mark.parametrize(
    ("address", "loss", "price"),
    [
        ({"price": "0.3"}, None, 0.3),  # as a run by hand has it
        ({"quality": "own price"}, None, 0.5),  # said, since the worker would aim at the default
        ({"quality": "Loss at most 0.03", "price": "0.18"}, 0.03, None),
        ({"quality": "Loss at most nan"}, 0.01, None),
        ({"quality": "gone-kl", "price": "0.3"}, None, 0.3),
        ({"with_policy": "certified"}, None, None),
    ],
)
def test_an_address_keeps_its_price_or_its_target(form, fit, address, loss, price):
    page = form(**address)
    assert "is not fitted" not in page.told
    request = form.asked(page)
    assert (request.loss, request.price) == (loss, price)


def test_a_calibration_and_a_scaling_leave_no_loss_target(form, fit, make_calibration, demo_home):
    make_calibration("mine", 0.95, 0.02, revision=fit.model_revision).save(demo_home / "calibrations")
    assert form(calibration="mine").selectbox(key="quality").options == ["none"]
    scaled = form(rope='{"rope_type": "linear", "factor": 2.0}')
    assert scaled.selectbox(key="quality").options == ["none"] and "is not fitted" not in scaled.told


def test_a_model_without_a_fit_says_how_it_gets_one_until_it_has(form, fit):
    replace(fit, model_revision="another").save(fitted.own_folder() / "own.json")
    page = form()
    assert "demo is not fitted: no loss target; price 0.5. To fit it:" in page.told
    assert "fit demo --prompts FOLDER" in page.told and "models?named=demo" in page.told
    assert page.selectbox(key="quality").options == ["none"]
    fit.save(fitted.own_folder() / "own.json")
    assert page.run().selectbox(key="quality").value == DEFAULT
    request = form.asked(page)
    assert request.loss == 0.01


def test_a_price_that_promises_nothing_here_is_told_and_does_not_block(form, fit):
    page = form(quality="Loss at most 0.05", segment="1024")
    assert "in one segment" in page.told and not page.button(key="submit").disabled
    press(page, "Use price 0.35 without it")
    assert page.selectbox(key="quality").value == "own price"
    assert form.asked(page).price == 0.35


def test_a_fit_that_cannot_be_read_blocks_with_what_to_do(form, fit):
    (fitted.own_folder() / "own.json").write_text(json.dumps({"kind": "fit", "schema": 1}))
    page = form()
    assert "corrupt" in page.told and page.button(key="submit").disabled


def test_a_run_that_aimed_is_run_again_with_its_target(factory):
    run = replace(factory.make_record().run, price=0.18, tuned_price="mixed-kl-0.02", loss_target=0.02)
    assert new_run_address.of_run(run)["quality"] == "Loss at most 0.02"
    assert (
        new_run_address.loss_of("Loss at most 1e-05") == 1e-05 and new_run_address.loss_of("prose-kl") is None
    )


def test_models_names_the_price_of_each_kind_or_the_command_that_fits(demo_home, open_page, fit):
    page = open_page("models")
    told = "Fitted on code, dialog, prose; price for a loss of 0.01 nats: 0.06 on code, 0.12 on dialog"
    assert told in page.told and "0.18 on prose, 0.09 on mixed" in page.told
    assert "Added to the fit on code, dialog, prose, at its prices: 0.06, " in page.told
    (fitted.own_folder() / "own.json").unlink()
    page = open_page("models")
    assert "Not fitted: no loss target; price 0.5." in page.told
    assert "fit demo --prompts FOLDER" in page.told and "and weighing the heads" in page.told
