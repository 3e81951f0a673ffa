"""Two people who logged in, in two browsers: the cookie that the login leaves decides whose runs a session sees.

The cookie is signed as Streamlit signs it after a login; no identity provider is asked.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import pytest
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value

from routesparse.app.shell import identity
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.duckdb_store import Store

pytestmark = pytest.mark.timeout(180)
SECRET = "0123456789abcdef0123456789abcdef"
ISSUER = "https://login.example"
OWNERS = {name: identity._digest("sub", ISSUER, name) for name in ("ann", "bob")}
RUNS = {"ann": "a1a1a1a1a1a1a1a1", "bob": "b2b2b2b2b2b2b2b2"}
SHARED, ANNS_SWEEP = "5eeb" * 4, "a55e" * 4  # a sweep of both, one setting each, and one of Ann's
SAMPLE = "5a5a5a5a90e1f005"


@pytest.fixture(scope="module")
def address(serve, factory, tmp_path_factory):
    home = tmp_path_factory.mktemp("owners")
    for name, run_id in RUNS.items():
        made = factory.make_record(run_id, name=f"{name}s.txt", layers=2, heads=2, segments=1, tokens=2048)
        run = replace(made.run, owner=OWNERS[name], sweep=SHARED)
        bundle.write_bundle(replace(made, run=run), home / "spool")
    hers = replace(run, owner=OWNERS["ann"], prompt_name="anns.txt", sweep=ANNS_SWEEP)
    bundle.write_bundle(factory.rename(replace(made, run=hers), "a3" * 8), home / "spool")
    shared = replace(made.run, prompt_name="shared.txt", created_at="2026-11-19T00:00:00Z")
    sample = factory.rename(replace(made, run=shared), SAMPLE)
    bundle.write_bundle(sample, home / "samples")
    with closing(Store(home / "routesparse.duckdb", bundles=home / "bundles", trash=home / "trash")) as store:
        spool.ingest_samples(store, home / "samples")
    calibration = replace(load_calibration("prose"), name="anns-harbour")
    calibration.save(home / "calibrations" / f"of-{OWNERS['ann']}")
    secrets = home / "secrets.toml"
    secrets.write_text(
        f"""[auth]
