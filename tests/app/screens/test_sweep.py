"""Sweeps on the pages: submitted on New run, grouped on Jobs, judged on Sweep; filled, empty, in error. No GPU."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from routesparse.app.screens.compare import curve, selection, tables
from routesparse.app.shell import identity
from routesparse.app.shell.access import access
from routesparse.app.ui import design
from routesparse.engine.errors import StoreError
from routesparse.engine.jobs import sweep
from routesparse.engine.jobs.prompt_files import PromptFiles
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import queries, verdicts
from tests.app.conftest import ANN, BOB, TEXT, press

CALIBRATIONS = Path(__file__).resolve().parents[3] / "data" / "calibrations"
# price -> area, KL, error, prefill: a front of three by area; .6 is beaten by .5, and 2 was not compared.
MEASURED = {
    0.1: (0.40, 0.001, 0.02, 900.0),
    0.5: (0.20, 0.004, 0.04, 700.0),
    0.6: (0.25, 0.008, 0.05, 650.0),
    1.0: (0.10, 0.030, 0.08, 500.0),
    2.0: (0.05, None, None, 400.0),
}


def asked(queue):
    return [RunRequest.from_json(job.request_json) for job in reversed(queue.jobs())]


@pytest.fixture
def submitted(queue):
    """A sweep of five prices, all of them waiting."""
    requests = sweep.with_values(RunRequest(label="<b>ledger.txt"), "price", list(MEASURED))
    return queue.submit_sweep(requests, TEXT)


@pytest.fixture
def measured(queue, submitted, record, factory, spooled):
    """The same sweep with its runs stored."""
    priced = factory.priced(record)
    for price, (area, kl, error, prefill) in MEASURED.items():
        run = {
            "sweep": submitted,
            "price": price,
            "density": area,
            "kl_nats": kl,
            "mean_error": error,
            "top1_agreement": None if kl is None else 1.0,
            "loss_nats": None,  # as of runs made before a loss was predicted
            "total_ms": prefill,
            "dense_ms": None if kl is None else 1400.0,
        }
        claim = queue.claim("worker-1")
        spooled(claim.run_id, of=priced, run=run)
        queue.finish(claim, claim.run_id)
    return submitted


def rows_of(queue, sweep_id):
    opened = access()
    opened.look_into_spool()
    ids = [job.run_id for job in queue.sweep(sweep_id)]
    stored = queries.runs(opened.store)
    judged = dict(zip(stored["run_id"], verdicts.of_rows(stored), strict=True))
    rows = tables.sides_rows(selection.of_runs(opened.store, ids), judged)
    return rows.astype({"kl_nats": float, "mean_error": float, "dense_ms": float})


# New run


@pytest.mark.parametrize(
    ("address", "field", "values"),
    [
        ({"vary": "price", "prices": "0.5, 0.25 1"}, "price", [0.5, 0.25, 1.0]),
        ({"vary": "time limit", "limits": "0.5; 800 us, none"}, "budget", ["0.5", "800us", None]),
    ],
    ids=["prices", "limits"],
)
def test_one_press_queues_a_job_for_each_value_in_order(form, queue, went, address, field, values):
    page = form(tau="0.2", price="0.7", **address)
    assert page.button(key="submit").label == "Analyse with 3 settings"
    assert "estimated time, 3 settings" in page.words
    page.button(key="submit").click().run()
    assert not page.exception
    requests = asked(queue)
    assert [getattr(request, field) for request in requests] == values
    assert {request.tau for request in requests} == {0.2}, "the other settings stay"
    ((name, query),) = went
    assert name == "compare" and [job.sweep for job in queue.sweep(query["sweep"])] == [query["sweep"]] * 3


def test_every_price_is_checked_against_the_calibration(demo_home, form, queue):
    folder = demo_home.parent / "data" / "calibrations"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prose.json").symlink_to(CALIBRATIONS / "prose.json")
    page = form(vary="price", prices="0.5, 0.3, 1", calibration="prose", break_even="0")
    assert page.words.count("calibration 'prose' was made with price 0.5, this run has 0.3") == 1
    assert "this run has 1" not in page.words and page.button(key="submit").disabled
    press(page, "Run without a calibration")
    page.button(key="submit").click().run()
    assert [(request.price, request.calibration) for request in asked(queue)] == [
        (0.5, None),
        (0.3, None),
        (1.0, None),
    ]


def test_every_bad_value_is_named_at_once_and_can_be_left_out(form, queue):
    page = form(vary="price", prices="0.5, cheap, -1, 0.50, 2")
    html = page.words
    assert (
        "price 'cheap' is no number" in html
        and "A price of -1 is out of range" in html
        and "0.50 repeats a value" in html
    )
    assert page.button(key="submit").disabled
    press(page, "Leave it out")
    press(page, "Leave it out")
    assert page.text_input(key="prices").value == "0.5, 0.50, 2"
    page.text_input(key="prices").set_value("0.5, 2").run()
    assert not page.button(key="submit").disabled and queue.jobs() == []


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ({"vary": "price"}, "Prices: no values are given; a sweep needs from 2 to 12"),
        ({"vary": "price", "prices": "0.5"}, "1 value is given"),
        ({"vary": "price", "prices": ",".join(f"0.{i}" for i in range(10, 24))}, "14 values are given"),
        ({"vary": "time limit", "limits": "0.5, none", "with_policy": "strict"}, "needs a latency limit"),
        ({"vary": "price", "prices": "0.5, 1", "with_policy": "certified"}, "certified reads no price"),
        ({"vary": "price", "prices": "0.5, 1", "segment": "1000"}, "multiple of 128"),
    ],
    ids=["none", "one", "fourteen", "limit", "policy", "another setting"],
)
def test_a_sweep_that_can_not_be_queued_says_why(form, address, message):
    page = form(**address)
    assert not page.exception and message in page.words
    assert page.button(key="submit").disabled


@pytest.mark.parametrize(
    ("address", "button"),
    [
        ({"vary": "price"}, "Use 0.25, 0.5, 1"),
        ({"vary": "time limit"}, "Use 0.25, 0.5, none"),
        ({"vary": "price", "prices": "0.5, 1", "with_policy": "certified"}, "Use policy priced"),
    ],
)
def test_values_and_the_policy_that_reads_them_are_one_press_away(form, address, button):
    page = form(**address)
    press(page, button)
    assert "no values are given" not in page.words and not page.button(key="submit").disabled


def test_nothing_is_queued_and_nothing_lost_when_the_queue_fails(form, queue, failing):
    page = form(vary="price", prices="0.5, 1")

    with failing(PromptFiles, "write", StoreError("the disk is full")):
        page.button(key="submit").click().run()
    assert "Nothing was queued" in page.words and queue.jobs() == []
    assert page.text_input(key="prices").value == "0.5, 1"


# Jobs


def test_jobs_show_a_sweep_as_one_line_and_cancel_it_whole(home, queue, submitted, open_page):
    alone = queue.submit(RunRequest(label="alone.txt"), TEXT)
    done = queue.claim("worker-1")
    queue.finish(done, done.run_id)
    page = open_page("runs")
    html = page.words
    assert html.count("· sweep, 1 of 5 done, 4 waiting") == 1 and "alone.txt" in html
    assert f"compare?sweep={submitted}" in html and "<b><b>" not in page.told
    page.button(key=f"cancel-{submitted}").click().run()
    assert [job.state for job in queue.sweep(submitted)] == ["done", *["cancelled"] * 4]
    assert queue.job(alone).state == "queued"
    page.button(key=f"again-{submitted}").click().run()
    assert "sweep, 1 of 5 done, 4 waiting" in page.words and len(queue.sweep(submitted)) == 9
    queue.cancel_sweep(submitted)
    assert "sweep, 1 of 5 done" not in open_page("runs").words, "nothing of it is active any more"


def test_another_s_sweep_is_not_shown(home, queue, open_page, login):
    login()
    requests = sweep.with_values(RunRequest(label="anns.txt"), "price", [0.5, 1.0])
    sweep_id = queue.of(identity.digest("sub", ANN["iss"], "ann")).submit_sweep(requests, TEXT)
    assert "0 of 2 done" in open_page("compare", ANN, sweep=sweep_id).words
    html = open_page("compare", BOB, sweep=sweep_id).words
    assert "This link leads nowhere" in html and "anns.txt" not in html
    assert "anns.txt" not in open_page("runs", BOB).words
    assert "No sweeps yet" in open_page("compare", BOB, sweep="").words


# Sweep


def test_no_sweep_and_an_unknown_one_say_so(home, open_page):
    html = open_page("compare", sweep="").words
    assert "No sweeps yet" in html and "new?vary=price" in html
    assert "This link leads nowhere" in open_page("compare", sweep="<i>nothing").words


def test_a_sweep_that_waits_lists_its_settings_and_no_result(home, queue, submitted, open_page):
    page = open_page("compare", sweep=submitted)
    html = page.words
    assert "0 of 5 done, 5 waiting" in html and "No worker is running" in html
    assert all(f"price {price:g}" in html for price in MEASURED)
    assert not page.number_input and not page.get("plotly_chart")


def test_the_newest_sweep_is_opened_without_an_address(home, queue, submitted, open_page):
    newer = queue.submit_sweep(sweep.with_values(RunRequest(), "budget", ["0.5", None]), TEXT)
    page = open_page("compare", sweep="")
    assert "Tℓ 50 %" in page.words and page.query_params["sweep"] in (newer, [newer])


def test_the_cheapest_setting_below_an_error_is_named(measured, open_page):
    page = open_page("compare", sweep=measured)
    assert "from 0.001 nats to 0.03 nats" in page.words
    same = pd.DataFrame({"kl_nats": [0.002, 0.002], "density": [0.1, 0.2]})
    assert "Measured: 0.002 nats." in curve.answer(same, curve.ERRORS["kl"], "area", None)[0]
    page.number_input(key="below-choice").set_value(0.01).run()
    html = page.words
    assert (
        "The cheapest by area below 0.01 nats is <b>B, price 0.5</b>: KL of the next token 0.004 nats" in html
    )
    assert "reads 20.0 % of the causal area" in html and "3 of 4 measured settings stay below it" in html
    assert "This is one prompt" in html and "single run" in html
    page = open_page("compare", sweep=measured, below="0.01", by="time")
    assert "The cheapest by time below 0.01 nats is <b>C, price 0.6</b>" in page.words
    page = open_page("compare", sweep=measured, below="0.05", error="audited")
    assert "is <b>B, price 0.5</b>: audited output error 0.04" in page.words


def test_the_predicted_loss_leads_where_there_is_one(measured, spooled, open_page):
    for run_id, loss, area in (("aaaa000000000001", 0.006, 0.2), ("bbbb000000000002", 0.012, 0.1)):
        spooled(run_id, run={"loss_nats": loss, "loss_bound": 2 * loss, "density": area})
    html = open_page("compare", runs="aaaa0000,bbbb0000", below="0.01").words
    assert "predicted loss 0.006 nats, reads 20.0 % of the causal area" in html
    assert "a predicted loss of 0.012 nats (baseline 0.006)" in html
    assert ">0.006 ≤ 0.012</td>" in html and ">0.012 ≤ 0.024</td>" in html
    assert "loss, nats" not in open_page("compare", sweep=measured).words.split("</tr>")[0]


@pytest.mark.parametrize("below", ["soon", "-1", "nan", "9" * 400])
def test_an_accepted_error_that_is_no_number_is_as_if_none_was_typed(measured, open_page, below):
    page = open_page("compare", sweep=measured, below=below)
    assert "Type the error that you accept" in page.words


def test_where_no_setting_keeps_the_error_the_closest_is_named(measured, open_page):
    html = open_page("compare", sweep=measured, below="0.001").words
    assert (
        "No setting keeps the KL of the next token below 0.001 nats. The closest is <b>A, price 0.1</b>"
        in html
    )


NAN = float("nan")


@pytest.mark.parametrize(
    ("costs", "errors", "below", "named"),
    [
        ([0.4, 0.2, 0.1, 0.05], [0.001, 0.01, 0.01, 0.2], 0.0101, "C"),
        ([0.4, 0.2, 0.1, 0.05], [0.001, 0.01, 0.01, 0.2], 0.01, "A"),
        ([0.4, 0.2, 0.1, 0.05], [0.001, 0.01, 0.01, 0.2], 0.001, "A"),
        ([0.1, NAN, 0.3], [NAN, 0.0, 0.01], 1.0, "C"),
        ([0.1], [NAN], 1.0, None),
        ([0.2, 0.2], [0.009, 0.004], 0.01, "B"),
        ([0.3, 0.2], [0.004, 0.004], 0.001, "B"),
    ],
    ids=["cheapest", "strictly below", "closest", "not measured", "nothing", "equally cheap", "equally far"],
)
def test_the_setting_named_is_the_cheapest_below_the_error_else_the_closest(costs, errors, below, named):
    rows = pd.DataFrame({"density": costs, "kl_nats": errors, "total_ms": 1.0, "speedup": NAN})
    rows = rows.assign(letter=list("ABCD")[: len(rows)], side="price 1")
    assert curve.answer(rows, curve.ERRORS["kl"], "area", below)[1] == named


def test_what_was_not_measured_is_said_and_neither_drawn_nor_zero(measured, open_page, queue):
    html = open_page("compare", sweep=measured).words
    assert "not drawn, error not measured: E" in html and "n = 1 next token a run" in html
    last = html[html.index("<b>E</b>") :].split("</tr>")[0]
    assert last.count('class="no">–</td>') == 3, "KL, audited error and speedup"
    rows = rows_of(queue, measured)
    assert np.isnan(rows["kl_nats"].iloc[4]) and np.isnan(rows["dense_ms"].iloc[4])
    out = curve.exported(rows, curve.ERRORS["kl"])
    assert out["front_area"].tolist() == [True, True, False, True, False]
    assert out["front_time"].tolist() == [True, True, True, True, False]
    assert out["price"].tolist() == list(MEASURED)
    audited = curve.ERRORS["audited"]
    assert audited.counted(rows) == "mean over 512 rows of every sparse unit"
    assert audited.counted(rows.assign(audit_rows=0)) == "not measured"


def test_the_picture_holds_each_measured_setting_twice_and_both_fronts(measured, queue):
    rows = rows_of(queue, measured)
    error = curve.ERRORS["kl"]
    drawn = rows[rows["kl_nats"].notna()]
    chart = curve.fronts(drawn, error, 0.01, "B", design.LIGHT)
    fronts = [next(mark for mark in chart["marks"] if mark["panel"] == place) for place in (0, 1)]
    assert [sorted(set(front["x"])) for front in fronts] == [[0.1, 0.2, 0.4], [500.0, 650.0, 700.0, 900.0]]
    assert list(zip(fronts[0]["x"], fronts[0]["y"], strict=True))[:3] == [
        (0.1, 0.03),
        (0.2, 0.03),
        (0.2, 0.004),
    ]
    points = [mark for mark in chart["marks"] if mark["kind"] == "points"]
    assert [(one["panel"], len(one["x"]), len(one["told"])) for one in points] == [(0, 4, 4), (1, 4, 4)]
    assert points[0]["told"][1][:5] == ["B", "price 0.5", "KL of the next token", "0.004 nats", "20.0 %"]
    assert points[0]["edge_width"] == [1.4, 3.0, 1.4, 1.4], "the named setting is ringed"
    assert "dashed" not in curve.foot(rows, error, 0.0, "B"), "0 has no place on the logarithmic axis"
    zero = drawn.assign(kl_nats=[0.0, 0.004, 0.008, 0.03])
    assert not curve.fronts(zero, error, None, None, design.DARK)["y"]["log"], "0 is on no log axis"


def test_runs_without_jobs_are_a_sweep_too(measured, home, queue, open_page):
    """A sweep whose bundles came from another machine, or whose jobs were deleted."""
    rows_of(queue, measured)
    with closing(sqlite3.connect(home / "jobs.sqlite3")) as database, database:
        database.execute("DELETE FROM job")
    html = open_page("compare", sweep=measured, below="0.01").words
    assert all(f">price {price:g}" in html for price in MEASURED) and "price 0.5</b>: KL" in html


def test_a_broken_queue_leaves_the_runs_of_a_sweep_readable(measured, home, queue, open_page):
    rows_of(queue, measured)
    queue.close()
    (home / "jobs.sqlite3").write_bytes(b"no database, but long enough to be looked at" * 50)
    page = open_page("compare", sweep=measured, below="0.01")
    assert "Stored runs are not affected" in page.words and "is <b>" in page.words


def test_what_still_runs_stands_beside_what_is_done(queue, submitted, record, factory, spooled, open_page):
    done = queue.claim("worker-1")
    spooled(done.run_id, of=factory.priced(record), run={"sweep": submitted})
    queue.finish(done, done.run_id)
    queue.claim("worker-1")
    html = open_page("compare", sweep=submitted, below="0.01").words
    assert "1 of 5 done, 1 running, 3 waiting" in html and "a comparison needs two" in html
    table = html[html.index("<table>") : html.index("</table>")]
    assert table.count('<td class="l say">running') == 1 and table.count('<td class="l say">waiting') == 3
    assert table.count(">job</a>") == 4 and "map?run=" in html
    assert "nan" not in table


@pytest.mark.parametrize("page", ["compare", "runs"])
def test_a_setting_of_a_newer_version_is_said_to_be_unreadable(home, queue, submitted, open_page, page):
    newer = queue.sweep(submitted)[1].id
    with closing(sqlite3.connect(home / "jobs.sqlite3")) as database, database:
        changed = database.execute(
            "UPDATE job SET request_json = json_set(request_json, '$.warp', 9) WHERE id = ?", (newer,)
        )
        assert changed.rowcount == 1
    shown = open_page(page, **({"sweep": submitted} if page == "compare" else {}))
    html = shown.words
    assert not shown.exception and "0 of 5 done, 5 waiting" in html
    if page == "compare":
        assert html.count("unknown setting") == 1 and "asks for warp, which this version doesn't know" in html
        assert [price in html for price in ("price 0.1", "price 0.5", "price 2")] == [True, False, True]


def test_failed_settings_say_why(home, queue, submitted, open_page):
    queue.fail(queue.claim("worker-1"), "out_of_memory", "out of memory; shorten it")
    queue.cancel_sweep(submitted)
    html = open_page("compare", sweep=submitted).words
    assert (
        "✕</span> failed · out of memory; shorten it" in html
        and html.count('<td class="l say">cancelled') == 4
    )


def test_a_run_links_to_its_sweep_and_others_do_not(measured, waiting, queue, open_page):
    rows = rows_of(queue, measured)
    assert f"compare?sweep={measured}" in open_page("routing_map", run=rows["run_id"].iloc[0]).words
    assert "compare?sweep" not in open_page("routing_map", run="3f9a1c20").words


def test_runs_that_ran_dense_say_so(queue, submitted, spooled, open_page):
    run = {"sweep": submitted, "units": 0, "routed": False}
    run |= dict.fromkeys(("density", "kl_nats", "mean_error", "loss_nats"))
    empty = dict.fromkeys(("choices", "candidates", "fallbacks", "audits", "probes"), ())
    for _ in MEASURED:
        claim = queue.claim("worker-1")
        spooled(claim.run_id, run=run, **empty)
        queue.finish(claim, claim.run_id)
    html = open_page("compare", sweep=submitted, below="0.01").words
    assert "Dense attention ran untouched" in html and "all, not routed" in html
