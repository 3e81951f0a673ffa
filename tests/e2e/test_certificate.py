"""A certificate in a browser: from Runs to its verdict and the head that lost most; tables show every column."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def record(factory):
    return factory.make_certificate()


def test_from_the_list_to_the_worst_head(site, record, context, page):
    row = record.certificate
    worst = max(
        (claim for claim in record.claims if claim.scope == "head"), key=lambda claim: claim.mean_error
    )
    address = site(record)
    page.goto(f"{address}/runs")
    table = page.locator(".st-key-card-certificates [data-testid=stDataFrame]")
    table.wait_for()
    page.get_by_text("n = 1 certificate ·").wait_for()
    table.click(position={"x": 80, "y": 50})
    page.wait_for_url(re.compile(r"/trust\?run="))
    page.locator(".rs-title", has_text="Certificate of window=256").wait_for()
    bar = page.locator(".rs-verdict.amber[role=status]")
    bar.get_by_text("Differs from exact attention.").wait_for()
    assert row.sentence[1:] in bar.inner_text()
    first = page.locator(".st-key-card-certificate-worst tr").nth(1).locator("td")
    assert first.nth(0).inner_text() == f"layer {worst.layer}, head {worst.head}"
    assert first.nth(4).inner_text() == f"{worst.worst_position:,}", "its worst token"
    page.locator(".st-key-certificate-map .rs-grid svg").wait_for()
    page.get_by_text("Retained mass", exact=True).last.click()
    page.wait_for_url(re.compile("metric=mass"))
    page.get_by_text("mean retained mass of the plan").wait_for()

    page.goto(f"{address}/map?run={row.run_id[-8:]}")
    page.get_by_text("This is a certificate of window=256; no routing was recorded").wait_for()
    page.get_by_role("link", name="Open the certificate").click()
    page.locator(".rs-title", has_text="Certificate of window=256").wait_for()
    assert context.failures == []
    assert context.hosts() == {"127.0.0.1"}


@pytest.fixture(scope="module")
def wide(factory):
    """A certificate with the longest cells: two prompts of 128K tokens, a tolerance, long labels and tokens."""
    made = factory.make_certificate(
        "20261102-120000-11de11de", layers=32, heads=32, tokens=131_072, batch=2, tolerance=0.02
    )
    claims = tuple(
        replace(
            claim,
            rows=262_144 if claim.scope == "layer" else claim.rows,
            **{} if claim.batch_index is None else {"batch_index": 1, "worst_position": 129_876},
            mean_error=0.123456 * claim.mean_error,
        )
        for claim in made.claims
    )
    seen = {"beyond_rounding": 1023, "beyond_tolerance": 1000, "worst_layer": 31, "worst_head": 31}
    named = tuple(
        replace(row, label="130000:130512", text="internationalization", batch_index=1, position=at, **seen)
        for at, row in enumerate(made.named, 130_000)
    )
    return replace(made, claims=claims, named=named)


def test_every_column_of_a_certificates_tables_is_seen(site, wide, page):
    page.goto(f"{site(wide)}/trust?run={wide.certificate.run_id[-8:]}&details=true")
    page.get_by_text("What it does not say").wait_for()
    tables = page.locator(".rs-table")
    tables.nth(2).wait_for()
    for width in (1024, 1120, 1280, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)
        for table in tables.all():
            room, seen = table.evaluate("e => [e.scrollWidth, e.clientWidth]")
            assert room <= seen, (width, table.inner_text()[:60])
