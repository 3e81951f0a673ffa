"""The predicted loss on Trust: of one run along its prompt, and of many beside the truth. No GPU, no browser."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from routesparse.app.screens.trust import figures, loss_card, loss_figures
from routesparse.app.shell.access import access
from routesparse.app.ui import design
from routesparse.engine.store import queries, word_queries

RUN, OTHER, OLD = "3f9a1c20d4e5b678", "10551055aaaa0001", "01d001d0bbbb0002"
NONE = dict.fromkeys(("loss_nats", "loss_bound", "loss_fit", "loss_alarm", "loss_ms"))


@pytest.fixture
def runs(spooled):
    """A run within its bound, one beyond it, and one of a version that predicted nothing."""
    spooled()
    spooled(OTHER, run={"loss_nats": 0.002, "loss_bound": 0.004, "loss_target": 0.003})
    spooled(OLD, run=NONE, losses=())


def test_trust_says_what_was_predicted_what_is_true_and_by_what(runs, record, open_page):
    html = open_page("trust", run=RUN).told
    assert record.true_loss == pytest.approx(np.mean([row.dense for row in record.losses]))
    for told in (
        "0.0060 nats</b><small>a token; model fitted on mixed",
        "0.0130 nats</b><small>95 % of such texts",
        '<b class="">none</b><small>a token, as asked for',
        "; 64 rows in 4 places",
        f"True {record.true_loss:.4f} nats a token at the replayed rows, within the bound.",
        "n = 4 stretches, 64 rows",
    ):
        assert told in html, told
    other = open_page("trust", run=OTHER).told
    assert "beyond the bound" in other and "0.003 nats</b>" in other


def test_a_run_without_a_prediction_says_so_and_keeps_its_evidence(runs, open_page):
    html = open_page("trust", run=OLD).told
    assert "Not measured: no rows of this run were replayed." in html and "Worst stretches" not in html
    assert "Evidence: kept mass" in html and "Next token as by dense" in html


def test_a_model_without_a_fit_is_told_and_nothing_is_said_of_the_truth(filled, open_page):
    html = open_page("trust", run="c0de17aa").told
    assert "a stated factor; the model is not fitted" in html
    assert "no bound</b><small>the model is not fitted" in html
    assert "at the replayed rows, within" not in html and "◆" not in html.split("Evidence: kept mass")[0]


def test_where_the_alarm_rings_no_page_gives_the_bound_as_one(spooled, open_page):
    spooled(run={"loss_alarm": True})
    html = open_page("trust", run=RUN).told
    assert "no bound</b><small>rows unlike the fit’s" in html and ">at most<" not in html
    assert "the bound." not in html and "at most 0.0130" not in html
    assert "no bound: rows unlike the fit’s" in open_page("routing_map", run=RUN).told
    assert "loss_bound" not in open_page("runs").dataframe[0].value


def test_a_bound_that_a_fit_could_not_give_is_told_with_its_reason(spooled, open_page):
    spooled(run={"loss_bound": None})
    for page in ("trust", "routing_map"):
        html = open_page(page, run=RUN).told
        assert "too few texts, or is of runs routed otherwise" in html and "unlike the fit" not in html


def test_the_worst_stretches_are_shown_as_text_and_as_nothing_where_it_was_not_kept(
    spooled, record, open_page
):
    hostile = record.prompt.text.replace(record.prompt.text[0], "<", 1)
    first = replace(record.losses[0], dense=0.9, replayed=0.8)
    spooled(prompt=replace(record.prompt, text=hostile), losses=(first, *record.losses[1:]))
    spooled(OTHER, prompt=None)
    html = open_page("trust", run=RUN).told
    worst = html[html.index("Worst stretches") :]
    assert worst.index("tokens 0–15 · 0.9 nats") < worst.index("nats a token", worst.index("0.9 nats") + 20)
    assert "<bdi>&lt;" in worst
    assert "Worst stretches" not in open_page("trust", run=OTHER).told


def test_the_picture_has_a_mark_a_stretch_and_a_line_for_each_figure(runs, record, open_page):
    open_page("runs")
    view = access().store
    losses, words = queries.losses(view, RUN), word_queries.words(view, RUN)
    run = replace(record.run, loss_target=0.01)
    drawn = loss_figures.along(losses, run, words, design.LIGHT)
    kinds = [mark["kind"] for mark in drawn["marks"]]
    assert kinds.count("line") == 3 and kinds.count("points") == 2
    replayed, dense = (mark for mark in drawn["marks"] if mark["kind"] == "points")
    assert replayed["y"] == pytest.approx(losses["replayed"].tolist())
    assert dense["y"] == pytest.approx(losses["dense"].tolist())
    assert replayed["told"][1][0] == "1,024–1,039" and replayed["told"][1][3].strip()
    json.dumps(drawn, allow_nan=False)
    bare = loss_figures.along(losses.assign(dense=np.nan), record.run, None, design.DARK)
    assert [len(mark["x"]) for mark in bare["marks"] if mark["kind"] == "points"] == [4, 0]
    wide = loss_figures.along(losses.assign(replayed=[1e-5, 1e-3, 0.1, 1.0]), run, None, design.LIGHT)
    assert wide["y"]["log"] and not drawn["y"]["log"]


def test_all_runs_are_set_beside_the_truth_and_a_click_opens_one(runs, open_page, went, monkeypatch):
    page = open_page("trust", run=RUN, scope="all")
    assert "True loss: 1 of 2 runs within a fitted bound." in page.told and "n = 2 runs" in page.told
    monkeypatch.setattr("routesparse.app.ui.plot.show", lambda *a, **k: [OTHER] if k.get("picks") else None)
    open_page("trust", run=RUN, scope="all")
    assert went[0] == ("map", {"run": OTHER[-8:]})


def test_without_both_losses_the_scatter_says_how_to_get_a_point(spooled, open_page):
    spooled(run=NONE, losses=())
    html = open_page("trust", run=RUN, scope="all").told
    assert "No point yet: 0 of 1 run of these weights" in html and "dense=true" in html


def test_runs_beyond_their_bound_are_always_drawn_and_told_by_colour_and_shape():
    count = figures.MOST_DRAWN + 50
    runs = pd.DataFrame(
        {
            "run_id": [f"{i:016x}" for i in range(count)],
            "prompt_name": "<b>",
            "loss_nats": np.linspace(0.001, 0.1, count),
            "loss_alarm": [None] * (count - 3) + [True] * 2 + [None],
            "loss_fit": ["prose"] * (count - 1) + [None],
        }
    )
    runs["loss_bound"] = 2 * runs["loss_nats"]
    runs["loss_true"] = runs["loss_nats"].where(runs.index > 2, 3 * runs["loss_nats"])
    drawn = loss_figures.against_truth(runs, design.LIGHT)
    within, beyond = (mark for mark in drawn["marks"] if mark["kind"] == "points")
    assert len(beyond["x"]) == 3 and len(within["x"]) == figures.MOST_DRAWN - 3
    assert (within["symbol"], beyond["symbol"]) == ("circle", "diamond")
    told = loss_card.how_many_held(runs)
    assert told == (
        f"True loss: {count - 6} of {count - 3} runs within a fitted bound; 2 of 2 runs where the alarm voids it; "
        "1 of 1 run within a stated one, which has no coverage."
    )
