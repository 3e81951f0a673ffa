"""Scores of evaluations, read and shown: as tables, one HTML page, Markdown. No GPU, no torch."""

from __future__ import annotations

import json
import re

import pytest

from routesparse.engine.errors import ResultsError
from routesparse.engine.results import evaluations, report, tables, wording
from tests.engine.results import values


@pytest.fixture
def found(tmp_path):
    return read(tmp_path, values.scores())[0]


def read(folder, content):
    path = folder / "scores.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return evaluations.read(path)


def named(found, length, name):
    return next(row for row in found.at(length) if row.name == name)


def test_the_main_table_has_dense_first_and_what_was_not_measured_says_so(found):
    table = tables.main_table(found)
    assert [row[1] for row in table.rows[:3]] == ["dense", "routesparse=0.5", "routesparse=1"]
    ours = dict(zip(table.heads, table.rows[1], strict=True))
    assert ours["against dense, points"] == "−0.4 [−1.9, +1.1]"
    assert ours["attention"] == "not measured" and ours["dense reaches 80"] == "1 of 2"
    for part in ("24 prompts", "seed 23", "NVIDIA H200", "commit 0123456"):
        assert part in table.caption
    assert "routesparse evaluate ruler --n 24" in found.made_by


def test_few_clusters_and_few_differing_prompts_are_said_with_the_number(tmp_path):
    content = values.scores()
    content["suite"][1] |= {"few_clusters": True}
    content["suite"][2] |= {"few_discordant": True, "harmed": 2, "gained": 1, "newcombe": [-9.0, 4.0]}
    content["suite"][3] |= {
        "few_discordant": True,
        "harmed": 0,
        "gained": 0,
        "difference": values.estimate(0, 0),
    }
    (found,) = read(tmp_path, content)
    assert wording.change(named(found, 16_384, "routesparse=0.5")).endswith("(few clusters)")
    assert wording.change(named(found, 16_384, "routesparse=1")) == "−2.0, 2 harmed, 1 gained [−9.0, +4.0]"
    # An interval of no width would look sure.
    assert wording.change(named(found, 16_384, "routesparse_no_fallback=0.5")) == "0.0, 0 harmed, 0 gained"


def on_front(found):
    table = tables.main_table(found)
    return {row[1]: row[table.heads.index("front")] for row in table.rows if row[0] == "32,768"}


def test_the_front_is_of_area_and_loss(found):
    told = on_front(found)
    assert told["minference=1"] == "beaten" and told["routesparse=0.5"] == "on it"
    assert told["window=1024"] == "on it"  # reads least


def test_an_oracle_neither_beats_a_method_nor_stands_on_the_front(tmp_path):
    """It reads least and loses nothing, but nobody could run it."""
    content = values.scores()
    one = next(row for row in content["suite"] if row["method"] == "window" and row["length"] == 32_768)
    content["suite"].append(
        one | {"method": "oracle_floor", "area": 0.01, "difference": values.estimate(0, 0)}
    )
    (found,) = read(tmp_path, content)
    told = on_front(found)
    assert told["oracle_floor=1024"] == "cannot be run"
    assert told["routesparse=0.5"] == told["window=1024"] == "on it"


def test_what_was_run_is_shown_not_what_was_asked_for(tmp_path):
    """Also how far a stage of times came, and a method that was timed at another commit than it predicted."""
    content = values.scores()
    content["about"] |= {"n": 100, "processes": 6, "timed_alone": True, "cells": 4, "timed_cells": 3}
    ours = next(row for row in content["suite"] if row["method"] == "routesparse" and row.get("medians"))
    ours |= {"predicted_by": ["a" * 40], "timed_by": ["b" * 40]}
    dense = next(row for row in content["suite"] if row["method"] == "dense" and row.get("by_task"))
    dense["by_task"][0]["n"] = 7
    (found,) = read(tmp_path, content)
    table = tables.main_table(found)
    assert "7 to " in table.caption and "prompts a task and length run of 100 asked for" in table.caption
    assert "times of one alone, in 3 of 4 cells" in table.caption
    cells = [dict(zip(table.heads, row, strict=True))["prefill"] for row in table.rows]
    assert sum("(timed at bbbbbbb)" in cell for cell in cells) == 1


def test_a_control_that_does_not_lose_is_called_out(tmp_path):
    content = values.scores()
    content["suite"][-1] |= {"difference": values.estimate(0.5, 1)}
    (found,) = read(tmp_path, content)
    told = {(row[0], row[1]): row[5] for row in tables.control_table(found).rows}
    assert told["16,384", "window=1024"] == "yes"
    assert told["32,768", "window=1024"].startswith("NO")
    assert told["32,768", "random_blocks"] == "not run"


