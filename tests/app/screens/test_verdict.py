"""The verdict on every page about a run, in Runs and on Home; drift beside every conformal figure. No GPU."""

import re
from dataclasses import replace
from html import unescape
from urllib.parse import parse_qs

import pytest

from routesparse.app.screens.routing_map import answer_card, map_figure
from routesparse.app.shell import verdict_bar
from routesparse.app.shell.access import access
from routesparse.app.ui import design
from routesparse.engine.rows import ContinuationRow
from routesparse.engine.store import queries
from routesparse.engine.verdict import LEVELS

GREEN, RED, DRIFT = "3f9a1c20d4e5b678", "bad0bad000001111", "d41fd41f00002222"
RUN_PAGES = ("routing_map", "trust")


@pytest.fixture
def runs(spooled, record):
    """A run that looks safe; one whose heads 0 and 1 miss their τ although nothing fell back; one with an alarm."""
    spooled()
    spooled(DRIFT, run={"drift_alarm": True, "drift_p": 0.002, "drift_distance": 9.0})
    choices = tuple(
        replace(c, fallback=None, lower_mass=0.2)
        if c.pattern != "dense" and c.head < 2
        else replace(c, fallback=None)
        for c in record.choices
    )
    return spooled(RED, run={"dense_fallback_units": 0, "expanded_units": 0}, choices=choices, fallbacks=())


@pytest.mark.parametrize("page", RUN_PAGES)
def test_every_page_about_a_run_says_whether_it_is_safe(runs, open_page, page):
    missed, units = len(runs.uncertified), runs.run.units
    bad = open_page(page, run=RED).told
    told = f"{missed} of {units} units have a bound on kept mass below τ 0.9: do not trust this run."
    assert f"<b>Not safe.</b> {told}" in bad
    assert 'class="rs-verdict red"' in bad
    good = open_page(page, run=GREEN).told
    loss = "Predicted loss 0.0060 nats a token, at most 0.0130 (95 %, fitted on mixed)"
    assert f"<b>No warning.</b> {loss}; true 0." in good and "Next token as by dense, KL 0.0021 nats." in good


def test_runs_name_the_verdict_of_each(runs, open_page):
    table = open_page("runs").dataframe[0].value
    found = dict(zip(table["run"], table["verdict"], strict=True))
    assert found[GREEN[-8:]] == "✓ loss 0.0060, ≤ 0.0130"
    assert found[RED[-8:]] == f"✕ {len(runs.uncertified)} of {runs.run.units} units: bound < τ"
    assert found[DRIFT[-8:]] == "! drift alarm"
    assert dict(zip(table["run"], table["next_token"], strict=True))[RED[-8:]] == "as dense"
    assert table["kl"].tolist() == [0.0021] * 3


def test_units_that_ran_uncertified_are_counted_and_marked(runs, open_page):
    missed = {(c.layer, c.head, c.segment) for c in runs.uncertified}
    sparse = sum(c.pattern != "dense" for c in runs.choices)
    bad, good = open_page("trust", run=RED).told, open_page("trust", run=GREEN).told
    assert f"{sparse - len(missed)} of {sparse} sparse units keep" in bad
    assert f"Nothing fell back, but {len(missed)} units ran without certified mass." in bad
    assert (
        "That their mass reaches τ is not certified" in bad and "units ran without certified mass" not in good
    )
    table = open_page("runs").dataframe[0].value.set_index("run")["uncertified"]
    assert table[RED[-8:]] == len(missed) and table[GREEN[-8:]] == 0
    html = open_page("compare", runs=f"{RED},{GREEN}").told
    assert f">{len(missed)}</td>" in html and ">0</td>" in html
    store = access().store
    data, shown = map_figure.drawing(
        queries.choices(store, RED, 0), queries.layers(store, RED), "fallback", (0, 0), design.LIGHT, (4, 4)
    )
    marked = {divmod(at, 4) for at, mark in enumerate(data["marks"]) if mark == "u"}
    assert marked == {place[:2] for place in missed if place[2] == 0}
    assert {map_figure.FALLBACK_STEPS[int(shown.values[at])] for at in marked} == {"ran uncertified"}
    told = {divmod(at, 4) for at, tip in enumerate(data["tips"]) if "ran uncertified" in tip}
    assert told == marked and "units ran without certified mass" in data["times"]["rows"][0]["tip"]


