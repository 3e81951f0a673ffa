"""Tuned prices on other kinds of text and question: read, told, drawn. No GPU, no torch."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from routesparse.engine import paths
from routesparse.engine.errors import ResultsError
from routesparse.engine.results import report, shift
from routesparse.engine.results.shift import Goal, Price, Shift, Use

KEEPS = Use("prose", True, 64, 4, 0.004, 0.006, 0.2, 0.0)
DOUBTED = Use("code", False, 66, 3, 0.009, 0.0105, 0.15, 0.25)
MISSES = Use("docs", False, 64, 2, 0.012, 0.013, 0.15, 0.25)
GOAL = Goal(
    "kl",
    0.01,
    "KL <at most> 0.01",
    0.95,
    (
        Price("prose-kl", 0.5, ("prose",), False, (KEEPS, DOUBTED, MISSES)),
        Price("strictest-kl", 0.2, ("prose", "code"), True, (KEEPS, dataclasses.replace(DOUBTED, own=True), MISSES)),
    ),
)  # fmt: skip
SHIPPED = [paths.DATA / "results" / name for name in ("tuning_shift.json", "tuning_answers_shift.json")]
SHIFT = Shift("write it", "demo", 16_384, ("NVIDIA H200, seed 1",), (GOAL,))


def test_what_was_written_is_read_again(tmp_path):
    path = paths.write_json(tmp_path / "shift.json", dataclasses.asdict(SHIFT))
    assert shift.read(path) == SHIFT
    path.write_text(path.read_text().replace('"bound": 0.013', '"bound": NaN'))
    with pytest.raises(ResultsError, match=re.escape("goals[0].prices[0].uses[2].bound is NaN")):
        shift.read(path)


def test_a_target_is_kept_by_its_bound_by_its_mean_alone_or_not():
    assert [GOAL.kept(use) for use in (KEEPS, DOUBTED, MISSES)] == ["yes", "by its mean", "no"]
    told = shift.headline(GOAL)
    assert (
        "Of 3 pairs of a price and a kind of text that it was not tuned on: 0 kept, 1 kept by the mean"
        in told
    )
    assert "Of 3 on a kind that it was tuned on, other documents: 2 kept, 1 kept by the mean only" in told
    assert told.endswith("The strictest price, 0.2, is not shown to keep it on code, docs.")


def test_the_report_holds_it():
    page = report.page([], [], "routesparse report", SHIFT)
    assert "KL &lt;at most&gt; 0.01" in page and "<at most>" not in page
    assert "| prose-kl |" in report.markdown([], [], "routesparse report", SHIFT)


def test_the_shipped_files_say_what_their_headlines_say():
    found, answers = map(shift.read, SHIPPED)
    assert [goal.measure for goal in (*found.goals, *answers.goals)] == ["kl", "agreement", "nats", "answer"]
    assert all(use.windows == 64 for one in answers.goals[0].prices for use in one.uses)
    assert "6 kept, 0 kept by the mean only, 0 missed" in shift.headline(answers.goals[0])
    for goal in found.goals:
        assert goal.domains == ["prose", "dialog", "code", "docs"] and goal.confidence == 0.95
        assert all(use.windows >= 60 for one in goal.prices for use in one.uses)
        assert len({(one.name, use.domain) for one in goal.prices for use in one.uses}) == 20
    assert all(json.loads(path.read_text())["kind"] == shift.KIND for path in SHIPPED)
