"""Names, notes, tags, the pin and the trash: bounded, the owner's alone, never in the bundle. No GPU."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace

import pytest

from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.store import bundle, label_queries, labels, queries, spool, trash
from routesparse.engine.store.labels import Label
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.queries import RunFilter

ANN, BOB = "a" * 32, "b" * 32


@pytest.fixture
def runs(take_in, small, factory):
    """The local person's view of two stored runs."""
    return take_in(small, factory.rename(small, "0badcafe0badcafe"))


def test_a_label_is_listed_searched_and_filtered_by(runs, small):
    run_id = small.run.run_id
    runs.set_label(
        run_id, labels.label(" harbour, v2 ", "first try\nsecond line", ["good", " good", "prose "])
    )
    assert label_queries.label(runs, run_id) == Label(
        "harbour, v2", "first try\nsecond line", ("good", "prose")
    )
    row = queries.runs(runs, RunFilter(run_ids=(run_id,))).iloc[0]
    assert (row["name"], row["tags"], bool(row["pinned"])) == ("harbour, v2", "good, prose", False)
    for found in ("HARBOUR", "second line", "prose", run_id[-8:]):
        assert list(queries.runs(runs, RunFilter(text=found))["run_id"]) == [run_id], found
    assert list(queries.runs(runs, RunFilter(tags=("good", "other")))["run_id"]) == [run_id]
    assert queries.runs(runs, RunFilter(tags=("goo",))).empty
    assert queries.filter_values(runs)["tag"] == ["good", "prose"]
    runs.set_label(run_id, labels.label("", " ", []))
    assert queries.runs(runs)["name"].isna().all() and queries.filter_values(runs)["tag"] == []


@pytest.mark.parametrize(
    ("name", "notes", "tags", "wanted"),
    [
        ("x" * 121, "", [], "at most 120 characters"),
        ("two\nlines", "", [], "printable text"),
        ("\u202eright to left", "", [], "printable text"),
        ("\ud800", "", [], "printable text"),
        ("", "x" * 4_001, [], "at most 4,000 characters"),
        ("", "a\x00b", [], "text of at most 4,000"),
        ("", "", ["a,b"], "at most 40 characters"),
        ("", "", ["x" * 41], "at most 40 characters"),
        ("", "", [str(i) for i in range(13)], "at most 12"),
    ],
)
def test_text_out_of_bounds_is_refused_with_its_bounds(name, notes, tags, wanted):
    with pytest.raises(InputError, match=wanted):
        labels.label(name, notes, tags)


def test_one_run_is_pinned_and_a_pin_keeps_the_words(runs, small):
    words = labels.label("first", "", ["t"])
    runs.set_label(small.run.run_id, replace(words, pinned=True))
    runs.set_label("0badcafe0badcafe", Label(pinned=True))
    assert label_queries.pinned(runs) == "0badcafe0badcafe"
    assert label_queries.label(runs, small.run.run_id) == words
    runs.set_label("0badcafe0badcafe", Label())
    assert label_queries.pinned(runs) is None


def test_two_owners_label_and_pin_apart_on_a_sample_and_not_each_other_s_runs(
    store, small, factory, home, take_in
):
    bundle.write_bundle(small, home / "samples")
    spool.ingest_samples(store, home / "samples")
    hers = factory.rename(small, "a1a1a1a1a1a1a1a1")
    take_in(replace(hers, run=replace(hers.run, owner=ANN)))
    ann, bob, sample = OwnerView(store, ANN), OwnerView(store, BOB), small.run.run_id
    ann.set_label(sample, Label("ann's", pinned=True))
    bob.set_label(sample, Label("bob's", tags=("bob",), pinned=True))
    assert label_queries.label(ann, sample) == Label("ann's", pinned=True), "bob's pin left hers"
    assert queries.runs(bob)["name"].tolist() == ["bob's"]
    with pytest.raises(StoreError, match="not in the store"):
        bob.set_label("a1a1a1a1a1a1a1a1", Label("x"))
    ann.delete_run("a1a1a1a1a1a1a1a1")
    assert label_queries.trash(bob).empty
    bob.empty_trash(["a1a1a1a1a1a1a1a1"])
    ann.restore_run("a1a1a1a1a1a1a1a1")
    assert "a1a1a1a1a1a1a1a1" in ann.run_ids()


def test_a_deleted_run_is_listed_and_comes_back_with_its_label(runs, small):
    run_id = small.run.run_id
    runs.set_label(run_id, Label("kept", pinned=True))
    runs.delete_run(run_id)
    (row,) = label_queries.trash(runs).itertuples()
    assert (row.run_id, row.prompt_name, row.tokens) == (run_id, small.run.prompt_name, small.run.tokens)
    assert label_queries.pinned(runs) is None and label_queries.label(runs, run_id) == Label()
    runs.restore_run(run_id)
    assert label_queries.trash(runs).empty
    assert label_queries.label(runs, run_id) == Label("kept", pinned=True)


def test_an_emptied_trash_holds_neither_bundle_nor_words(runs, store, small):
    run_id = small.run.run_id
    runs.set_label(run_id, Label("gone"))
    runs.delete_run(run_id)
    runs.empty_trash([run_id, "0badcafe0badcafe"])
    assert label_queries.trash(runs).empty and not list(store.trash.iterdir())
    assert store.rows("SELECT count(*) FROM run_label") == [(0,)]
    assert runs.run_ids() == {"0badcafe0badcafe"}, "a stored run is not in the trash"
    with pytest.raises(StoreError, match="no longer in the trash"):
        runs.restore_run(run_id)


def test_exported_files_go_with_their_run_and_after_a_day(runs, store, small, home):
    run_id = small.run.run_id
    place = home / "exports"
    place.mkdir()
    gone = {
        f"{run_id}.zip",
        f"{run_id}-with-text.zip",
        f"{run_id}-with-text.html",
        f".{run_id}.zip.aa.partial",
    }
    for name in (*gone, "0badcafe0badcafe.zip", "0badcafe0badcafe-with-text.html"):
        (place / name).write_text("the prompt's text")
    runs.delete_run(run_id)
    assert gone <= {path.name for path in place.iterdir()}, "it can still be restored"
    runs.empty_trash([run_id])
    left = place / "0badcafe0badcafe.zip"
    assert {path.name for path in place.iterdir()} == {left.name, "0badcafe0badcafe-with-text.html"}
    os.utime(left, (time.time() - 25 * 3600,) * 2)
    spool.sweep(store)
    assert [path.name for path in place.iterdir()] == ["0badcafe0badcafe-with-text.html"]


def test_what_an_older_version_deleted_is_listed_and_what_is_gone_is_not(runs, store, small):
    for run_id in (small.run.run_id, "0badcafe0badcafe"):
        runs.set_label(run_id, Label("words"))
        runs.delete_run(run_id)
    with store.writing("") as cursor:
        cursor.execute("DELETE FROM trashed_run WHERE run_id = ?", [small.run.run_id])
    shutil.rmtree(store.trash / "0badcafe0badcafe")
    (store.trash / "no-bundle").mkdir()
    trash.sync(store)
    assert label_queries.trash(runs)["run_id"].tolist() == [small.run.run_id]
    assert store.rows("SELECT run_id FROM run_label") == [(small.run.run_id,)], "words go with their run"
