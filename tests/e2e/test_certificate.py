"""A user certifies a rule on a tiny model; the dashboard shows the verdict and the head that lost most. No GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from routesparse.engine.store.bundle import read_certificate, write_bundle

TINY = Path(__file__).resolve().parents[1] / "engine" / "tiny_model.py"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The home, and the certificate that the command line put into its spool."""
    home = tmp_path_factory.mktemp("certified")
    spec = importlib.util.spec_from_file_location("certified_tiny_model", TINY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.save(home / "tiny")
    (home / "ledger.txt").write_text("The harbour master counts vessels, pier by pier. " * 14)
    command = [
        sys.executable,
        "-m",
        "routesparse.engine.cli.main",
        "certify",
        "--json",
        "--method",
        "window=64",
    ]
    command += ["--prompt", str(home / "ledger.txt"), "--model", str(home / "tiny")]
    environment = {**os.environ, "ROUTESPARSE_HOME": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return home, read_certificate(Path(json.loads(done.stdout)["bundle"]))


def test_from_the_command_line_to_the_worst_head(serve, made, context, page):
    home, record = made
    row = record.certificate
    worst = max(
        (claim for claim in record.claims if claim.scope == "head"), key=lambda claim: claim.mean_error
    )
    with serve.dashboard(home) as address:
        page.goto(f"{address}/runs")
        table = page.locator(".st-key-card-certificates [data-testid=stDataFrame]")
        table.wait_for()
        page.get_by_text("n = 1 certificate ·").wait_for()
        table.click(position={"x": 80, "y": 50})
        page.wait_for_url(re.compile(r"/trust\?run="))
        page.locator(".rs-title", has_text="Certificate of window=64").wait_for()
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
        page.get_by_text("This is a certificate of window=64; no routing was recorded").wait_for()
        page.get_by_role("link", name="Open the certificate").click()
        page.locator(".rs-title", has_text="Certificate of window=64").wait_for()
    assert context.failures == []
    assert context.hosts() == {"127.0.0.1"}


@pytest.fixture(scope="module")
def wide(factory):
    """A certificate with the longest cells: two prompts of 128K tokens, a tolerance, long labels and tokens."""
    made = factory.make_certificate(layers=32, heads=32, tokens=131_072, batch=2, tolerance=0.02)
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


def test_every_column_of_a_certificates_tables_is_seen(serve, wide, page, tmp_path):
    write_bundle(wide, tmp_path / "spool")
    with serve.dashboard(tmp_path) as address:
        page.goto(f"{address}/trust?run={wide.certificate.run_id[-8:]}&details=true")
        page.get_by_text("What it does not say").wait_for()
        tables = page.locator(".rs-table")
        tables.nth(2).wait_for()
        for width in (1024, 1120, 1280, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(500)
            for table in tables.all():
                room, seen = table.evaluate("e => [e.scrollWidth, e.clientWidth]")
                assert room <= seen, (width, table.inner_text()[:60])
