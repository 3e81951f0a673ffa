"""Two people who logged in, in two browsers: the cookie that the login leaves decides whose runs a session sees.

The cookie is signed as Streamlit signs it after a login; no identity provider is asked.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value

from routesparse.app.shell import identity
from routesparse.engine.store import bundle

pytestmark = pytest.mark.timeout(180)
SECRET = "0123456789abcdef0123456789abcdef"
ISSUER = "https://login.example"
RUNS = {"ann": "a1a1a1a1a1a1a1a1", "bob": "b2b2b2b2b2b2b2b2"}


@pytest.fixture(scope="module")
def address(serve, factory, tmp_path_factory):
    home = tmp_path_factory.mktemp("owners")
    for name, run_id in RUNS.items():
        made = factory.make_record(run_id, name=f"{name}s.txt", layers=2, heads=2, segments=1, tokens=2048)
        owner = identity._digest("sub", ISSUER, name)
        bundle.write_bundle(replace(made, run=replace(made.run, owner=owner)), home / "spool")
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