def test_pages_over_all_runs_count_the_verdicts(runs, open_page):
    html = open_page("trust", run=GREEN, scope="all").told
    assert "1 red" in html and "1 amber" in html and "1 green" in html


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("routing_map", {"detail": "certificates"}),
        ("trust", {"claim": "conformal"}),
        ("trust", {"claim": "row"}),
        ("compare", {"runs": f"{DRIFT},{GREEN}"}),
        ("compare", {"runs": f"{DRIFT},{GREEN}", "metric": "conformal_lower_mass"}),
    ],
)
def test_the_alarm_stands_beside_every_conformal_figure(runs, record, open_page, page, query):
    unit = next(c for c in record.choices if c.pattern != "dense" and c.segment == 0)
    query = {"run": DRIFT, "details": "true", "layer": str(unit.layer), "head": str(unit.head), **query}
    alarmed = open_page(page, **query).told
    told = alarmed.count("Drift alarm: ignore this") + alarmed.count("Drift alarm or unfitting calibration")
    # Trust: the claim's card; and the table of the claim.
    # Compare: the side's share, its mean, and the map of the claim.
    wanted = {
        "trust": 1 + (query.get("claim") == "conformal"),
        "routing_map": 1,
        "compare": 2 + ("metric" in query),
    }
    assert told == wanted[page]
    calm = open_page(page, **{**query, "run": GREEN, "runs": f"{GREEN},{RED}"}).told
    assert ("rs-void" not in calm and "Drift alarm" not in calm) or (page == "trust" and "claim" in query)


def test_uncertified_units_come_before_the_dearest_failures_and_both_are_counted(spooled, open_page, factory):
    hard = factory.make_record(layers=4, heads=4, tokens=4096, probe_columns=32, hardness=1.5)
    first = next(c for c in hard.choices if c.pattern != "dense")
    spooled(of=hard, choices=tuple(replace(c, lower_mass=None) if c is first else c for c in hard.choices))
    page = open_page("trust", run=GREEN)
    table = page.dataframe[0].value
    assert table["to"].tolist()[0] == "ran without certified mass" and len(table) == len(hard.fallbacks) + 1
    assert f"n = {len(hard.fallbacks)} events and 1 unit without certified mass: those" in page.told


def test_the_map_has_the_next_token_by_both_sides_and_how_the_prompt_goes_on(runs, record, open_page):
    html = open_page("routing_map", run=GREEN).told
    assert "The next token, dense against this run" in html
    assert html.count("<code>44</code>") == 2 and "<code>␣the</code>" in html
    assert "another token" not in html, "they differ in the fifth place alone"
    assert "as after dense: 2 of 3." in html
    assert "44␣the<mark>4</mark>" in html and "44␣the<mark>␣a</mark>" in html


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (("x", 0, 1, 1, "a", "a", "a"), "as after dense: 1 of 1."),
        (("x", 0, 1, 0, None, None, None), "Its text was not kept."),
        (("x", 0, 1, 0, "", "<b>", "\u202e"), "<code><mark>&lt;b&gt;</mark></code>"),
        # The same token begins another character on either side.
        (("x", 0, 2, 1, "�", "é", "è"), "<code><mark>é</mark></code>"),
    ],
    ids=["all the same", "no text", "hostile", "inside a character"],
)
def test_texts_that_go_on_are_shown_escaped_with_what_differs_marked(row, told):
    html = answer_card.continuation_html(ContinuationRow(*row))
    assert told in html and "\u202e" not in html


def test_a_run_that_was_not_compared_says_how_to_compare_it(filled, open_page):
    html = open_page("routing_map", run="c0de17aa").told
    assert "by a stated factor; the model is not fitted, so no coverage." in html
    assert (
        "Not compared: no dense prefill ran" in html
        and "Answer not compared: run the prompt with dense, too" in html
    )
    again = re.search(r'href="new\?([^"]*)">Run it again with dense beside it', html)
    asked = parse_qs(unescape(again[1]))
    assert (asked["dense"], asked["with_policy"]) == (["true"], ["certified"]) and "from" in asked
    assert "Run it again with dense" not in open_page("routing_map", run=GREEN).told


def test_tokens_are_text_and_numbers_where_the_text_was_not_kept(spooled, record, open_page):
    first, second, *others = record.answers
    spooled(answers=(replace(first, text="<b>x</b>"), replace(second, text=None), *others))
    html = open_page("routing_map", run=GREEN).told
    assert "&lt;b&gt;x&lt;/b&gt;" in html and "<b>x</b>" not in html and "token 12" in html


@pytest.mark.parametrize("theme", [design.LIGHT, design.DARK], ids=lambda theme: theme.name)
def test_colours_of_verdicts_can_be_read_and_never_stand_alone(theme):
    assert all(design.contrast(theme.levels[level], theme.panel) >= 4.5 for level in LEVELS)
    assert len({verdict_bar.SIGNS[level] for level in LEVELS}) == len(LEVELS)
