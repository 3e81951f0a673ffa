"""The Runs page as a workbench: words of the owner's, columns, groups, reasons, trash; two people apart. No GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from streamlit.dataframe_util import convert_pandas_df_to_arrow_bytes
from streamlit.elements.lib.pandas_styler_utils import marshall_styler
from streamlit.proto.ArrowData_pb2 import ArrowData
from streamlit.testing.v1 import AppTest

from routesparse.app.screens.runs import page as runs_page
from routesparse.app.screens.runs import run_table
from routesparse.app.shell import identity
from routesparse.app.shell.access import access
from routesparse.app.ui import design
from routesparse.engine.errors import StoreError
from routesparse.engine.store import bundle, label_queries, queries, spool, verdicts
from routesparse.engine.store.labels import Label
from routesparse.engine.store.owner_view import OwnerView
from tests.app.conftest import ANN, BOB

RUN, AGAIN, CODE = "3f9a1c20d4e5b678", "77771c20aaaa5679", "c0de17aa90e1f003"


def listed(page) -> list[str]:
    return list(page.dataframe[0].value["run"])


@pytest.fixture
def three(waiting, spooled):
    """``waiting``, and the first prompt once more with another τ and an answer that differs."""
    run = {"tau": 0.85, "top1_agreement": 0.0, "kl_nats": 0.3, "max_error": 0.0000123}
    spooled(AGAIN, run=run, config={"tau": 0.85})
    return waiting


def form_page(run_id: str) -> None:
    from routesparse.app.screens.runs import label_form
    from routesparse.app.shell.access import access

    access().look_into_spool()
    label_form.draw(access(), run_id)


@pytest.fixture
def form(three):
    """The form of the first run."""
    return AppTest.from_function(form_page, default_timeout=30, kwargs={"run_id": RUN}).run()


def test_a_name_tags_and_notes_are_kept_and_listed_as_text(form, open_page):
    form.text_input(key=f"name-{RUN}").input("<b>best</b>")
    form.text_area(key=f"notes-{RUN}").input("first line\nsecond")
    form.button[0].click().run()
    assert not form.exception
    label = label_queries.label(access().store, RUN)
    assert (label.name, label.notes) == ("<b>best</b>", "first line\nsecond")
    access().store.set_label(RUN, replace(label, tags=("good", "prose")))
    page = open_page("runs", tag="good")
    assert listed(page) == [RUN[-8:]] and list(page.dataframe[0].value["tags"]) == ["good, prose"]
    html = open_page("text", run=RUN).told
    assert "&lt;b&gt;best&lt;/b&gt;" in html and "<b>best" not in html


def test_columns_say_how_far_a_run_goes_on_as_dense_does(waiting, record, spooled, open_page):
    continued = record.continuations[0]
    spooled("5a3e00005a3ef001", continuations=(replace(continued, tokens=24, same_tokens=24),))
    spooled("5a3e00005a3ef002", continuations=(continued,))
    spooled("5a3e00005a3ef003", continuations=())
    page = open_page("runs", columns="same_tokens,first_difference")
    shown = page.dataframe[0].value.set_index("run")
    assert shown.loc["5a3ef001", "same_tokens"] == 24 and shown.loc["5a3ef001", "first_difference"] == "none"
    assert (
        shown.loc["5a3ef002", "same_tokens"] == 2 and shown.loc["5a3ef002", "first_difference"] == "token 3"
    )
    assert shown.loc["5a3ef003", ["same_tokens", "first_difference"]].isna().all(), "it was not continued"


def test_what_cannot_be_kept_is_refused_and_stays_typed(form):
    form.text_input(key=f"name-{RUN}").input("x" * 130)
    form.button[0].click().run()
    assert "at most 120 characters" in form.told and "what you typed is still here" in form.told
    assert form.text_input(key=f"name-{RUN}").value == "x" * 130
    assert label_queries.label(access().store, RUN) == Label()


def test_times_are_held_against_the_pinned_run_of_a_prompt_until_it_is_unpinned(three, open_page, failing):
    open_page("runs")
    access().store.set_label(RUN, Label("kept name", pinned=True))
    page = open_page("runs")
    assert "Baseline: <b><bdi>needles-16k.txt</bdi></b>" in page.told
    against = dict(zip(listed(page), page.dataframe[0].value["against"], strict=True))
    assert against[RUN[-8:]] == against[AGAIN[-8:]] == 0
    assert against[CODE[-8:]] != against[CODE[-8:]], "another prompt takes another time"

    with failing(OwnerView, "set_label", StoreError("the disk is full")):
        page.button(key="unpin").click().run()
        assert not page.exception and "the disk is full" in page.told
    page.button(key="unpin").click().run()
    assert "Baseline" not in page.told and "against" not in page.dataframe[0].value
    assert label_queries.label(access().store, RUN) == Label("kept name")


def test_runs_of_one_prompt_stand_together_and_say_how_they_differ(three, open_page):
    table = open_page("runs", grouped="true").dataframe[0].value
    assert (
        table["prompt"].tolist()[:2] == ["<b>router</b>.txt", "needles-16k.txt"]
        and "└" in table["prompt"].tolist()[2]
    )
    assert table["differs"].tolist() == ["", "τ 0.85", "τ 0.90"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"reason": "next token differs"}, [AGAIN]),
        ({"reason": "loss not fitted"}, [CODE]),
        ({"level": "Not safe"}, [AGAIN]),
        ({"reason": "heads expanded by fallback", "q": "needles"}, [AGAIN, RUN]),
        ({"q": AGAIN[-8:]}, [AGAIN]),
    ],
)
def test_runs_are_found_by_verdict_and_reason(three, open_page, query, found):
    page = open_page("runs", **query)
    assert not page.exception
    assert listed(page) == [run_id[-8:] for run_id in found]


def test_predicted_losses_are_numbers_that_sort_and_no_column_where_no_run_has_one(
    waiting, home, record, factory, open_page
):
    table = open_page("runs").dataframe[0].value
    assert sorted(table["loss"]) == [0.006, 0.006]
    assert table["loss_bound"].dropna().tolist() == [0.013]  # the other run's model is not fitted
    assert table.set_index("run")["loss_true"].isna().tolist() == [True, False]
    assert run_table.columns()["loss"]["type_config"]["type"] == "number"
    stored = queries.runs(access().store).assign(loss_nats=np.nan, loss_bound=np.nan, loss_true=np.nan)
    old = run_table.rows(stored, verdicts.of_rows(stored), None)
    assert not {"loss", "loss_bound", "loss_true"} & set(old)
    assert run_table.order(old, run_table.SHOWN, False) == [
        "prompt",
        *(n for n in run_table.SHOWN if n != "loss"),
    ]


def test_columns_come_from_the_address_and_numbers_keep_their_digits(three, open_page):
    page = open_page("runs")
    table = page.dataframe[0].value
    small = table.loc[table["run"] == AGAIN[-8:], "worst_row"].iloc[0]
    assert small == 0.0000123 and run_table.columns()["worst_row"]["type_config"]["format"] == "%.2g"
    assert set(run_table.SHOWN) >= {"verdict", "settings", "model", "device", "loss"}
    assert run_table.order(table, ["notes", "run", "kl"], False) == ["prompt", "kl", "run"]
    assert run_table.order(table, ["kl"], True) == ["prompt", "differs", "kl"]
    page = open_page("runs", columns="kl,nonsense")
    assert page.multiselect(key="columns-choice").value == ["kl"]
    page.multiselect(key="columns-choice").select("error").run()
    assert page.query_params["columns"] == "kl,error" and not page.exception


def test_a_bundle_that_vanished_from_the_trash_is_explained(three, open_page):
    page = open_page("runs")
    access().store.delete_run(RUN)
    page.run()
    access().whole_store.trash.joinpath(RUN).rename(three / "elsewhere")
    page.button(key=f"restore-{RUN}").click().run()
    assert not page.exception and "no longer in the trash" in page.told


def test_two_people_name_pin_and_delete_apart(home, record, factory, spooled, open_page, login):
    login()
    hers = spooled(run={"owner": identity.digest("sub", ANN["iss"], ANN["sub"])})
    bundle.write_bundle(factory.rename(record, CODE), home / "samples")
    open_page("runs", ANN)
    spool.ingest_samples(access().whole_store, home / "samples")
    ann = OwnerView(access().whole_store, hers.run.owner)
    ann.set_label(CODE, Label("anns-name", "anns-notes", ("anns-tag",), pinned=True))
    ann.delete_run(RUN)
    shown = {name: open_page("runs", user) for name, user in (("ann", ANN), ("bob", BOB))}
    seen = {
        name: page.told + page.dataframe[0].value.to_csv() + str([e.label for e in page.expander])
        for name, page in shown.items()
    }
    for mark in ("anns-name", "anns-notes", "anns-tag", "Baseline", "Trash: 1 run"):
        assert mark in seen["ann"] and mark not in seen["bob"], mark


def test_ticked_runs_and_their_form_stay_when_a_run_comes_in(three, spooled, open_page):
    page = open_page("runs")
    page.session_state["ticked"] = [RUN]

    def comes_in(run_id):
        spooled(run_id)
        spool.ingest_spool(access().whole_store)
        page.run()

    comes_in("0000000000000001")
    assert page.button(key="open-map")
    comes_in("ffffffffffffffff")
    assert len(listed(page)) == 5 and page.session_state["ticked"] == [RUN]
    assert page.text_input(key=f"name-{RUN}"), "the form, and what is typed in it, stays on the page"
    access().store.delete_run(RUN)
    page.run()
    assert page.session_state["ticked"] == [], "a run that is not listed is not ticked"


def test_a_name_given_while_another_reader_s_table_is_drawn_is_in_the_next_one(three, open_page, monkeypatch):
    """The table made of rows from before must not be kept for afterwards."""
    open_page("runs")
    judged = runs_page.filters.judged

    def renamed_meanwhile(runs, found):
        access().store.set_label(RUN, Label(name="harbour"))
        return judged(runs, found)

    with monkeypatch.context() as patch:
        patch.setattr(runs_page.filters, "judged", renamed_meanwhile)
        access().store.set_label(AGAIN, Label(name="quay"))
        assert "harbour" not in list(open_page("runs").dataframe[0].value["prompt"])
    assert {"harbour", "quay"} <= set(open_page("runs").dataframe[0].value["prompt"])


def test_tables_tell_a_short_list_in_colours_and_of_a_long_one_what_is_shown(three, open_page):
    open_page("runs")
    runs = queries.runs(access().store).assign(sparse_units=2_000, uncertified_units=[0, 1, 0])
    found = verdicts.of_rows(runs)
    table = run_table.rows(runs, found, None)
    assert table["certified"].tolist() == [100, 99.9, 100], "a hundred means all"
    assert "quality" not in table, "no run names a target"
    named = run_table.rows(
        runs.assign(name=["a.txt", "a.txt", "b.txt"], domain=["code", None, "code"]), found, None
    )
    assert [one.split("  ·")[0] for one in named["prompt"]] == ["code/a.txt", "no domain/a.txt", "b.txt"]
    sent = run_table.sent(table, ["prompt"], found)
    told = ArrowData()
    marshall_styler(told, sent, "table")
    assert all(design.current_theme().levels[one.level] in told.styler.styles for one in found)
    many = runs.iloc[[0, 1, 2] * 400].reset_index(drop=True).assign(tuned_price="prose-kl")
    table = run_table.rows(many, verdicts.of_rows(many), None)
    chosen = run_table.order(table, run_table.SHOWN, False)
    sent = run_table.sent(table, chosen, found)
    assert "quality" in chosen and list(sent.columns) == chosen
    assert len(convert_pandas_df_to_arrow_bytes(sent)) < 100_000, "1,200 rows, each text once"


def test_deleted_runs_come_back_by_undo_and_after_a_reload_from_the_trash(three, open_page):
    page = open_page("runs")
    page.session_state["ticked"] = [RUN, AGAIN]
    page.text_input(key="q").input("needles").run()
    page.button(key="delete-runs").click().run()
    assert "Moved 2 runs to the trash below, for 7 days." in page.told
    assert "No run passes the filter" in page.told
    page.button(key="undo-delete").click().run()
    assert len(listed(page)) == 2 and "Moved" not in page.told
    access().store.delete_run(RUN)
    reloaded = open_page("runs")
    assert [e.label for e in reloaded.expander] == ["Trash: 1 run"]
    reloaded.button(key=f"restore-{RUN}").click().run()
    assert RUN[-8:] in listed(reloaded) and not reloaded.expander


def test_emptying_the_trash_is_about_the_runs_that_its_question_counted(three, open_page):
    page = open_page("runs")
    access().store.delete_run(RUN)
    page.run()
    assert "Delete 1 run for good? That can’t be undone." in page.told
    access().store.delete_run(CODE)
    page.button(key="confirm-empty").click().run()
    assert [path.name for path in access().whole_store.trash.iterdir()] == [CODE]


def test_the_tour_is_of_a_run_with_fallbacks_where_there_is_one(spooled, open_page, went):
    assert spooled().run.expanded_units > 0
    later = {"created_at": "2027-01-01T00:00:00Z", "expanded_units": 0, "dense_fallback_units": 0}
    spooled("ca1mca1mca1m0000", run=later)
    page = open_page("runs")
    page.button(key="tour").click().run()
    page.button(key="analyse").click().run()
    assert went == [("map", {"run": "d4e5b678", "tour": 1}), ("new", {})]


def test_the_tour_prefers_a_loss_that_was_measured_under_the_default_policy(
    spooled, record, factory, open_page, went
):
    spooled()
    spooled("a1cea1cea1ce0001", of=factory.priced(record), run={"created_at": "2020-01-01T00:00:00Z"})
    open_page("runs").button(key="tour").click().run()
    assert went == [("map", {"run": "a1ce0001", "tour": 1})]


def test_pages_without_runs_say_that_deleted_ones_are_in_the_trash(filled, open_page):
    open_page("runs")
    store = access().store
    deleted = store.run_ids()
    for run_id in deleted:
        store.delete_run(run_id)
    told = f"No runs: {len(deleted)} runs are in the trash"
    assert told in open_page("runs").told
    for name in ("routing_map", "text", "trust", "compare"):
        html = open_page(name).told
        assert told in html and 'href="runs?"' in html


@pytest.mark.parametrize(
    ("step", "page", "told"), [("1", "routing_map", "Next: the text"), ("3", "trust", "Analyse my")]
)
def test_the_tour_stands_on_its_pages_and_leads_on(filled, open_page, step, page, told):
    html = open_page(page, run=RUN, tour=step).told
    assert f"Tour, {step} of 3." in html and told in html
    assert "Tour," not in open_page(page, run=RUN, tour="9").told
