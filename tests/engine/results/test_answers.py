"""The first answers of an evaluation: is anything lost, what is saved, is it better, what was not tested. No GPU."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from routesparse.engine.results import answers, evaluations
from routesparse.engine.results.evaluations import Estimate
from tests.engine.results import values

LENGTH = 32_768


@pytest.fixture
def found():
    return evaluations.of_text(json.dumps(values.scores()))[0]


def changed(found, name, **fields):
    rows = tuple(
        replace(row, **fields) if row.name == name and row.length == LENGTH else row for row in found.rows
    )
    return replace(found, rows=rows)  # fmt: skip


def told(found):
    lost, saved, better, untested = (answer for _, answer in answers.answers(found, LENGTH))
    return {"lost": lost, "saved": saved, "better": better, "untested": untested}


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        (
            Estimate(-0.1, -0.6, 0.4),
            "Nothing is shown to be lost; the interval, which takes tasks without a difference as sure, ends above a "
            "loss of 1 point.",
        ),
        (Estimate(-0.4, -1.9, 1.1), "Not resolved: a loss of more than 1 point is not ruled out."),
        (Estimate(-0.5, -0.9, -0.1), "Yes, but less than 1 point."),
        (Estimate(-1.5, -2.9, -0.1), "Yes."),
        (Estimate(-4.0, -5.0, -3.0), "Yes, more than 1 point."),
        (Estimate(0.0, 0.0, 0.0), "None was seen, but so few prompts differ that there is no interval."),
    ],
)
def test_a_loss_is_ruled_out_shown_or_left_open_by_its_interval(found, difference, said):
    lost = told(changed(found, "routesparse=0.5", difference=difference))["lost"]
    assert lost.startswith(said)
    assert (
        "mean score of 94.6 where full (dense) attention has 95.0" in lost
        and "n = 48 prompts of 2 tasks" in lost
    )


def test_where_dense_solves_no_task_nothing_is_answered(found):
    weak = told(changed(found, "routesparse=0.5", good_tasks=()))
    assert weak["lost"].startswith("It can't be told here") and weak["better"].startswith(
        "It can't be told here"
    )


def test_a_rise_of_perplexity_is_a_loss(found):
    book = changed(found, "routesparse=0.5", ratio=Estimate(1.02, 1.015, 1.03), score=20.0, tasks=())
    lost = told(book)["lost"]
    assert lost.startswith("Yes, more than 1 %.") and "perplexity +2.0 %, 95 % interval +1.5 to +3.0" in lost


def test_times_are_told_where_one_process_took_them(found):
    faster = changed(found, "routesparse=0.5", prefill_ms=25.0)
    assert "25.0 ms in place of 50.0 ms (2.00×), medians on NVIDIA H200" in told(faster)["saved"]
    assert "reads 12.0 %" in told(faster)["saved"]
    shared = replace(faster, processes=8)
    assert "compare nothing" in told(shared)["saved"]
    assert "2.00×" in told(replace(shared, timed_alone=True))["saved"]


def test_a_rival_that_reads_and_loses_no_more_is_named(found):
    better = told(found)["better"]
    assert "no other method reads as little and loses as little, of 1 setting that ran (minference)" in better
    assert "minference=1, is at −6.0 points of 100 [−7.5 to −4.5]" in better
    ahead = changed(found, "minference=1", area=0.1, difference=Estimate(0.1, -0.2, 0.4))
    assert told(ahead)["better"].startswith("By the estimates, not than minference=1")
    alone = replace(found, rows=tuple(row for row in found.rows if row.method != "minference"))
    assert told(alone)["better"].startswith("Not measured")


def test_what_was_not_tested_is_named(found):
    text = told(found)["untested"]
    assert "Any model but demo, any device but NVIDIA H200" in text
    assert "1 task (<b>vt): dense itself scores below 80" in text
    none = replace(found, rows=tuple(row for row in found.rows if row.method != "routesparse"))
    assert answers.answers(none, LENGTH) == [
        ("Is it better?", "ruler has no result of RouteSparse at 32,768 tokens.")
    ]
