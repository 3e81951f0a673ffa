"""What ends a copy from one store to another, on two DuckDB files; test_ducklake.py copies to a lake. CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routesparse.engine.errors import StoreError
from routesparse.engine.scale.moving import check_settled, copy_store
from routesparse.engine.store import bundle, trash
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.labels import Label
from routesparse.engine.store.owner_view import OwnerView


@pytest.fixture
def copied(small, factory, home):
    """Two stores with the same runs one, two and gone, the last in the trash of both, and labels of run one."""
    source, target = (Store(home / name / "routesparse.duckdb") for name in ("a", "b"))
    for run_id in ("one", "two", "gone"):
        source.adopt(bundle.write_bundle(factory.rename(small, run_id), home / "made"), "spool", move=True)
    OwnerView(source, None).set_label("one", Label("old", "old notes", ("a",), pinned=True))
    source.delete_run("gone")
    copy_store(source, target)
    yield source, target
    source.close()
    target.close()


def state(store):
    labels = store.rows("SELECT * FROM run_label ORDER BY run_id")
    return store.run_ids(), labels, store.rows("SELECT run_id FROM trashed_run")


CHANGES = {
    "notes": (lambda view: view.set_label("one", Label("old", "new notes", ("a",), pinned=True)), "run one"),
    "tags": (lambda view: view.set_label("one", Label("old", "old notes", ("b",), pinned=True)), "run one"),
    "another label": (lambda view: view.set_label("two", Label("new")), "run two"),
    "pin": (lambda view: view.set_label("two", Label(pinned=True)), "run two"),
    "deleted": (lambda view: view.delete_run("two"), r"run two \(deleted"),
    "restored": (lambda view: view.restore_run("gone"), r"run gone \(deleted"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_person_changed_in_the_target_alone_ends_the_copy(copied, change):
    source, target = copied
    act, told = CHANGES[change]
    act(OwnerView(target, None))
    before = state(target)
    with pytest.raises(StoreError, match=f"the stores differ in.*{told}.*nothing was copied"):
        copy_store(source, target)
    assert state(target) == before


def test_a_run_deleted_for_good_in_one_store_does_not_come_back(copied):
    source, target = copied
    source.delete_run("two")
    trash.empty(source, ["two"])
    for one, other in ((source, target), (target, source)):
        with pytest.raises(StoreError, match=r"run two \(deleted"):
            copy_store(one, other)
    assert source.run_ids() == {"one"} and target.run_ids() == {"one", "two"}


def test_a_run_with_other_contents_in_both_ends_the_copy_before_it_begins(copied, small, factory, home):
    source, target = copied
    other = factory.rename(small, "new")
    changed = replace(other, run=replace(other.run, tau=0.5))
    for store, record, made in ((source, other, "c"), (target, changed, "d")):
        store.adopt(bundle.write_bundle(record, home / made), "spool", move=True)
    with pytest.raises(StoreError, match="in both stores with other contents"):
        copy_store(source, target)


def test_a_pin_of_a_run_that_only_the_source_holds_makes_no_second_pin(copied, small, factory, home):
    source, target = copied
    source.adopt(bundle.write_bundle(factory.rename(small, "new"), home / "made"), "spool", move=True)
    OwnerView(source, None).set_label("one", Label("old", "old notes", ("a",)))
    OwnerView(source, None).set_label("new", Label(pinned=True))
    with pytest.raises(StoreError, match=r"run one \(pinned, and so is new"):
        copy_store(source, target)
    OwnerView(target, None).set_label("one", Label("old", "old notes", ("a",)))
    assert copy_store(source, target).runs == 1
    assert target.rows("SELECT run_id FROM run_label WHERE pinned") == [("new",)]


def test_finished_runs_without_rows_end_the_copy(copied, small, factory, home):
    source, _ = copied
    spool = home / "a" / "spool"
    check_settled(source, spool)
    pending = factory.rename(small, "pending")
    for folder, told in (
        (spool, "spool holds 1"),
        (source.bundles, "bundles holds 1"),
        (spool / "rejected", "rejected"),
    ):
        path = bundle.write_bundle(pending, folder)
        with pytest.raises(StoreError, match=f"{told}.*pending.*again"):
            check_settled(source, spool)
        path.rename(home / f"away{told[:3]}")
    (spool / ".staged").mkdir()
    check_settled(source, spool)
