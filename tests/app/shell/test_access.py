"""The look into the spool that pages share."""

import threading

import pytest

from routesparse.app.shell import access as module
from routesparse.engine.store import bundle, spool


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
