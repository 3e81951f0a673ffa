"""A login from the first page to the last, at a real OpenID provider on this machine: nothing of it is imitated.

The provider is oidc-provider-mock, a process of its own that speaks the authorization code flow and signs its tokens.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value

from routesparse.app.shell import identity
from routesparse.engine.store import bundle
from tests.e2e import serve
from tests.e2e.serve import settled

pytestmark = pytest.mark.timeout(240)
RUNS = {"ann": "a1a1a1a1a1a1a1a1", "bob": "b2b2b2b2b2b2b2b2"}
PROXY = "dash.localhost"  # which browsers resolve to this machine
METADATA = "/.well-known/openid-configuration"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    """The address of a running provider that knows Ann and Bob."""
    port = serve.free_port()
    people = [{"sub": name, "name": name.title(), "email": f"{name}@example.org"} for name in RUNS]
    known = [argument for person in people for argument in ("--user-claims", json.dumps(person))]
    command = [sys.executable, "-m", "oidc_provider_mock", "--host", "127.0.0.1", "--port", str(port), *known]
    log = tmp_path_factory.mktemp("provider") / "log"
    with open(log, "wb") as sink:
        provider = subprocess.Popen(command, stdout=sink, stderr=sink)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while not serve.answers(address + METADATA):
            assert provider.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield address
    finally:
        provider.terminate()
        provider.wait(10)


@pytest.fixture(scope="module")
def shared(factory, issuer, tmp_path_factory):
    """shared(public, port, **options): a dashboard with a run of Ann's and one of Bob's, which asks the provider."""

    def start(public, port, **options):
        home = tmp_path_factory.mktemp("login")
        for name, run_id in RUNS.items():
            made = factory.make_record(
                run_id, name=f"{name}s.txt", layers=2, heads=2, segments=1, tokens=2048
            )
            owner = identity.digest("sub", issuer, name)
            bundle.write_bundle(replace(made, run=replace(made.run, owner=owner)), home / "spool")
        secrets = home / "secrets.toml"
        secrets.write_text(
            f"""[auth]
redirect_uri = "{public}/oauth2callback"
cookie_secret = "0123456789abcdef0123456789abcdef"
client_id = "dashboard"
client_secret = "known to the provider"
server_metadata_url = "{issuer}{METADATA}"
"""
        )
        chosen = ["--secrets.files", str(secrets), *options.pop("options", ())]
        return serve.dashboard(home, options=chosen, port=port, **options)

    return start


@pytest.fixture(scope="module")
def address(shared):
    port = serve.free_port()
    with shared(f"http://127.0.0.1:{port}", port) as running:
        yield running


@pytest.fixture
def page(context):
    """A page that reaches this machine only: the provider's own pages ask the network for a style."""
    own = ("http://127.0.0.1:", f"http://{PROXY}:")
    context.route(lambda url: not url.startswith(own), lambda route: route.abort())
    return context.new_page()


def log_in(page, address, name) -> None:
    """Press the button, say at the provider who one is, come back."""
    page.goto(f"{address}/runs")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Authorize Client").wait_for()
    page.get_by_role("button", name=name, exact=True).first.click()
    page.locator("[data-testid=stSidebar]").get_by_text(name.title(), exact=True).wait_for()


def test_log_in_see_one_s_own_runs_only_log_out(page, address):
    name, other = "ann", "bob"
    page.goto(f"{address}/map?run={RUNS[name]}")
    page.get_by_text("Please log in").wait_for()
    assert f"{name}s.txt" not in page.content()

    log_in(page, address, name)
    page.goto(f"{address}/map")
    page.get_by_text(f"{name}s.txt").first.wait_for()
    page.goto(f"{address}/map?run={RUNS[other]}")
    page.get_by_text("This link leads nowhere").wait_for()
    assert f"{other}s.txt" not in page.content()

    page.get_by_role("button", name="Log out").click()
    page.get_by_role("button", name="End session").click()  # the provider's page: its session ends too
    page.get_by_text("Please log in").wait_for()
    page.goto(f"{address}/map?run={RUNS[name]}")
    page.get_by_text("Please log in").wait_for()
    settled(page)
    assert f"{name}s.txt" not in page.content() and page.locator(".rs-map").count() == 0


@pytest.mark.parametrize("answer", ["deny", "guessed", "forged"])
def test_whoever_the_provider_does_not_vouch_for_stays_outside(page, context, address, issuer, answer):
    page.goto(f"{address}/runs")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Authorize Client").wait_for()
    if answer == "deny":
        page.get_by_role("button", name="Deny").click()
        page.wait_for_url(f"{address}/**")
    elif answer == "guessed":
        page.goto(f"{address}/oauth2callback?code=guessed&state=guessed")
    else:  # a cookie signed with another secret
        claims = {"origin": address, "is_logged_in": True, "iss": issuer, "sub": "ann", "name": "ann"}
        cookie = create_signed_value("f" * 32, "_streamlit_user", json.dumps(claims)).decode()
        context.add_cookies([{"name": "_streamlit_user", "value": cookie, "url": address}])
    page.goto(f"{address}/map?run={RUNS['ann']}")
    page.get_by_text("Please log in").wait_for()
    assert "anns.txt" not in page.content()


def test_behind_a_proxy_the_login_comes_back_below_its_path(shared, page, tmp_path):
    public = f"http://{PROXY}:{serve.free_port()}/routesparse"
    with (
        shared(
            public, serve.free_port(), base="/routesparse", options=["--server.allowedHosts", PROXY]
        ) as inner,
        serve.proxy(inner, public, tmp_path / "proxy.log"),
    ):
        log_in(page, public, "ann")
        page.goto(f"{public}/map?run={RUNS['ann']}")
        page.get_by_text("anns.txt").first.wait_for()
        cookies = [found for found in page.context.cookies() if found["name"].startswith("_streamlit_user")]
        assert cookies and all(found["path"].startswith("/routesparse") for found in cookies), cookies
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("button", name="End session").click()
        page.get_by_text("Please log in").wait_for()
