"""The page Trust of a run: filled, empty, in error, and what feeds it. No GPU, no browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from routesparse.app.screens.trust import figures
from routesparse.app.shell.access import access
from routesparse.app.shell.scope import length_bucket
from routesparse.app.ui import design, numbers
from routesparse.engine.store import audit_queries, fallback_queries, queries

RUN = "3f9a1c20d4e5b678"


@pytest.fixture(scope="session")
def hard(factory):
    """A hard prompt: some units expanded, some dense by fallback, some dense by the router."""
    return factory.make_record(layers=4, heads=4, tokens=4096, probe_columns=32, hardness=1.5)


def sparse_audits(record):
    """(choice, audit) of every audited sparse unit."""
    choices = {(c.layer, c.head, c.segment): c for c in record.choices}
    pairs = [(choices[a.layer, a.head, a.segment], a) for a in record.audits]
    return [(choice, audit) for choice, audit in pairs if choice.pattern != "dense"]


def audits_of(record, **values):
    return tuple(replace(a, **values) for a in record.audits)


def test_the_page_leads_with_the_loss_then_its_evidence_what_failed_and_what_was_audited(
    filled, record, open_page
):
    page = open_page("trust", run=RUN)
    html = page.told
    pairs = sparse_audits(record)
    what = "sparse units keep at least 0.90, on average over rows"
    certified = f"{len(pairs)} of {len(pairs)} {what}"
    parts = [
        "Next token as by dense",
        "Predicted loss<",
        "Evidence: kept mass",
        f"<b>Bounded</b> with 95 % confidence, each alone: {certified}",
        "<b>Not bounded</b>: a single row, all of them together, the answer.",
        "What failed or fell back",
        "Worst heads, by output error",
    ]
    places = [html.index(part) for part in parts]
    assert places == sorted(places)
    assert f"{len(pairs):,}</b><small>sparse units, {len(pairs) * 512:,} rows" in html
    assert "Three certificates" not in html and "against its bounds" not in html, "Details are closed"
    worst = min(pairs, key=lambda pair: -pair[1].mean_error)[0]
    place = f"layer={worst.layer}&amp;head={worst.head}&amp;segment={worst.segment}"
    assert html[html.index("map?run=") :].startswith(f"map?run=d4e5b678&amp;{place}")


def test_details_hold_claims_kinds_and_shares(filled, record, open_page):
    html = open_page("trust", run=RUN, details="true").told
    for part in (
        "Error against its bounds",
        "Audited against certified retained mass",
        "Output-error claim",
        "Three certificates",
        "How the units ended up",
        "Coverage of selected sparse units",
        "one prompt has no interval",
    ):
        assert part in html


def test_each_claim_is_held_against_its_own_truth(filled, record, open_page):
    open_page("trust", run=RUN)
    store, pairs = access().store, sparse_audits(record)
    row = audit_queries.coverage(store, [RUN]).drop(columns=["run_id", "pattern"]).sum()
    assert row["in_prompt_units"] == len(pairs)
    assert row["in_prompt_covered"] == sum(a.mass >= c.lower_mass for c, a in pairs)
    expected = sum(min(a.mass, c.recent_mass) >= c.conformal_lower_mass for c, a in pairs)
    assert row["conformal_covered"] == expected
    assert row["row_units"] == 0, "not measured is not 0 % covered"
    units = audit_queries.units(store, [RUN], 1000)
    assert units["delta"].dropna().round(9).unique().tolist() == [0.043], "the one that the claims used"
    worst = audit_queries.worst(store, [RUN], 1).iloc[0]
    choices = queries.choices(store, RUN, int(worst["segment"]))
    same = choices[(choices["layer"] == worst["layer"]) & (choices["head"] == worst["head"])].iloc[0]
    assert same["audited_mass"] == worst["audited_mass"] and same["lower_mass"] == worst["lower_mass"]


def test_coverage_below_nominal_is_marked_and_rows_are_a_mean_of_shares(spooled, record, open_page):
    spooled(audits=audits_of(record, covered=False, row_covered=0.75))
    html = open_page("trust", run=RUN, details="true").told
    assert '<b>0.00 %</b><em class="bad">coverage, below the nominal 95 %' in html
    assert "<b>75.00 %</b>" in html


@pytest.mark.parametrize("error", [1e-5, 0.05])
def test_a_kernel_that_wrote_something_else_is_a_problem(spooled, record, open_page, error):
    spooled(audits=audits_of(record, executed_error=error))
    html = open_page("trust", run=RUN).told
    assert ("The kernel’s output is not that of the chosen plan: one row" in html) == (error == 0.05)
    assert ("Bounded</b> with" in html) == (error != 0.05), "the plan was certified, not this output"


def test_intervals_are_over_prompts_and_the_same_text_twice_is_one(waiting, spooled, factory, open_page):
    shape = {"layers": 2, "heads": 2, "segments": 1, "tokens": 2048, "probe": False}
    for number in range(3):
        name = f"abcd000{number}abcd000{number}"
        other = factory.make_record(name, name=f"other-{number}.txt", seed=number, **shape)
        spooled(of=other, audits=audits_of(other, covered=number > 0))
    spooled("abcdabcd00001111")
    html = open_page("trust", run=RUN, scope="all", details="true").told
    assert "6 runs, 5 prompts" in html
    assert re.search(r"4 prompts, \d+ sparse units; 95 % interval", html), "one of five was not audited"
    assert "every prompt has the same share, so there is no interval" in html, "the conformal claim"


@pytest.mark.parametrize(
    ("claim", "by"),
    [("in_prompt", "layer"), ("conformal", "family"), ("row", "domain"), ("fallback", "layer")],
)
def test_every_share_and_group_draws(filled, open_page, claim, by):
    html = open_page("trust", run=RUN, claim=claim, by=by, details="true").told
    none = "no stored run of these weights makes this claim"
    assert (none in html) == (claim == "row") != ("<th>95 % interval</th>" in html)


def test_drift_and_a_forced_calibration_name_what_still_holds(spooled, open_page):
    alarm = {"drift_alarm": True, "drift_p": 0.01, "drift_distance": 5.5, "delta": 0.043}
    spooled(run={"calibration_mismatch": "tau 0.8 instead of 0.9", **alarm})
    html = open_page("trust", run=RUN).told
    assert "Drift alarm" in html and "still hold" in html and "tau 0.8 instead of 0.9" in html


def test_a_full_audit_is_against_the_dense_forward_and_of_all_rows(spooled, record, open_page):
    full = {"audit_depth": "full", "top1_agreement": 1.0, "kl_nats": 0.0123, "logit_error": 0.02}
    layers = tuple(replace(row, forward_error=0.01 * (row.layer + 1)) for row in record.layers)
    spooled(run=full, layers=layers)
    html = open_page("trust", run=RUN, details="true").told
    assert "Against the dense forward, layer by layer" in html and f"n = {len(layers)} layers" in html
    assert "Next token as by dense" in html and "0.0123 nats" in html
    assert "audited over all body rows" in html and "random rows, standard error" not in html


def test_pictures_of_many_units_stay_light_and_keep_the_worst(filled, record, open_page):
    open_page("trust", run=RUN)
    assert len(audit_queries.units(access().store, [RUN], 5)) == 5
    units = audit_queries.units(access().store, [RUN], 20_000)
    many = units.loc[units.index.repeat(2500 // len(units) + 1)].reset_index(drop=True).assign(covered=True)
    many.loc[7, "covered"] = False
    drawn = figures.drawn(many)
    assert len(drawn) == figures.MOST_DRAWN and 7 in drawn.index
    alike = units.iloc[[0] * figures.MOST_DRAWN].assign(pattern="a_shape")
    error = figures.error_figure(alike, design.LIGHT)
    mass = figures.mass_figure(alike, 0.9, design.LIGHT)
    texts = [json.dumps(chart, allow_nan=False) for chart in (error, mass)]
    assert len("".join(texts)) < 300_000, "of 1 MB that a view may send"
    points = next(mark for mark in error["marks"] if "tight bound" in mark.get("hover", ""))
    told = points["told"][0]
    assert told[:3] == [RUN, *units.iloc[0][["layer", "head"]]], "a click opens its head"
    assert told[6] == numbers.mass(units.iloc[0]["max_error"], 4) and "row {6}" in points["hover"]


def test_a_violation_lies_below_the_diagonal(filled, open_page):
    open_page("trust", run=RUN)
    units = audit_queries.units(access().store, [RUN], 1000)
    chart = figures.error_figure(units.assign(bound_tight=units["max_error"] / 2), design.LIGHT)
    tight = [mark for mark in chart["marks"] if "tight bound" in mark.get("hover", "")]
    assert tight and all(y < x for mark in tight for x, y in zip(mark["x"], mark["y"], strict=True))
    assert chart["x"]["range"] == chart["y"]["range"], "y = x is the diagonal"


def test_a_run_that_was_not_audited_says_so_and_how_to_audit_it(filled, open_page):
    page = open_page("trust", run="c0de17aa", details="true")
    html = page.told
    assert "<b>Not audited</b>" in html and "Run again with an audit" in html
    assert "No audit measured the true kept mass" in html
    assert '<b class="none">not measured</b><small>of 0 rows; must be 0' in html, "not 0 violations"
    assert not page.code, "a page speaks of its own buttons, not of the command line's options"
    assert "Error against its bounds" not in html and "<b>router</b>" not in html


def test_a_dense_run_has_nothing_to_audit_or_to_certify(spooled, record, open_page):
    choices = tuple(replace(c, pattern="dense", lower_mass=None, fallback=None) for c in record.choices)
    spooled(run={"sparse_units": 0}, choices=choices, audits=(), fallbacks=())
    html = open_page("trust", run=RUN).told
    assert "Nothing to audit" in html and "there is nothing to certify" in html
    assert "Nothing fell back: no certificate was needed." in html


def test_failed_certificates_show_trigger_target_and_price(spooled, hard, open_page):
    spooled(of=hard)
    page = open_page("trust", run=RUN)
    table = page.dataframe[0].value
    assert len(table) == len(hard.fallbacks) and table["deficit"].gt(0).all()
    dearest, first = max(hard.fallbacks, key=lambda event: event.paid_us), table.iloc[0]
    assert first["paid"] == round(dearest.paid_us)
    certified = numbers.rounded_down(dearest.lower_mass)
    assert tuple(first[["layer", "head", "certified"]]) == (dearest.layer, dearest.head, certified)
    scores = {(c.layer, c.head, c.segment, c.candidate): c for c in hard.candidates}
    target = scores[dearest.layer, dearest.head, dearest.segment, dearest.to_candidate]
    assert first["to"].endswith(target.budget)
    kinds = fallback_queries.kinds_by_layer(access().store, [RUN]).groupby("kind")["units"].sum()
    run = hard.run
    assert kinds["dense by fallback"] == run.dense_fallback_units
    assert kinds["expanded"] == run.expanded_units and kinds["dense by the router"] == run.dense_router_units
    assert kinds.sum() == run.units


def test_a_rate_above_the_run_s_limit_is_a_failure(spooled, hard, open_page):
    rate = hard.run.dense_fallback_units / hard.run.units
    spooled(of=hard, config={"fallback_limit": rate - 0.01})
    spooled("abcdabcd00001111", of=hard, config={"fallback_limit": rate + 0.01})
    html = open_page("trust", run=RUN).told
    assert "Failure:" in html and "a high fallback rate a failure" in html
    assert "Failure:" not in open_page("trust", run="abcdabcd").told


def test_over_budget_and_unmet_are_counted_and_unknown_is_not_none(spooled, record, open_page):
    spooled(
        run={"policy": "strict", "unmet_units": 2},
        choices=tuple(replace(c, unmet=i < 2) for i, c in enumerate(record.choices)),
        layers=tuple(replace(row, over_budget=row.layer == 1) for row in record.layers),
    )
    spooled("abcdabcd00001111", choices=tuple(replace(c, unmet=None) for c in record.choices))
    html = open_page("trust", run=RUN, details="true").told
    assert f'<b class="">1 of {record.run.layers}</b>' in html and '<b class="">2</b>' in html
    html = open_page("trust", run="abcdabcd", details="true").told
    assert re.search(r'escalations that Tℓ left no time for.*?<b class="none">not measured</b>', html)


def test_all_runs_cover_the_same_weights_only_and_names_stay_text(waiting, spooled, open_page):
    spooled("abcdabcd00001111", run={"model_revision": "other"})
    page = open_page("trust", run=RUN, scope="all", details="true", domain="code")
    html = page.told
    assert "2 runs, 2 prompts" in html and "<b>router</b>" not in html
    assert list(page.multiselect(key="domain").value) == ["code"]


def test_nothing_fell_back_is_one_line_with_how_near_it_was(spooled, record, open_page):
    """The nearest certificate is .012 above its tau."""
    sparse = [c for c in record.choices if c.pattern != "dense"]
    lift = {id(c): 0.95 for c in sparse} | {id(sparse[3]): record.run.tau + 0.012}
    choices = tuple(
        replace(c, fallback=None, lower_mass=lift.get(id(c), c.lower_mass)) for c in record.choices
    )
    spooled(fallbacks=(), choices=choices)
    page = open_page("trust", run=RUN)
    told = "Nothing fell back: every certificate reached its τ; the nearest had 0.012 to spare."
    assert told in page.told and not page.dataframe


@pytest.mark.parametrize("name", ["routing_map", "text", "trust", "compare"])
def test_a_run_that_was_not_routed_says_so_and_speaks_of_no_filter(spooled, open_page, name):
    tables = ("choices", "candidates", "fallbacks", "audits", "probes", "layers", "worst_rows", "block_reads")
    spooled(run={"routed": False, "units": 0}, **dict.fromkeys(tables, ()))
    if name == "compare":
        spooled("abcdabcd00001111")
        html = open_page("compare", runs=f"{RUN},abcdabcd00001111").told
        assert "No unit was routed on both sides" in html
        return
    html = open_page(name, run=RUN).told
    assert "Nothing was routed in this run" in html and "below break-even" in html
    if name == "trust":
        every = open_page("trust", run=RUN, scope="all").told
        assert "No run of these weights was routed" in every
        assert not re.search("filter|Clear the domains", html + every)


def test_decisions_that_were_lost_are_not_called_certified(spooled, open_page):
    spooled()
    open_page("trust", run=RUN)
    with access().whole_store.writing("the rows were not lost") as cursor:
        cursor.execute("DELETE FROM head_choice WHERE layer = 0")
    html = open_page("trust", run=RUN).told
    assert "decisions are not stored" in html and "Bounded</b> with" not in html


def test_a_link_to_no_run_says_so(filled, open_page):
    assert "This link leads nowhere" in open_page("trust", run="deadbeef").told


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(4096, "2,049–4,096"), (4097, "4,097–8,192"), (7345, "4,097–8,192"), (1, "1–1")]
)
def test_length_buckets_are_powers_of_two(tokens, bucket):
    assert length_bucket(tokens) == bucket
