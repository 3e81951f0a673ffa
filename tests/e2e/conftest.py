"""Fixtures of the browser tests: Chromium, and pages that record what they fetch.

Skipped with a reason where Chromium (Debian's package) or Playwright is missing. No GPU.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from routesparse.engine.store.bundle import write_bundle
from tests.e2e import serve


def _host(url: str) -> str | None:
    """Whom a request goes to; nobody for data in the address itself."""
    return urlsplit(url.removeprefix("blob:")).hostname


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """site(*records): the address of a dashboard that several files share, with these runs among others.

    Runs are listed with others: find one by ``?q=``.
    """
    home, known = tmp_path_factory.mktemp("site"), set()

    def of(*records):
        for record in records:
            run_id = (getattr(record, "run", None) or record.certificate).run_id
            if run_id not in known:
                write_bundle(record, home / "spool")
                known.add(run_id)
        return address

    with serve.dashboard(home) as address:
        yield of


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not serve.CHROMIUM.exists():
        pytest.skip(f"{serve.CHROMIUM} is not installed")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=str(serve.CHROMIUM), args=serve.FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def context(browser):
    """A browser context; ``seen`` holds the address of every request, ``hosts()`` whom they went to, ``failures``
    what scripts threw."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    context.seen, context.failures = [], []
    context.hosts = lambda: {_host(url) for url in context.seen} - {None}
    context.on("request", lambda request: context.seen.append(request.url))
    context.on("weberror", lambda error: context.failures.append(str(error.error)))
    yield context
    context.close()


@pytest.fixture
def page(context):
    """A page in it."""
    return context.new_page()