def test_tasks_in_which_no_control_loses_are_said_to_prove_nothing(tmp_path):
    content = values.scores()
    content["suite"][-1]["by_task"][1]["difference"] = values.estimate(0, 0)
    (found,) = read(tmp_path, content)
    assert "Controls that must lose do so in 1 of 2 tasks (niah_single_2)" in wording.telling(found, 32_768)
    assert wording.telling(found, 16_384) == "Controls that must lose do so in all 2 tasks."


def test_tasks_are_short_beside_many_methods_and_whole_for_ours(tmp_path):
    content = values.scores()
    for row in content["suite"]:
        row["by_task"][1] |= {"dense": 41.0}
    content["suite"][10]["by_task"][1] |= {"few_clusters": True}
    (found,) = read(tmp_path, content)
    table = tables.task_table(found, 32_768)
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["dense"] == ("95.0", "41.0†") and cells["routesparse=0.5"] == ("−0.4", "−0.4")
    assert cells["minference=1"] == ("−6.0*", "−6.0") and wording.MARKED in table.caption
    whole = tables.task_intervals(found, named(found, 32_768, "minference=1")).rows
    assert whole[0] == ("niah_single_2", "24", "95.0", "89.0", "−6.0 [−7.5, −4.5]", "6")


def test_perplexity_is_no_score(tmp_path):
    content = values.scores()
    for row in content["suite"]:
        for name in ("score", "difference", "harmed", "gained", "worst_decile", "by_task"):
            row.pop(name, None)
        row.pop("tasks_where_dense_reaches_80")
        row |= {
            "measures": {"word_perplexity": 20.0},
            "word_perplexity_ratio": {"value": 1.02, "low": 1.01, "high": 1.04, "p": 0},
        }
    (found,) = read(tmp_path, content)
    ours = named(found, 32_768, "routesparse=0.5")
    assert found.is_perplexity and wording.score(ours) == "20.000"
    assert wording.interval(ours.change) == "−2.0 [−4.0, −1.0]"
    table = tables.main_table(found)
    assert not {"worst tenth, nats", "harmed", "dense reaches 80"} & set(table.heads), "no answer is scored"
    assert {len(row) for row in table.rows} == {len(table.heads)} and "word perplexity" in table.heads
    assert wording.unit(found) == "% less perplexity; below 0 is worse"
    assert not found.by_task, "its n is of a length, not of a task"


def test_the_page_has_no_script_no_address_and_no_markup_of_others(found):
    page = report.page([found], "routesparse report ruler")
    assert "<script" not in page and "http://" not in page and "https://" not in page
    assert "&lt;b&gt;vt" in page and "<b>vt" not in page
    assert "default-src 'none'" in page and page.count("<svg") == 2


def test_markdown_says_the_same_without_details_and_its_tables_are_whole(found):
    text = report.markdown([found], "routesparse report ruler --markdown EVALUATION.md")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    widths = {}
    for line in lines:
        widths.setdefault(len(re.split(r"(?<!\\)\|", line)), []).append(line)
    assert "\\<b\\>vt" in text and "<b>" not in text
    assert len(lines) > 20 and text.count("NVIDIA H200") >= 4
    page = report.page([found], "routesparse report ruler")
    for title in ("by task at 16,384 tokens", "RouteSparse by task", "controls"):
        assert f": {title}" in page and f": {title}" not in text
    assert ": by task at 32,768 tokens" in page and ": by task at 32,768 tokens" in text


def test_several_evaluations_in_one_file_come_back_as_they_were(tmp_path, found):
    text = evaluations.compact([values.scores(), values.scores()], "routesparse report ruler")
    assert [one.rows for one in evaluations.of_text(text)] == [found.rows, found.rows]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "can't be read"),
        ("{}", "about.suite is missing"),
        ('{"command": "x", "evaluations": [{}]}', "evaluations[0].about.suite is missing"),
        ('{"about": 1, "about": 2}', "stands twice"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path, content, said):
    with pytest.raises(ResultsError, match=re.escape(said)):
        read(tmp_path, content)


def test_wrong_values_are_refused_and_missing_files_named(tmp_path):
    content = values.scores()
    content["suite"][1]["area"] = 7
    with pytest.raises(ResultsError, match=r"suite\[1\].area is 7"):
        read(tmp_path, content)
    with pytest.raises(ResultsError, match="No such file"):
        evaluations.read(tmp_path / "nothing.json")


@pytest.mark.parametrize(("value", "said"), [(-0.04, "0.0"), (-0.06, "−0.1"), (3, "+3.0")])
def test_a_sign_stands_only_where_a_digit_does(value, said):
    assert wording.signed(value) == said
