"""Trust of a certificate filled and in error; Runs and run pages where there are certificates. No GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routesparse.app.screens.trust import certificate
from routesparse.app.screens.trust.output_claim import claim
from routesparse.app.shell.access import access
from routesparse.engine.store import bundle, certificate_queries

ID = "20261101-120000-ce47f1ca"
RUN = "3f9a1c20d4e5b678"


@pytest.fixture
def certified(waiting, spooled, factory):
    """The two runs, and a certificate of a plan."""
    spooled(of=factory.make_certificate())


def test_verdict_figures_worst_heads_and_what_they_do_not_say(certified, open_page):
    page = open_page("trust", run="ce47f1ca")
    told = page.told
    assert "Certificate of <bdi>window=256</bdi>" in told and 'rs-verdict amber" role="status"' in told
    assert "Differs from exact attention.</b> Rows differ from exact attention." in told
    assert '<b class="">1,024</b><small>64 of each head, drawn at random' in told
    worst = told[told.index("Worst heads") :]
    assert worst.index("layer 3, head 3") < worst.index("layer 3, head 2"), "the worst first"
    assert "<td>1</td><td>115</td>" in worst, "its worst row, and the token"
    assert "Layer by layer" not in told
    assert "Layer by layer" in open_page("trust", run="ce47f1ca", details="true").told
    # 1 - .05^(1/1024), rounded up.
    assert "what touches up to 0.30 % of the rows may have been missed" in told
    assert "Xeon" in told and "float32" in told


def test_named_rows_stand_in_a_table_of_their_own_and_bound_nothing(certified, spooled, factory, open_page):
    told = open_page("trust", run=ID).told
    table = told[told.index("Rows that were named") :].partition("</table>")[0]
    assert "no bound for any other row" in table and "no claim counts them" in table
    assert '<bdi>last:8</bdi></td><td class="l"><bdi>all 8' in table
    assert table.index("“w4095”") < table.index("“w4094”"), "the worst token first"
    spooled(of=factory.make_certificate("20261102-1"), named=())
    assert "Rows that were named" not in open_page("trust", run="20261102-1").told


def test_a_plan_s_mass_and_keys_are_maps_and_a_function_has_none(certified, spooled, factory, open_page):
    spooled(of=factory.make_certificate("20261102-1", plan=None))
    for metric in ("mass", "hit_rate"):
        page = open_page("trust", run=ID, metric=metric)
        assert not page.exception and page.get("bidi_component")
        assert certificate.METRICS[metric].unit in page.told
    page = open_page("trust", run="20261102-1", metric="mass")
    told = page.told
    assert not page.exception and certificate.METRICS["mean_error"].unit in told, "what there is instead"
    assert "Exact up to rounding" in told and "Largest key read" not in told and "rs-verdict green" in told


def test_a_broken_output_is_red_and_its_infinite_error_is_drawn(spooled, factory, open_page):
    record = factory.make_certificate(verdict="broken", sentence="3 of 1,024 sampled rows hold NaN or Inf")
    claims = tuple(
        replace(one, largest_error=float("inf")) if one.head in (None, 3) else one for one in record.claims
    )
    spooled(of=record, claims=claims)
    page = open_page("trust", run=ID, metric="largest_error")
    assert "rs-verdict red" in page.told and "<td>inf</td>" in page.told


@pytest.mark.parametrize(("tolerance", "colour"), [(None, "amber"), (0.05, "red")])
def test_a_tolerance_that_is_not_kept_is_red(spooled, factory, open_page, tolerance, colour):
    spooled(of=factory.make_certificate(tolerance=tolerance))
    assert f"rs-verdict {colour}" in open_page("trust").told


def test_hostile_names_stay_text(spooled, factory, open_page):
    hostile = "<script>alert(1)</script>"
    spooled(of=factory.make_certificate(plan=hostile, prompt_name=hostile))
    for page in (open_page("trust"), open_page("runs")):
        assert not page.exception and hostile not in page.told


@pytest.mark.parametrize("name", ["routing_map", "text", "compare"])
def test_pages_about_a_run_say_that_it_is_a_certificate(certified, open_page, name):
    query = {"runs": f"ce47f1ca,{RUN}"} if name == "compare" else {"run": "ce47f1ca"}
    told = open_page(name, **query).told
    assert "is a certificate of window=256; no routing was recorded" in told
    assert "trust?run=ce47f1ca" in told, "the way to its page"


def test_runs_lists_certificates_apart_from_runs(certified, open_page):
    page = open_page("runs")
    assert not page.exception
    runs, certificates = (table.value for table in page.dataframe)
    assert len(runs) == 2 and len(certificates) == 1
    row = certificates.iloc[0]
    assert (row["certifies"], row["verdict"]) == ("window=256", "! Differs from exact attention")
    assert (row["mass"], row["hit"]) == ("0.75", "80 %")


def test_a_deleted_certificate_can_be_restored(certified, open_page):
    open_page("runs")
    store = access().store
    store.delete_run(ID)
    page = open_page("runs")
    assert len(page.dataframe) == 1, "the runs alone"
    page.button(key=f"restore-{ID}").click().run()
    assert certificate_queries.newest(access().store) == ID


def test_certificates_alone_are_listed_and_shown_too(spooled, factory, open_page):
    spooled(of=factory.make_certificate())
    page = open_page("runs")
    assert "No runs yet" in page.told and len(page.dataframe) == 1
    assert "Certificate of <bdi>window=256</bdi>" in open_page("trust").told


def test_audit_says_the_run_s_own_claim(filled, record, open_page):
    rows, worst = sum(a.rows for a in record.audits), max(a.max_error for a in record.audits)
    told = open_page("trust", run=RUN, details="true").told
    assert claim(rows, False, 0.95, worst) in told and "certify --prompt FILE --method routesparse" in told
    assert claim(rows, False, 0.95, worst) not in open_page("trust", run=RUN, scope="all").told


def test_the_command_of_a_certificate_names_the_run_s_model(home, spooled, open_page):
    (home / "models" / "tiny").mkdir(parents=True)
    spooled(run={"model": "tiny"})
    html = open_page("trust", run=RUN, details="true").told
    assert f"--method routesparse --model {home}/models/tiny" in html


@pytest.mark.parametrize("run_id", [RUN, "c0de17aa90e1f003"], ids=["audited", "not audited"])
def test_audit_lists_the_certificates_of_the_run_s_prompt(waiting, spooled, factory, open_page, run_id):
    run = bundle.read_bundle(waiting / "spool" / run_id).run
    same = {"prompt_sha256": run.prompt_sha256, "model_revision": run.model_revision}
    spooled(of=factory.make_certificate(**same))
    told = open_page("trust", run=run_id, details="true").told
    assert 'href="trust?run=ce47f1ca"' in told and "<bdi>window=256</bdi>" in told


def test_the_claim_s_share_is_rounded_down_and_a_full_audit_needs_none():
    # .05^(1/1000) = .997008...
    assert "at least 99.70 % of" in claim(1000, False, 0.95, 0.5)
    assert claim(1000, True, 0.95, 0.5).startswith("All 1,000 body rows")
