"""The look into the spool that pages share."""

import json
import threading
import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from routesparse.app.shell import access as module
from routesparse.engine import paths
from routesparse.engine.errors import StoreError
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.duckdb_store import Store

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def opened(home):
    opened = module.Access()
    yield opened
    opened.close()


def test_a_page_waits_for_the_look_that_another_has_begun(home, opened, record, monkeypatch):
    bundle.write_bundle(record, home / "spool")
    begun, go_on = threading.Event(), threading.Event()
    ingest = spool.ingest_spool

    def slowly(store, **options):
        begun.set()
        assert go_on.wait(10)
        return ingest(store, **options)

    monkeypatch.setattr(spool, "ingest_spool", slowly)
    first = threading.Thread(target=opened.look_into_spool)
    first.start()
    assert begun.wait(10)
    stored = []

    def second_page():
        opened.look_into_spool()
        stored.extend(opened.store.run_ids())

    second = threading.Thread(target=second_page)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    first.join(10)
    second.join(10)
    assert stored == [record.run.run_id]


@pytest.fixture
def slow_store(home, factory, monkeypatch):
    """A spool of five bundles, and a gate that lets one of them into the store each time it is opened."""
    for number in range(5):
        run_id = f"run{number}"
        bundle.write_bundle(factory.make_record(run_id, layers=2, heads=2, tokens=2048), home / "spool")
    gate, adopt = threading.Semaphore(0), Store.adopt

    def gated(self, *arguments, **options):
        assert gate.acquire(timeout=60)
        return adopt(self, *arguments, **options)

    monkeypatch.setattr(Store, "adopt", gated)
    monkeypatch.setattr(Store, "AT_ONCE", 1)
    monkeypatch.setattr(module.Access, "LOOK_PATIENCE_S", 0.05)
    monkeypatch.setattr(module.Access, "FEW_PATIENCE_S", 300.0)
    monkeypatch.setattr(module.Access, "FEW", 4)
    return gate


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_many_bundles_come_in_behind_the_pages_which_count_them(slow_store, opened):
    """A thousand bundles took 142 seconds, in which no page was drawn."""
    opened.look_into_spool()
    assert opened.taking_in() == (0, 5)
    slow_store.release(3)
    until(lambda: opened.taking_in() == (3, 5))
    assert opened.store.run_ids() == {"run0", "run1", "run2"}
    slow_store.release(2)
    until(lambda: opened.taking_in() is None)
    assert len(opened.store.run_ids()) == 5


def test_a_page_shows_the_count_and_is_drawn_again_when_all_are_in(slow_store):
    drawn = AppTest.from_function(_counting, default_timeout=30)
    drawn.run()
    assert "taking in new bundles: 0 of 5" in drawn.told
    slow_store.release(5)
    until(lambda: module.access().taking_in() is None)
    drawn.run()
    assert "taking in" not in drawn.told


def _counting() -> None:
    from routesparse.app import main
    from routesparse.app.shell.access import access

    access().look_into_spool()
    if access().taking_in() is not None:
        main._count_bundles()


def test_closing_ends_a_look_between_two_bundles_and_loses_none(slow_store, home):
    opened = module.Access()
    opened.look_into_spool()
    slow_store.release(2)
    until(lambda: opened.taking_in() == (2, 5))
    closing = threading.Thread(target=opened.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive(), "it waits for the bundle that is taken in"
    slow_store.release(1)
    closing.join(30)
    assert not closing.is_alive()
    slow_store.release(10)
    again = module.Access()
    again.look_into_spool()
    until(lambda: again.taking_in() is None)
    assert len(again.store.run_ids()) == 5
    again.close()


def test_a_look_that_fails_is_told_to_the_page_and_tried_again(opened, failing):
    broken = failing(spool, "ingest_spool", StoreError("the spool can't be read"))
    with broken, pytest.raises(StoreError, match="can't be read"):
        opened.look_into_spool()
    opened.SPOOL_SECONDS = 0.0
    opened.look_into_spool()


def test_a_bundle_without_space_is_listed_and_comes_in_by_itself(home, record, open_page, failing):
    bundle.write_bundle(record, home / "spool")
    with failing(Store, "_insert_all", StoreError("no space left; its bundle is kept and tried again")):
        page = open_page("runs")
        module.access().SPOOL_SECONDS = 0.0
        for _ in range(2):
            page.run()
            assert "A bundle waits" in page.told and "no space left" in page.told
    page.run()
    page.run()
    assert "A bundle waits" not in page.told
    assert page.dataframe[0].value.shape[0] == 1


def test_a_sample_that_could_not_be_copied_is_tried_again(home, record, data, failing, tmp_path):
    bundle.write_bundle(record, tmp_path / "data" / "samples" / "runs")
    data(tmp_path / "data")
    with failing(bundle, "copy", OSError(28, "No space left on device")):
        opened = module.Access()
    try:
        assert "No space left" in opened.waiting()[0].reason
        opened.look_into_spool()
        assert not opened.waiting() and opened.store.run_ids() == {record.run.run_id}
    finally:
        opened.close()


def test_a_page_says_that_the_home_was_deleted_and_goes_on_when_it_is_back(filled, open_page):
    away = filled.with_name("away")
    assert open_page("runs").dataframe
    filled.rename(away)
    with pytest.raises(StoreError, match="was deleted or replaced while the dashboard ran"):
        module.access()
    assert not filled.exists()
    away.rename(filled)
    assert open_page("runs").dataframe


def test_the_trash_is_swept_while_the_dashboard_runs(opened, monkeypatch):
    swept = []
    monkeypatch.setattr(spool, "sweep", swept.append)
    opened.SPOOL_SECONDS = 0.0
    for _ in range(3):
        opened.look_into_spool()
    assert len(swept) == 1
    opened.SWEEP_SECONDS = 0.0
    opened.look_into_spool()
    assert len(swept) == 2


def test_a_look_leaves_the_numbers_for_the_metrics_when_runs_have_changed(home, opened, record):
    opened.look_into_spool()
    assert json.loads(paths.overview(home).read_text())["units"] == 0
    opened.SPOOL_SECONDS = 0.0
    opened.COUNT_SECONDS = 0.0
    bundle.write_bundle(record, home / "spool")
    opened.look_into_spool()
    counted = json.loads(paths.overview(home).read_text())
    assert counted["units"] == record.run.units and sum(counted["verdicts"].values()) == 1
    paths.overview(home).unlink()
    opened.look_into_spool()
    assert not paths.overview(home).exists()  # nothing changed, nothing was counted


def test_what_another_dashboard_left_between_move_and_rows_is_taken_in(home, opened, record, monkeypatch):
    """Only where there are several writers: the one of a file recovers at its start."""
    opened.SPOOL_SECONDS = 0.0
    opened.look_into_spool()
    bundle.write_bundle(record, opened.whole_store.bundles)
    opened.RECOVER_SECONDS = 0.0
    opened.look_into_spool()
    assert record.run.run_id not in opened.store.run_ids()
    monkeypatch.setattr(Store, "SEVERAL_WRITERS", True)
    opened.RECOVER_SECONDS = 3600.0
    opened.look_into_spool()
    assert record.run.run_id not in opened.store.run_ids()
    opened.RECOVER_SECONDS = 0.0
    opened.look_into_spool()
    assert record.run.run_id in opened.store.run_ids()
