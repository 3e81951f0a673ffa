"""The Audit page filled, empty and in error, and the queries behind it. No GPU, no browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pandas as pd
import pytest

from routesparse.app.screens.audit import claims, figures
from routesparse.app.shell.access import access
from routesparse.app.ui import design, numbers, prompt_stats, share_figure
from routesparse.engine.store import audit_queries, bundle, queries

RUN = "3f9a1c20d4e5b678"


def text_of(page) -> str:
    return " ".join(str(element.proto.body) for element in page.get("html"))


def sparse_audits(record):
    """(choice, audit) of every audited sparse unit."""
    choices = {(c.layer, c.head, c.segment): c for c in record.choices}
    pairs = [(choices[a.layer, a.head, a.segment], a) for a in record.audits]
    return [(choice, audit) for choice, audit in pairs if choice.pattern != "dense"]


def with_audits(record, **values):
    return replace(record, audits=tuple(replace(a, **values) for a in record.audits))


def test_filled_page_shows_all_parts(filled, record, open_page):
    page = open_page("audit", run=RUN)
    assert not page.exception
    html = text_of(page)
    for part in (
        "Three certificates",
        "Error against its bounds",
        "Audited against certified",
        "Coverage of selected sparse units",
        "Gate statistic g: the probe’s minus the audited one",
        "Worst heads",
    ):
        assert part in html
    assert not page.get("plotly_chart"), "Plotly takes longer to load than the page to draw"
    units = len(sparse_audits(record))
    assert f"{units:,}</b><small>sparse units, {units * 512:,} rows" in html


def test_each_claim_is_held_against_its_own_truth(filled, record, open_page):
    open_page("audit", run=RUN)
    row = audit_queries.coverage(access().store, [RUN]).drop(columns=["run_id", "pattern"]).sum()
    pairs = sparse_audits(record)
    assert row["in_prompt_units"] == len(pairs)
    assert row["in_prompt_covered"] == sum(a.mass >= c.lower_mass for c, a in pairs)
    expected = sum(min(a.mass, c.recent_mass) >= c.conformal_lower_mass for c, a in pairs)
    assert row["conformal_covered"] == expected
    assert row["row_units"] == 0, "not measured is not 0 % covered"


def test_row_coverage_is_a_mean_of_shares(home, record, open_page):
    bundle.write_bundle(with_audits(record, row_covered=0.75), home / "spool")
    assert "<b>75.00 %</b>" in text_of(open_page("audit", run=RUN))


def test_coverage_below_nominal_is_marked(home, record, open_page):
    bundle.write_bundle(with_audits(record, covered=False), home / "spool")
    html = text_of(open_page("audit", run=RUN))
    assert '<b>0.00 %</b><em class="bad">coverage, below the nominal 95 %' in html


@pytest.mark.parametrize("error", [None, 1e-5, 0.05])
def test_a_kernel_that_wrote_something_else_is_a_problem(home, record, open_page, error):
    bundle.write_bundle(with_audits(record, executed_error=error), home / "spool")
    html = text_of(open_page("audit", run=RUN))
    assert ("The kernel’s output is not that of the chosen plan" in html) == (error == 0.05)


def test_one_prompt_has_no_interval_and_many_have_one(waiting, record, factory, open_page):
    for number in range(3):
        other = factory.make_record(
            f"abcd000{number}abcd000{number}",
            name=f"other-{number}.txt",
            layers=2,
            heads=2,
            segments=1,
            tokens=2048,
            seed=number,
            probe=False,
        )
        bundle.write_bundle(with_audits(other, covered=number > 0), waiting / "spool")
    html = text_of(open_page("audit", run=RUN, scope="all"))
    assert re.search(r"4 prompts, \d+ sparse units; 95 % interval 25\.00 % to 100\.00 %", html)
    assert "every prompt has the same share, so there is no interval" in html, (
        "the conformal claim held everywhere"
    )
    assert "one prompt has no interval" in text_of(open_page("audit", run=RUN))


def test_the_same_text_twice_is_one_prompt(waiting, record, factory, open_page):
    bundle.write_bundle(factory.rename(record, "abcdabcd00001111"), waiting / "spool")
    html = text_of(open_page("audit", run=RUN, scope="all"))
    assert "3 runs, 2 prompts" in html and "1 prompt, " in html and "2 prompts, " not in html


@pytest.mark.parametrize("claim", claims.CLAIMS)
@pytest.mark.parametrize("by", claims.GROUPS)
def test_every_claim_and_group_draws(filled, open_page, claim, by):
    page = open_page("audit", run=RUN, claim=claim, by=by)
    assert not page.exception
    if claim == "row":
        assert "no stored run of these weights makes this claim" in text_of(page)
    else:
        assert "diamond: mean over prompts" in text_of(page)


@pytest.mark.parametrize("order", ["error", "worst_row", "margin", "mass"])
def test_worst_heads_come_first_and_link_to_their_head(filled, record, open_page, order):
    html = text_of(open_page("audit", run=RUN, worst=order))
    key = {
        "error": lambda pair: -pair[1].mean_error,
        "worst_row": lambda pair: -pair[1].max_error,
        "margin": lambda pair: pair[1].mass - pair[0].lower_mass,
        "mass": lambda pair: pair[1].mass,
    }[order]
    worst = min(sparse_audits(record), key=key)[0]
    first = html[html.index("head?run=") :].split('"')[0]
    assert (
        first
        == f"head?run=d4e5b678&amp;layer={worst.layer}&amp;head={worst.head}&amp;segment={worst.segment}"
    )


def test_drift_alarm_names_what_still_holds(home, record, open_page):
    alarmed = replace(record.run, drift_alarm=True, drift_p=0.01, drift_distance=5.5, delta=0.043)
    bundle.write_bundle(replace(record, run=alarmed), home / "spool")
    html = text_of(open_page("audit", run=RUN))
    assert "Drift alarm" in html and "still hold" in html


def test_forced_calibration_is_named(home, record, open_page):
    forced = replace(record.run, calibration_mismatch="tau 0.8 instead of 0.9")
    bundle.write_bundle(replace(record, run=forced), home / "spool")
    assert "tau 0.8 instead of 0.9" in text_of(open_page("audit", run=RUN))


def test_full_audit_reports_the_next_token(home, record, open_page):
    full = replace(record.run, audit_depth="full", top1_agreement=1.0, kl_nats=0.0123, logit_error=0.02)
    layers = tuple(replace(row, forward_error=0.01 * (row.layer + 1)) for row in record.layers)
    bundle.write_bundle(replace(record, run=full, layers=layers), home / "spool")
    html = text_of(open_page("audit", run=RUN))
    assert "Against the dense forward, layer by layer" in html and f"n = {len(layers)} layers" in html
    assert "next token agrees with dense" in html and "0.0123 nats" in html


def test_delta_line_is_the_one_that_the_claims_used(filled, record, open_page):
    open_page("audit", run=RUN)
    units = audit_queries.units(access().store, [RUN], 1000)
    assert units["delta"].dropna().round(9).unique().tolist() == [0.043]


def test_units_are_sampled_and_the_worst_are_kept_in_the_picture(filled, record, open_page):
    open_page("audit", run=RUN)
    assert len(audit_queries.units(access().store, [RUN], 5)) == 5
    units = audit_queries.units(access().store, [RUN], 1000)
    many = units.loc[units.index.repeat(2500 // len(units) + 1)].reset_index(drop=True).assign(covered=True)
    many.loc[7, "covered"] = False
    drawn = figures.drawn(many)
    assert len(drawn) == figures.MOST_DRAWN and 7 in drawn.index


def test_the_picture_of_many_units_stays_light(filled, record, open_page):
    open_page("audit", run=RUN)
    units = audit_queries.units(access().store, [RUN], 20_000)
    many = units.iloc[[0] * figures.MOST_DRAWN].assign(pattern="a_shape")
    error = figures.error_figure(many, design.LIGHT)
    mass = figures.mass_figure(many, 0.9, design.LIGHT)
    texts = [json.dumps(chart, allow_nan=False) for chart in (error, mass)]
    assert len("".join(texts)) < 300_000, "of 1 MB that a view may send"
    points = next(mark for mark in error["marks"] if "tight bound" in mark.get("hover", ""))
    told = points["told"][0]
    assert told[:3] == [RUN, *units.iloc[0][["layer", "head"]]], "a click opens its head"
    assert told[6] == numbers.mass(units.iloc[0]["max_error"], 4) and "row {6}" in points["hover"]


def test_a_violation_lies_below_the_diagonal(filled, open_page):
    open_page("audit", run=RUN)
    units = audit_queries.units(access().store, [RUN], 1000)
    chart = figures.error_figure(units.assign(bound_tight=units["max_error"] / 2), design.LIGHT)
    tight = [mark for mark in chart["marks"] if "tight bound" in mark.get("hover", "")]
    assert tight and all(y < x for mark in tight for x, y in zip(mark["x"], mark["y"], strict=True))
    assert chart["x"]["range"] == chart["y"]["range"], "y = x is the diagonal"


def test_unaudited_run_says_how_to_audit(filled, open_page):
    page = open_page("audit", run="c0de17aa")
    assert not page.exception
    assert "Not audited" in text_of(page)
    assert "; not audited, so true mass and output error are unknown" in text_of(page), "the verdict is green"
    assert not page.code, "a page speaks of its own buttons, not of the command line's options"
    assert "Error against its bounds" not in text_of(page)


def test_dense_run_has_nothing_to_audit(home, record, open_page):
    dense = replace(
        record,
        run=replace(record.run, sparse_units=0),
        choices=tuple(replace(c, pattern="dense", lower_mass=None) for c in record.choices),
        audits=(),
    )
    bundle.write_bundle(dense, home / "spool")
    assert "Nothing to audit" in text_of(open_page("audit", run=RUN))


def test_names_stay_text(home, record, open_page):
    named = replace(record, run=replace(record.run, prompt_name="<i>x</i>.txt"))
    bundle.write_bundle(named, home / "spool")
    assert "<i>x</i>" not in text_of(open_page("audit", run=RUN, scope="all"))


@pytest.mark.parametrize(
    "query", [{"claim": "x"}, {"by": "²"}, {"worst": "drop table"}, {"domain": "nowhere"}]
)
def test_senseless_addresses_fall_back(filled, open_page, query):
    page = open_page("audit", run=RUN, **query)
    assert not page.exception
    assert "Worst heads" in text_of(page)


def test_link_to_an_unknown_run_says_so(filled, open_page):
    assert "This link leads nowhere" in text_of(open_page("audit", run="deadbeef"))


def test_empty_page_says_what_to_do(home, open_page):
    page = open_page("audit")
    assert not page.exception
    assert "No runs yet" in text_of(page)


def test_a_unit_of_the_store_is_what_the_head_page_shows(filled, record, open_page):
    """The journey audit -> head: the same numbers on both."""
    open_page("audit", run=RUN)
    row = audit_queries.worst(access().store, [RUN], "error", 1).iloc[0]
    choices = queries.choices(access().store, RUN, int(row["segment"]))
    same = choices[(choices["layer"] == row["layer"]) & (choices["head"] == row["head"])].iloc[0]
    assert same["audited_mass"] == row["audited_mass"] and same["lower_mass"] == row["lower_mass"]


def test_head_page_holds_each_claim_against_its_own_truth(home, record, open_page):
    choice, audit = sparse_audits(record)[0]
    bundle.write_bundle(with_audits(record, row_covered=0.875, forward_error=0.0421), home / "spool")
    place = {"layer": str(choice.layer), "head": str(choice.head), "segment": str(choice.segment)}
    html = text_of(open_page("head", run=RUN, **place))
    truth = min(audit.mass, choice.recent_mass)
    verdict = "holds" if truth >= choice.conformal_lower_mass else "fails"
    assert f"g* is {truth:.3f}, so it {verdict}" in html
    assert "audit?run=d4e5b678" in html and "fallbacks?run=d4e5b678" in html
    assert "87.5 % of the rows do" in html and "earlier layers included: 0.0421" in html


@pytest.mark.parametrize(
    ("limit", "named"),
    [(0.25, "limit →"), (0.05, "limit"), (0.0, "limit")],
    ids=["far", "near", "among them"],
)
def test_a_reference_far_from_all_values_is_named_at_the_edge(limit, named):
    dots = pd.DataFrame({"group": "code", "value": [0.0, 0.02], "label": "", "run_id": ["a", "b"]})
    groups = pd.DataFrame([("code", 2, 2, 2, 0.01, 0.0, 0.0, 0.02, 0.0, 0.02)], columns=prompt_stats.COLUMNS)
    chart = share_figure.figure(groups, dots, share_figure.Reference(limit, "limit"), design.LIGHT)
    assert chart["marks"][-1]["text"] == named
    assert (chart["x"]["range"][1] < 0.1) and ("→" in named) == (limit > chart["x"]["range"][1])


def test_many_dots_are_thinned_and_those_of_the_run_shown_stay():
    count = share_figure.MOST_DOTS * 2
    dots = pd.DataFrame(
        {
            "group": "code",
            "value": 0.9,
            "label": "",
            "run_id": ["mine" if i == 5 else f"r{i}" for i in range(count)],
        }
    )
    groups = pd.DataFrame(
        [("code", count, count, count, 0.9, 0.0, 0.9, 0.9, 0.9, 0.9)], columns=prompt_stats.COLUMNS
    )
    chart = share_figure.figure(groups, dots, share_figure.Reference(0.95, "nominal"), design.LIGHT, "mine")
    json.dumps(chart, allow_nan=False)
    drawn = next(mark for mark in chart["marks"] if mark["kind"] == "points")
    assert len(drawn["x"]) == share_figure.MOST_DOTS
    assert max(drawn["size"]) == 9, "the run shown is drawn larger"
    assert share_figure.dots_text(count).startswith(f"{share_figure.MOST_DOTS:,} of {count:,}")
