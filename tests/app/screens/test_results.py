"""Results: suites, intervals and fronts on a page; filled, empty, in error. No GPU."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from routesparse.app.screens.results import figures, files
from routesparse.app.ui import design
from routesparse.engine import paths
from routesparse.engine.results import evaluations, tables
from routesparse.engine.results.evaluations import Estimate
from tests.engine.results import values


def write(folder, content):
    folder.mkdir(parents=True)
    (folder / "scores.json").write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture
def evaluated(home):
    write(home / "evaluations" / "first", values.scores())
    return home


@pytest.fixture
def found():
    return evaluations.of_text(json.dumps(values.scores()))[0]


def test_without_an_evaluation_the_page_says_how_to_make_one(home, open_page):
    page = open_page("results")
    assert "No evaluations yet" in page.words
    assert "evaluate ruler" in page.code[0].value


def test_the_page_says_what_was_found_at_the_longest_length(evaluated, open_page):
    page = open_page("results")
    text = page.words
    assert "Is anything lost at 32,768 tokens? Not resolved" in text.replace("</b>", "")
    assert "−0.4 points of 100, 95 % interval −1.9 to +1.1; n = 48 prompts of 2 tasks" in text
    assert "What is saved?" in text and "Is it better than other methods?" in text
    assert "What was not tested? Any model but demo" in text.replace("</b>", "")
    assert "seed 23" in text and "evaluations/first/scores.json" in text
    assert "(<b>vt)" in text  # as text
    assert "below the chart: window=1024 −60.0" in text
    assert not page.get("plotly_chart"), "Plotly takes longer to load than the page to draw"
    names = [button.label for button in page.get("download_button")]
    assert len(names) == 3 and names[-1].endswith("the report (HTML)"), "one plot's rows, and a link"
    assert "Loss over area at 16,384 tokens" in open_page("results", length="16384").words


def test_an_oracle_beside_the_front_is_explained(home, open_page):
    evaluation = values.scores()
    oracle = values.row(32_768, "oracle_floor", 0.002, 0.5, 0.08)
    write(home / "evaluations" / "first", {**evaluation, "suite": [*evaluation["suite"], oracle]})
    told = "oracle_floor=0.002: an oracle, which nobody can run, so never on the front"
    assert told in open_page("results").words


@pytest.mark.parametrize("query", [{"length": "-3"}, {"set": "nothing"}, {"length": "9" * 40}])
def test_an_address_that_names_nothing_shows_something_else(evaluated, open_page, query):
    text = open_page("results", **query).words
    assert "at 32,768 tokens" in text
    assert f"names what is not here: {'='.join(*query.items())}" in text


def test_a_broken_file_is_named_and_the_others_stay(evaluated, open_page):
    write(evaluated / "evaluations" / "second", '{"about": 3, "suite": []}')
    text = open_page("results").words
    assert "second/scores.json can't be read: about" in text and "mean score of 94.6" in text
    assert "`" not in text and "--stage" not in text, "the command stands in a field to copy"


def test_broken_alone_is_no_empty_page(home, open_page):
    write(home / "evaluations" / "only", "{")
    page = open_page("results")
    text = page.words
    assert "evaluate SUITE --stage score" in page.code[0].value
    assert "only/scores.json can't be read" in text and "No evaluation can be read" in text
    assert "others are shown" not in text


def test_shipped_suites_stand_beside_those_of_the_home(evaluated, open_page):
    paths.DATA.joinpath("results").mkdir(parents=True)
    other = values.scores()
    other["about"]["suite"] = "stories"
    text = evaluations.compact([values.scores(), other], "routesparse report")
    paths.DATA.joinpath("results", "evaluations_kept_others.json").write_text(text)
    page = open_page("results")
    told = ": 16,384, 32,768 tokens, n 24 a task, seed 23, model demo"
    others = "shipped (other tasks)"
    assert page.selectbox(key="set-choice").options == [
        f"{name}{told}" for name in (f"ruler, {others}", f"stories, {others}", "ruler, run here (first)")
    ]
    paths.DATA.joinpath("results", "evaluations_kept.json").write_text(text)
    assert "results/evaluations_kept.json" in open_page("results").words, "the main table comes first"
    for name in ("kept_others", "kept"):
        shown = open_page("results", set=f"{name}-ruler").words
        assert f"source: data/results/evaluations_{name}.json" in shown, "a link keeps its table"
    again = open_page("results", set="here-first")
    assert "evaluations/first/scores.json" in again.words


def test_the_main_table_opens_first_and_a_link_to_another_shipped_one_opens_it(home, data, open_page):
    data(paths.REPOSITORY / "data")
    page = open_page("results")
    text = page.words
    assert "source: data/results/evaluations_kept.json" in text
    assert "seed 2588" in text and "100 prompts a task and length" in text
    first, *others = page.selectbox(key="set-choice").options
    assert first.startswith("ruler, shipped (main table): 8,192, 16,384, 32,768, 65,536 tokens, n 100 a task")
    assert len(others) == 4
    page = open_page("results", set="stories-stories")
    assert page.selectbox(key="set-choice").value == "stories-stories"
    assert "source: data/results/evaluations_stories.json" in page.words


def test_an_evaluation_without_prompts_says_so(home, open_page):
    write(home / "evaluations" / "none", values.scores() | {"suite": []})
    assert "Nothing was predicted" in open_page("results").words


def test_rows_to_download_hold_intervals_and_keep_missing_ones_empty(found):
    rows = files.method_rows(found, found.at(32_768))
    ours = rows.set_index(["method", "setting"]).loc["routesparse", 0.5]
    assert [ours[f"difference{end}"] for end in ("", "_low", "_high")] == pytest.approx([-0.4, -1.9, 1.1])
    assert ours["attention_ms"] is None and ours["seed"] == 23
    rows.to_parquet(io.BytesIO())


def test_the_chart_shows_intervals_and_names_methods(found):
    shown = found.at(32_768)
    chart = figures.loss_over_area(shown, "points", design.LIGHT)
    others = next(mark for mark in chart["marks"] if mark.get("symbol") == "diamond")
    place = [told[0] for told in others["told"]].index("minference=1")
    (ends,) = [mark["at"] for mark in chart["marks"] if mark["kind"] == "whiskers"]
    low = next(end[1] for end in ends if end[0] == others["x"][place])
    assert others["y"][place] - low == pytest.approx(1.5)
    assert "minference=1" in next(mark["texts"] for mark in chart["marks"] if mark["kind"] == "names")
    assert [row.name for row in tables.beyond(shown)] == ["window=1024"]
    assert all(told[0] != "window=1024" for told in others["told"]), "no mark outside the axes"
    assert chart["y"]["range"][0] > -12, "a control does not flatten what is compared"
    nothing_read = [type(row)(**{**row.__dict__, "area": 0.0}) for row in shown[:1]]
    again = figures.loss_over_area([*nothing_read, *shown[1:]], "points", design.LIGHT)
    assert again["x"] == chart["x"], "an area of nothing has no place on an axis in logarithms"


@pytest.mark.parametrize(
    ("name", "difference", "beyond", "low", "high"),
    [
        ("minference=1", (-40.0, -42.0, -38.0), ["minference=1", "window=1024"], -5, None),
        ("window=1024", (-0.5, -9.0, -0.2), [], None, None),
        ("window=1024", (0.3, -0.7, 9.0), [], None, 9),
    ],
    ids=["far below", "a wide interval", "far above"],
)
def test_what_loses_far_more_does_not_flatten_the_chart_and_what_is_drawn_is_whole(
    found, name, difference, beyond, low, high
):
    rows = [
        replace(row, difference=Estimate(*difference)) if row.name == name else row
        for row in found.at(32_768)
    ]
    assert [row.name for row in tables.beyond(rows)] == beyond
    ends = tables.loss_ends(rows)
    assert ends[0] > low if low is not None else ends[0] < difference[1]
    assert high is None or ends[1] > high


def test_two_evaluations_of_one_suite_stand_beside_each_other(home, open_page):
    paths.DATA.joinpath("results").mkdir(parents=True)
    paths.DATA.joinpath("results", "evaluations_kept.json").write_text(
        evaluations.compact([values.scores(), values.scores()], "routesparse report")
    )
    options = open_page("results").selectbox(key="set-choice").options
    assert len(options) == 2 and options[0] != options[1]
    other = values.scores()
    other["about"]["seed"] += 1
    paths.DATA.joinpath("results", "evaluations_stories.json").write_text(
        evaluations.compact([other], "routesparse report")
    )
    first, *older = open_page("results").selectbox(key="set-choice").options
    assert len(older) == 2 and first not in older
