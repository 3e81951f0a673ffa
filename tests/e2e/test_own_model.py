"""A model of one's own, end to end with a real worker: its folder put in place, profiled, calibrated, analysed with.

The model is a tiny random Llama with one token per byte; the calibration has three prompts, which is too few for a
claim and enough for the whole way.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TINY = Path(__file__).resolve().parents[1] / "engine" / "tiny_model.py"
TEXTS = [f"Ledger {place}: the harbour master counts vessels, pier by pier. " * 14 for place in range(4)]

JOB_MS = 180_000  # of a job on a machine that others use, too

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with the model and a folder that is broken in its models folder."""
    home = tmp_path_factory.mktemp("own-model") / "home"
    spec = importlib.util.spec_from_file_location("e2e_tiny_model", TINY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.save(home / "models" / "tiny")
    (home / "models" / "broken").mkdir()
    return home


@pytest.fixture(scope="module")
def address(serve, home):
    with serve.worker(home), serve.dashboard(home) as running:
        yield running


def number(page, label, value, shows):
    """Enter a number and wait for what it changes: a field that is typed in during a rerun may lose it."""
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    field = page.get_by_label(label, exact=True)
    field.fill(str(value))
    field.press("Enter")
    page.get_by_text(shows).wait_for()


def state(page, check):
    """What the list says about one thing."""
    return page.locator(f".st-key-check-{check}").inner_text()


def test_use_my_own_model_folder(address, page, context):
    page.goto(f"{address}/models?model=broken")
    page.get_by_text("has no config.json").first.wait_for()
    assert page.get_by_role("button", name="Analyse with this model").count() == 0

    page.goto(f"{address}/models?model=tiny")
    page.get_by_text("Reads up to 1,000 tokens").wait_for()
    assert "None for head size 16" in state(page, "latency-profile")
    assert "None for these weights" in state(page, "calibrations")

    page.get_by_role("button", name="Measure a quick profile").click()
    page.wait_for_url("**/?job=*")
    page.get_by_text("measure this machine").first.wait_for()
    page.get_by_role("link", name="Back to the model").click(timeout=JOB_MS)
    page.wait_for_url("**/models?model=tiny")
    page.locator(".st-key-check-latency-profile .green").wait_for()

    number(page, "Shortest prompt, tokens", 520, "84 prompts of 520 to 1,000 tokens")
    number(page, "Longest prompt, tokens", 600, "84 prompts of 520 to 600 tokens")
    number(page, "Prompts to fit on", 1, "61 prompts of 520")
    number(page, "Prompts to take δ from", 2, "3 prompts of 520")
    files = [
        {"name": f"{place}.txt", "mimeType": "text/plain", "buffer": text.encode()}
        for place, text in enumerate(TEXTS)
    ]
    page.locator("input[type=file]").set_input_files(files)
    # The list of files is the browser's; this line says that the page has them.
    page.get_by_text("Name the domain of these texts to begin").wait_for()
    page.get_by_label("Domain", exact=True).fill("harbour")
    page.get_by_label("Domain", exact=True).press("Enter")
    page.get_by_role("button", name="Calibrate", exact=True).click()
    page.wait_for_url("**/?job=*")
    page.get_by_role("link", name="Open the calibration").wait_for(timeout=JOB_MS)
    page.get_by_role("link", name="Back to the model").click()
    page.locator(".st-key-check-calibrations .green").wait_for()
    assert "harbour (520 to 600 tokens, made today)" in state(page, "calibrations")

    page.get_by_role("button", name="Analyse with this model").click()
    page.wait_for_url("**/new?with_model=tiny")
    page.get_by_text("What it will take").wait_for()
    assert page.get_by_text("Prepare this model").count() == 0, "nothing is missing"
    page.goto(f"{address}/new?with_model=tiny&calibration=harbour&break_even=0&source=Paste")
    page.get_by_text("No usable prompt yet").wait_for()
    page.get_by_placeholder("Paste the prompt here").fill(TEXTS[0][:560])
    page.get_by_placeholder("Paste the prompt here").press("Control+Enter")
    page.get_by_text("the model reads up to").wait_for()
    page.get_by_role("button", name="Analyse", exact=True).click()
    page.wait_for_url("**/?job=*")
    page.get_by_role("button", name="Open the routing map").click(timeout=JOB_MS)
    page.wait_for_url("**/map?run=*")
    page.get_by_text("harbour").first.wait_for()
    assert context.failures == []
    assert context.hosts() == {"127.0.0.1"}
