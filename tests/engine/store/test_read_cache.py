"""What is read twice from an unchanged store is read once, per owner, and never stale. No GPU."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from routesparse.engine.store import queries, read_cache
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.labels import Label
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.read_cache import ReadCache


@pytest.fixture
def filled(store, small, take_in):
    """A store with one run of the local person."""
    take_in(small)
    return store


@pytest.fixture
def asked(filled, monkeypatch):
    """The owners whose reads reached the database, in order."""
    seen, reading = [], filled.reading
    monkeypatch.setattr(filled, "reading", lambda owner: [seen.append(owner), reading(owner)][1])
    return seen


def test_a_read_is_repeated_only_after_a_change_and_shows_it(filled, asked, small):
    view = OwnerView(filled, None)
    first = queries.runs(view)
    assert len(asked) == 1 and queries.runs(OwnerView(filled, None)).equals(first) and len(asked) == 1
    view.set_label(small.run.run_id, Label(name="harbour"))
    assert list(queries.runs(view)["name"]) == ["harbour"]
    view.delete_run(small.run.run_id)
    assert queries.runs(view).empty and view.run_ids() == set()
    view.restore_run(small.run.run_id)
    assert view.run_ids() == {small.run.run_id}


def test_owners_and_questions_that_look_alike_do_not_share_a_result(filled, asked):
    assert len(OwnerView(filled, None).run_ids()) == 1
    assert OwnerView(filled, "b" * 32).run_ids() == set()
    view = OwnerView(filled, None)
    assert [view.rows("SELECT ?", [value])[0][0] for value in (1, True, 1.0, "1")] == [1, True, 1.0, "1"]
    assert view.rows("SELECT 1") == [(1,)] and view.frame("SELECT 1 AS one").shape == (1, 1)
    assert len(asked) == 8


def test_what_a_page_does_to_its_rows_reaches_no_other_page(filled):
    view, sql = OwnerView(filled, None), "SELECT run_id, tokens FROM run"
    frame, rows = view.frame(sql), view.rows(sql)
    kept = frame.copy(deep=True), list(rows)
    frame["tokens"] = 0
    frame.loc[0, "run_id"] = "other"
    rows.clear()
    assert view.frame(sql).equals(kept[0]) and view.rows(sql) == kept[1]


def test_a_read_that_fails_is_not_kept():
    cache, answers = ReadCache(), iter([OSError("no"), [(1,)]])

    def read():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(OSError, match="no"):
        cache.read(0, "a", read)
    assert cache.read(0, "a", read) == cache.read(0, "a", read) == [(1,)]


def test_a_result_from_before_a_change_is_not_kept_for_afterwards():
    cache = ReadCache()

    def slow():
        assert cache.read(1, "a", lambda: [("new",)]) == [("new",)]
        return [("old",)]

    assert cache.read(0, "a", slow) == [("old",)]
    assert cache.read(1, "a", lambda: [("never asked",)]) == [("new",)]


def test_who_asks_what_another_is_reading_takes_its_result_or_reads_where_that_fails():
    cache, begun, may_end = ReadCache(), threading.Event(), threading.Event()
    answers = iter([[(1,)], OSError("no"), [(2,)]])
    got = []

    def read():
        begun.set()
        assert may_end.wait(30)
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(name):
        try:
            got.append(cache.read(0, name, read))
        except OSError as error:
            got.append(error)

    for name in ("a", "b"):
        begun.clear()
        may_end.clear()
        first = threading.Thread(target=ask, args=(name,))
        first.start()
        assert begun.wait(30)
        second = threading.Thread(target=ask, args=(name,))
        second.start()
        may_end.set()
        for thread in (first, second):
            thread.join(30)
            assert not thread.is_alive()
    assert got[:2] == [[(1,)], [(1,)]]
    assert [one for one in got[2:] if one == [(2,)]] and any(isinstance(one, OSError) for one in got[2:])


def test_what_a_page_made_is_made_again_after_a_change_of_its_runs_alone_and_is_no_other_owners(
    filled, small, take_in, factory
):
    run_id, made = small.run.run_id, []

    def ask(owner, key, of=(run_id,)):
        return OwnerView(filled, owner).made(
            "card", [key], lambda: made.append(key) or f"<b>{owner}</b>", of=of
        )

    assert ask(None, "light") == ask(None, "light") == "<b>None</b>" and made == ["light"]
    assert ask(None, "dark") == "<b>None</b>" and ask("b" * 32, "light") == f"<b>{'b' * 32}</b>"
    ask(None, "all", of=())
    made.clear()
    take_in(factory.make_record("20261001-000000-other000", layers=2, heads=2))
    ask(None, "light")
    assert made == [], "another run changes nothing of this one"
    assert ask("b" * 32, "light", of=("unknown",)) and made == ["light"], (
        "what is made of other runs is another thing"
    )
    made.clear()
    ask(None, "all", of=())
    OwnerView(filled, None).set_label(run_id, Label(name="harbour"))
    ask(None, "light")
    assert made == ["all", "light"]


def test_what_was_made_of_rows_from_before_a_change_is_not_kept_for_afterwards(filled, take_in, factory):
    early, made = OwnerView(filled, None), []
    rows = early.rows("SELECT run_id FROM run")
    take_in(factory.make_record("20261001-000000-other000", layers=2, heads=2))
    assert len(early.run_ids()) == 2

    def count(view, rows):
        return view.made("count", [], lambda: made.append(len(rows)) or len(rows))

    assert count(early, rows) == 1
    late = OwnerView(filled, None)
    assert count(late, late.rows("SELECT run_id FROM run")) == 2
    again = OwnerView(filled, None)
    assert count(again, again.run_ids()) == 2 and made == [1, 2]


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(read_cache, "MOST_BYTES", 10_000)
    monkeypatch.setattr(read_cache, "MOST_RESULT_BYTES", 4_000)
    cache, read = ReadCache(), []

    def ask(name, size):
        return cache.read(0, name, lambda: read.append(name) or [("x" * size,)])

    for _ in range(2):
        ask("large", 5_000)
    assert read == ["large", "large"] and cache.bytes == 0
    for number in range(20):
        ask(number, 1_000)
        ask("often", 1_000)
        assert cache.bytes <= 10_000
    assert read.count("often") == 1
    ask(0, 1_000)
    assert read.count(0) == 2, "what was not used for longest went"
    cache.read(1, "next", lambda: [(1,)])
    assert cache.bytes < 300, "a change drops all"
    for number in range(10_000):
        cache.read(1, ("SELECT 1 WHERE ? = 2", f"unknown {number}"), list)
    assert cache.bytes <= 10_000, "a question without an answer takes room, too"


@pytest.mark.parametrize(
    ("made", "least"),
    [
        ({"marks": [{"x": np.zeros(4_000)}]}, 32_000),
        (("–" * 20_000, []), 40_000),
        ([pd.DataFrame({"a": range(4_000)})], 32_000),
        (replace(Label(), notes="x" * 30_000), 30_000),
    ],
    ids=["chart", "words", "rows", "record"],
)
def test_what_a_page_made_counts_as_much_as_it_takes(made, least):
    cache = ReadCache()
    assert cache.read(0, "made", lambda: made) is cache.read(0, "made", dict), "it is kept"
    assert least < cache.bytes < least + 1_000


def test_what_was_read_of_a_run_outlives_other_runs_but_neither_its_deletion_nor_a_label(
    filled, asked, small, take_in, factory
):
    view, run_id = OwnerView(filled, None), small.run.run_id
    found, key = queries.layers(view, run_id), view.key(run_id)
    other = factory.make_record("20261001-000000-other000", layers=2, heads=2, segments=1)
    assert queries.layers(view, other.run.run_id).empty and view.key(other.run.run_id) == 0
    take_in(other)
    asked.clear()
    assert queries.layers(view, run_id).equals(found) and asked == []
    assert len(queries.layers(view, other.run.run_id)) == 2, "a run that was unknown is asked for again"
    view.set_label(run_id, Label(name="harbour"))
    assert list(queries.runs(view, queries.RunFilter(run_ids=(run_id,)))["name"]) == ["harbour"]
    view.delete_run(run_id)
    assert queries.layers(view, run_id).empty and queries.run(view, run_id) is None
    view.restore_run(run_id)
    assert view.key(run_id) not in (0, key) and queries.layers(view, run_id).equals(found)
    assert OwnerView(filled, "b" * 32).key(run_id) == 0


def test_the_summary_of_a_run_is_made_where_it_comes_in_as_at_the_next_start(filled, small):
    sql = "SELECT * EXCLUDE (run_key) FROM run_summary"
    inserted = filled.rows(sql)
    rows = len(small.choices), len(small.layers)
    assert len(inserted) == 1
    assert filled.rows("SELECT stored_units, stored_layers, uncertified_units FROM run_summary") == [
        (*rows, 0)
    ]
    filled.close()
    again = Store(filled.database)
    try:
        assert again.rows(sql) == inserted
        again.delete_run(small.run.run_id)
        assert again.rows(sql) == []
    finally:
        again.close()
