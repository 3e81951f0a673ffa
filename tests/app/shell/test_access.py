"""The look into the spool that pages share."""

import threading

import pytest

from routesparse.app.shell import access as module
from routesparse.engine.errors import StoreError
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.duckdb_store import Store


def text_of(page) -> str:
    return " ".join(element.value for kind in ("html", "markdown", "text") for element in page.get(kind))


@pytest.fixture
def opened(home):
    opened = module.Access()
    yield opened
    opened.close()


def test_a_page_waits_for_the_look_that_another_has_begun(home, opened, record, monkeypatch):
    bundle.write_bundle(record, home / "spool")
    begun, go_on = threading.Event(), threading.Event()
    ingest = spool.ingest_spool

    def slowly(store):
        begun.set()
        assert go_on.wait(10)
        return ingest(store)

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


def test_a_look_of_a_moment_ago_is_enough(opened, monkeypatch):
    looks = []
    ingest = spool.ingest_spool
    monkeypatch.setattr(spool, "ingest_spool", lambda store: (looks.append(1), ingest(store))[1])
    for _ in range(3):
        opened.look_into_spool()
    assert len(looks) == 1


def test_an_endless_look_of_another_does_not_hold_a_page_for_ever(opened, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_PATIENCE_S", 0.01)
    with opened._look_lock:
        opened.look_into_spool()


def test_a_bundle_without_space_is_listed_and_comes_in_by_itself(home, record, open_page, monkeypatch):
    bundle.write_bundle(record, home / "spool")
    insert = Store._insert

    def fail(self, manifest, data, origin):
        raise StoreError("no space left; its bundle is kept and tried again")

    monkeypatch.setattr(module, "_SPOOL_SECONDS", 0.0)
    monkeypatch.setattr(Store, "_insert", fail)
    page = open_page("runs")
    for _ in range(2):
        page.run()
        assert "A bundle waits" in text_of(page) and "no space left" in text_of(page)
    monkeypatch.setattr(Store, "_insert", insert)
    page.run()
    page.run()
    assert "A bundle waits" not in text_of(page)
    assert page.dataframe[0].value.shape[0] == 1


def test_a_sample_that_could_not_be_copied_is_tried_again(home, record, monkeypatch, tmp_path):
    bundle.write_bundle(record, tmp_path / "data" / "samples" / "runs")
    monkeypatch.setattr("routesparse.engine.paths.DATA", tmp_path / "data")

    def fail(*arguments, **named):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copytree", fail)
        opened = module.Access()
    try:
        assert "No space left" in opened.waiting()[0].reason
        opened.look_into_spool()
        assert not opened.waiting() and opened.store.run_ids() == {record.run.run_id}
    finally:
        opened.close()
