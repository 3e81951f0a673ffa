"""Below a path behind a reverse proxy: links, reloads, browser parts, uploads, downloads and the copied link.

The proxy (proxy.py) has nothing but ``/routesparse``, and every request is looked at: none may lead out of it. The
public name is one that browsers resolve to this machine. The login below a path is in test_login.py.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from routesparse.engine.store import bundle
from tests.e2e import serve
from tests.e2e.serve import click_cell

pytestmark = pytest.mark.timeout(240)
HOST, BASE = "dash.localhost", "/routesparse"


@pytest.fixture(scope="module")
def record(factory):
    return factory.make_record(hardness=0.9)


@pytest.fixture(scope="module")
def address(record, tmp_path_factory):
    """What people type: the proxy's name, port and path."""
    home = tmp_path_factory.mktemp("proxied")
    bundle.write_bundle(record, home / "spool")
    public = f"http://{HOST}:{serve.free_port()}{BASE}"
    options = ["--server.allowedHosts", HOST]
    with (
        serve.dashboard(home, options=options, base=BASE) as inner,
        serve.proxy(inner, public, home / "proxy.log"),
    ):
        yield public


@pytest.fixture
def page(context, address):
    """A page of which no request has left the path when the test ends, and no script failed."""
    page = context.new_page()
    missing = []
    page.on("response", lambda answer: missing.append(answer.url) if answer.status >= 400 else None)
    yield page
    own = [urlsplit(url) for url in context.seen if url.startswith("http")]
    assert {part.netloc for part in own} == {urlsplit(address).netloc}
    assert {part.path for part in own if not f"{part.path}/".startswith(f"{BASE}/")} == set()
    # The browser's side of Streamlit looks for its server below the page first, then one step up.
    missing = [url for url in missing if not url.endswith(("/_stcore/health", "/_stcore/host-config"))]
    assert (missing, context.failures) == ([], [])


def test_relative_links_of_the_pages_stay_below_the_path(address, page):
    page.goto(address)  # without a slash at the end, as people type it
    page.wait_for_url(f"{address}/")
    for name in ("Runs", "Trust"):
        page.locator("[data-testid=stSidebar]").get_by_role("link", name=name, exact=True).click()
        serve.settled(page)
        links = "links => links.map((link) => link.href)"
        found = page.eval_on_selector_all(
            "[data-testid=stMain] a[href], [data-testid=stSidebar] a[href]", links
        )
        assert len(found) >= 10 and [link for link in found if not link.startswith(f"{address}/")] == [], name


def test_a_link_to_a_view_opens_it_its_map_answers_and_its_address_can_be_copied(
    address, page, context, record, tmp_path
):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{address}/map?run={record.run.run_id[:8]}&layer=5&head=5")
    page.get_by_text("Layer 5, head 5: why").wait_for()
    click_cell(page, 3, 4)
    page.get_by_text("Layer 3, head 4: why").wait_for()
    page.wait_for_url("**layer=3**")
    page.get_by_text("Trust in this run").click()
    page.wait_for_url(f"{address}/trust?**")
    page.get_by_text("Worst heads, by output error").wait_for()
    page.reload()
    page.get_by_text("Worst heads, by output error").wait_for()
    page.get_by_role("button", name="Export").click()
    page.get_by_role("button", name="Make ZIP").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save,").click()
    waiting.value.save_as(tmp_path / "run.zip")
    assert (tmp_path / "run.zip").read_bytes()[:2] == b"PK"
    page.get_by_role("button", name="Copy link").click()
    page.locator(".rs-copy span").get_by_text("opens this view").or_(
        page.locator(".rs-copy input:visible")
    ).wait_for()
    copied = page.locator(".rs-copy input").input_value() or page.evaluate("navigator.clipboard.readText()")
    assert copied == page.url and copied.startswith(f"{address}/trust?")
    page.goto(f"{address}/new")
    text = {"name": "words.txt", "mimeType": "text/plain", "buffer": b"a few words " * 400}
    page.locator("input[type=file]").first.set_input_files(text)
    page.get_by_text("the model reads up to").wait_for()