redirect_uri = "http://127.0.0.1/oauth2callback"
cookie_secret = "{SECRET}"
client_id = "dashboard"
client_secret = "known to the provider"
server_metadata_url = "{ISSUER}/.well-known/openid-configuration"
"""
    )
    with serve.dashboard(home, options=["--secrets.files", str(secrets)]) as running:
        yield running


@pytest.fixture
def visit(browser, address):
    """visit(name, path): a page of a fresh browser in which this person, or nobody, has logged in."""
    contexts = []

    def open_page(name, path, secret=SECRET):
        context = browser.new_context()
        context.set_default_timeout(60_000)
        contexts.append(context)
        if name is not None:
            claims = {"origin": address, "is_logged_in": True, "iss": ISSUER, "sub": name, "name": name}
            cookie = create_signed_value(secret, "_streamlit_user", json.dumps(claims)).decode()
            context.add_cookies([{"name": "_streamlit_user", "value": cookie, "url": address}])
        page = context.new_page()
        page.goto(address + path)
        page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("name", "secret"), [(None, SECRET), ("ann", "f" * 32)], ids=["nobody", "forged"])
def test_without_a_login_nothing_is_shown(visit, name, secret):
    page = visit(name, f"/map?run={RUNS['ann']}", secret)
    page.get_by_text("Please log in").wait_for()
    assert "anns.txt" not in page.content() and page.locator(".rs-map").count() == 0


@pytest.mark.parametrize(("name", "other"), [("ann", "bob"), ("bob", "ann")])
def test_everybody_sees_their_own_run_and_the_other_s_link_leads_nowhere(visit, name, other):
    page = visit(name, "/map")
    page.get_by_text(f"{name}s.txt").first.wait_for()
    page.locator("[data-testid=stSidebar]").get_by_text(name, exact=True).wait_for()
    page = visit(name, f"/map?run={RUNS[other]}")
    page.get_by_text("This link leads nowhere").wait_for()
    assert f"{other}s.txt" not in page.content()


def settled(page):
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    page.wait_for_timeout(400)


def tick_the_only_run(page):
    page.locator("[data-testid=stDataFrame] canvas").first.wait_for()
    settled(page)
    page.locator("[data-testid=stDataFrame]").click(position={"x": 17, "y": 48})


def test_a_link_to_a_sweep_leads_everybody_to_their_own_settings(visit):
    for name, other in (("ann", "bob"), ("bob", "ann")):
        page = visit(name, f"/sweep?sweep={SHARED}")
        page.get_by_text(f"{name}s.txt").first.wait_for()
        assert page.locator(".st-key-card-settings-table tr").count() == 2, "a heading and one setting"
        assert f"{other}s.txt" not in page.content() and RUNS[other][-8:] not in page.content()
    page = visit("bob", f"/sweep?sweep={ANNS_SWEEP}")
    page.get_by_text("This link leads nowhere").wait_for()


def test_a_calibration_is_listed_on_models_and_offered_to_its_maker_alone(visit):
    page = visit("ann", "/models")
    page.get_by_text("anns-harbour").wait_for()
    page = visit("bob", "/models")
    page.locator(".st-key-check-calibrations").wait_for()
    settled(page)
    assert "anns-harbour" not in page.content()
    page = visit("bob", "/new?calibration=anns-harbour")
    settled(page)
    page.get_by_role("combobox", name="Calibration").first.click()
    page.get_by_role("option", name="prose").wait_for()
    assert page.get_by_role("option", name="anns-harbour").count() == 0


def test_names_tags_and_the_pin_of_a_shared_sample_are_one_s_own(visit):
    page = visit("ann", f"/runs?q={SAMPLE[-8:]}")
    tick_the_only_run(page)
    page.get_by_role("button", name="Name, notes, tags").click()
    page.get_by_label("Name", exact=True).fill("anns-name")
    page.get_by_role("textbox", name="Notes", exact=True).fill("anns-notes")
    page.get_by_role("button", name="Save").click()
    settled(page)
    page = visit("ann", f"/runs?q={SAMPLE[-8:]}")
    tick_the_only_run(page)
    page.get_by_role("button", name="Pin as baseline").click()
    page.get_by_text("Baseline:").wait_for()
    visit("ann", f"/map?run={SAMPLE}").get_by_text("anns-name").first.wait_for()
    page = visit("bob", "/runs")
    page.get_by_text("2 runs", exact=True).wait_for()
    settled(page)
    assert page.get_by_text("Baseline:").count() == 0
    page = visit("bob", "/runs?q=anns-notes")
    page.get_by_text("No run passes the filter").wait_for()
    page = visit("bob", f"/map?run={SAMPLE}")
    page.locator(".rs-map svg").wait_for()
    assert "anns-name" not in page.content()


def test_what_one_deletes_or_exports_the_other_neither_sees_nor_brings_back(visit):
    page = visit("ann", f"/map?run={RUNS['ann']}")
    page.get_by_role("button", name="Export").click()
    page.get_by_role("button", name="Make ZIP").click()
    page.get_by_role("button", name="Save,").wait_for()
    page = visit("bob", f"/map?run={RUNS['ann']}")
    page.get_by_text("This link leads nowhere").wait_for()
    assert page.get_by_role("button", name="Export").count() == 0
    page = visit("ann", f"/runs?q={RUNS['ann'][-8:]}")
    tick_the_only_run(page)
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Move to the trash").click()
    page.get_by_text("Trash: 1 run").wait_for()
    page = visit("bob", "/runs")
    page.get_by_text("2 runs", exact=True).wait_for()
    settled(page)
    assert page.get_by_text("Trash:").count() == 0
    page = visit("ann", "/runs")
    page.get_by_text("Trash: 1 run").click()
    page.locator(f".st-key-restore-{RUNS['ann']} button").click()
    page.locator(f".st-key-restore-{RUNS['ann']}").wait_for(state="detached")
    visit("ann", f"/map?run={RUNS['ann']}").get_by_text("anns.txt").first.wait_for()
