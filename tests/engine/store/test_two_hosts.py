"""Two hosts, each with a home and a dashboard's process of its own, on one lake. PostgreSQL and DuckLake; no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from routesparse.engine.errors import StoreError
from routesparse.engine.scale.ducklake import LakeStore
from routesparse.engine.store import bundle, queries, spool
from routesparse.engine.store.labels import Label
from routesparse.engine.store.owner_view import OwnerView

SEEN_S = 20.0  # by a slow machine; a quiet one needs half a second
# The other host's dashboard without its pages: does what a line asks for and answers with what its pages would read.
HOST = """
import json, sys
from routesparse.app.shell import access
from routesparse.engine import paths
from routesparse.engine.errors import StoreError
from routesparse.engine.store import queries
from routesparse.engine.store.labels import Label
paths.DATA = paths.home() / "no-samples"
opened = access.Access()
print("open", flush=True)
for line in sys.stdin:
    what, *rest = json.loads(line)
    told = None
    try:
        view = opened.store
        if what == "label":
            view.set_label(rest[0], Label(*rest[1:]))
        elif what == "look":
            opened.look_into_spool()
        elif what != "read":
            getattr(view, what)(*rest)
    except StoreError as error:
        told = str(error)
    runs = queries.runs(opened.store)
    labels = opened.store.rows("SELECT run_id, name, notes, pinned FROM run_label ORDER BY run_id")
    trash = opened.store.rows("SELECT run_id FROM trashed_run ORDER BY run_id")
    print(json.dumps([sorted(runs["run_id"]), labels, [run for (run,) in trash], told]), flush=True)
"""


class Host:
    """One line in, one line out."""

    def __init__(self, environment):
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self._process.stdout.readline() == "open\n"

    def begin(self, *what):
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def end(self):
        return json.loads(self._process.stdout.readline())

    def ask(self, *what):
        """Runs, labels and trash as its pages read them, and what went wrong."""
        self.begin(*what)
        return self.end()

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture
def hosts(lake_address, home, small, factory):
    """This process's lake with runs one to three, and the other host."""
    lake = LakeStore(lake_address, home, home)
    for name in ("one", "two", "three"):
        bundle.write_bundle(factory.rename(small, name), home / "spool")
    assert len(spool.ingest_spool(lake).ingested) == 3
    other = Host({**os.environ, "ROUTESPARSE_HOME": str(home / "host 2")})
    yield OwnerView(lake, None), other
    other.close()
    lake.close()


def until(condition, what):
    deadline = time.monotonic() + SEEN_S
    while not condition():
        assert time.monotonic() < deadline, f"not seen within {SEEN_S:.0f} s: {what}"
        time.sleep(0.1)


def here(view):
    runs = sorted(queries.runs(view)["run_id"])
    labels = view.rows("SELECT run_id, name, notes, pinned FROM run_label ORDER BY run_id")
    trash = [run for (run,) in view.rows("SELECT run_id FROM trashed_run ORDER BY run_id")]
    return runs, [list(row) for row in labels], trash


def test_labels_pins_and_trash_of_one_host_are_seen_by_the_other(hosts, small, factory, home):
    view, other = hosts
    here(view)  # what is kept from here on must not outlive the other's changes
    assert other.ask("read")[0] == ["one", "three", "two"]
    view.set_label("one", Label("harbour", "notes", pinned=True))
    until(lambda: other.ask("read")[1] == [["one", "harbour", "notes", True]], "a label and a pin")
    assert other.ask("label", "two", None, None, [], True)[3] is None
    pins = [["one", "harbour", "notes", False], ["two", None, None, True]]
    until(lambda: here(view)[1] == pins, "the other's pin, which takes this one's")
    view.delete_run("three")
    until(lambda: other.ask("read")[::2] == [["one", "two"], ["three"]], "a deleted run")
    assert other.ask("restore_run", "three")[3] is None
    until(lambda: here(view)[::2] == (["one", "three", "two"], []), "a restored run")
    assert other.ask("delete_run", "three")[3] is None and other.ask("empty_trash", ["three"])[3] is None
    until(lambda: here(view)[::2] == (["one", "two"], []), "a run that is gone for good")
    assert not (home / "trash" / "three").exists() and not (home / "bundles" / "three").exists()
    bundle.write_bundle(factory.rename(small, "four"), home / "spool")
    assert other.ask("look")[0] == ["four", "one", "two"]
    until(lambda: "four" in here(view)[0], "a run that the other took in")


def test_two_hosts_that_change_the_same_at_once_end_with_one_of_both(hosts):
    view, other = hosts
    for mine, theirs in (("one", "two"), ("two", "three"), ("three", "one")):
        other.begin("label", theirs, "theirs", None, [], True)
        view.set_label(mine, Label("mine", pinned=True))
        assert other.end()[3] is None
        until(lambda: len(here(view)[1]) >= 2, "both labels")
        found = [row for row in here(view)[1] if row[3]]
        assert len(found) == 1 and found[0][0] in (mine, theirs)
    other.begin("delete_run", "one")
    told = []
    try:
        view.delete_run("one")
    except StoreError as error:
        told.append(str(error))
    told += [told for told in [other.end()[3]] if told]
    assert len(told) == 1 and "not in the store" in told[0]
    until(lambda: here(view)[::2] == (["three", "two"], ["one"]), "one deletion")
