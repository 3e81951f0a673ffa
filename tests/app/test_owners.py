"""Two people of a dashboard with a login: every page shows each their own runs and jobs and nothing of the other's."""

from __future__ import annotations

import re

import pytest

from routesparse.app.shell import identity
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import bundle
from tests.app.conftest import ANN, BOB, REPOSITORY

APP = REPOSITORY / "app"
ANNS, BOBS, THIRD = "3f9a1c20d4e5b678", "c0de17aa90e1f003", "7777777790e1f007"
SWEEP = "5eeb5eeb5eeb5eeb"  # of both: a link to it leads each to their own
# What is Ann's alone; none of it may reach Bob's browser.
MARKS = ("anns-ledger", "anns-domain", "anns-profile", "anns-device", "d4e5b678", "tonnage", "anns-job")
OF_A_RUN = ("routing_map", "text", "trust")
PAGES = ("runs", "new_run", *OF_A_RUN, "compare", "domains", "terms")


def digest(claims):
    return identity.digest("sub", claims["iss"], claims["sub"])


def everything(page) -> str:
    """All that a page, which must not have failed, sends to the browser, widgets' options and tables included."""
    assert not page.exception
    tables = "".join(table.value.to_csv() for table in page.dataframe)
    shown = tables + "".join(str(element.proto) for element in page._tree if hasattr(element, "proto"))
    return re.sub(r'uuid: "\w+"|#T_\w+?_row', "", shown)  # by chance, of a table's styles


@pytest.fixture
def shared(home, record, factory, spooled, login):
    """A dashboard with a login; Ann has a run (the newest), a job and a rejected bundle of it, Bob has one run."""
    login()
    bobs = factory.make_record(
        BOBS, name="bobs.txt", domain="code", layers=4, heads=4, tokens=4096, probe_columns=32, prompt=False
    )
    spooled(of=bobs, run={"owner": digest(BOB), "sweep": SWEEP})
    run = {
        "owner": digest(ANN),
        "sweep": SWEEP,
        "prompt_name": "anns-ledger.txt",
        "domain": "anns-domain",
        "profile": "anns-profile",
        "device": "anns-device",
        "created_at": "2026-11-21T23:00:00Z",
    }
    spooled(run=run)
    queue = JobQueue(home)
    hers = queue.of(digest(ANN))
    job_id = hers.submit(RunRequest(label="anns-job.txt"), "tonnage, pier by pier")
    broken = factory.rename(record, f"{job_id}-1")
    (bundle.write_bundle(broken, home / "spool") / "audit.parquet").unlink()
    queue.close()
    return job_id


@pytest.mark.parametrize(
    ("name", "query"),
    [
        *((name, {}) for name in PAGES),
        ("compare", {"runs": f"{BOBS},{ANNS}"}),
        ("compare", {"sweep": SWEEP}),
        ("trust", {"details": "true"}),
    ],
)
def test_page_of_bob_s_holds_nothing_of_ann_s(shared, open_page, name, query):
    shown = everything(open_page(name, BOB, **query))
    shown = shown.replace(ANNS, "")  # in full only where Bob's own link named it
    assert len(shown) > 500
    assert [mark for mark in MARKS if mark in shown] == []


@pytest.mark.parametrize("name", [*OF_A_RUN, "runs"])
def test_the_same_page_shows_ann_hers(shared, open_page, name):
    """So that the test above can't pass because marks are never shown."""
    shown = everything(open_page(name, ANN))
    assert [mark for mark in MARKS if mark in shown]
    assert "bobs.txt" not in shown and "90e1f003" not in shown


@pytest.mark.parametrize("name", [*OF_A_RUN, "new_run"])
def test_link_to_ann_s_run_is_to_bob_like_one_to_no_run(shared, open_page, name):
    key = "from" if name == "new_run" else "run"
    shown = []
    for run_id in (ANNS, "deadbeefdeadbeef"):
        html = open_page(name, BOB, **{key: run_id}).told
        assert "is stored here" in html
        shown.append(html.replace(run_id, "RUN"))
    assert shown[0] == shown[1]


def test_link_to_ann_s_job_is_to_bob_like_one_to_no_job(shared, open_page):
    shown = []
    for job_id in (shared, "feedfeedfeedfeed"):
        page = open_page("runs", BOB, job=job_id)
        # Without what is told of files to download: each has a random name.
        told = re.sub(r'file_id: "\w+"', "", everything(page))
        shown.append(told.replace(job_id, "JOB"))
    assert shown[0] == shown[1] and "is known here" in shown[0]
    assert "anns-job.txt" in everything(open_page("runs", ANN, job=shared))


def test_rejected_bundle_is_listed_for_whoever_asked_for_it(shared, open_page):
    assert [expander.label for expander in open_page("runs", ANN).expander] == ["1 rejected bundle"]
    assert not open_page("runs", BOB).expander


def test_what_bob_submits_is_bob_s(shared, open_page, demo_home, queue):
    page = open_page("new_run", BOB, source="Paste")
    page.text_area(key="pasted").input("A ledger of vessels.").run()
    page.button(key="submit").click().run()
    assert [job.label for job in queue.of(digest(BOB)).jobs()] == ["pasted text"]
    assert [job.label for job in queue.of(digest(ANN)).jobs()] == ["anns-job.txt"]
    assert queue.jobs() == []


def test_samples_are_everybody_s(shared, open_page, factory, home):
    from routesparse.app.shell.access import access
    from routesparse.engine.store import spool

    sample = factory.make_record(THIRD, name="sample.txt", layers=2, heads=2, segments=1, tokens=2048)
    bundle.write_bundle(sample, home / "samples")
    open_page("runs", BOB)
    spool.ingest_samples(access().whole_store, home / "samples")
    for user, own in ((ANN, "anns-ledger.txt"), (BOB, "bobs.txt")):
        assert sorted(open_page("runs", user).dataframe[0].value["prompt"]) == [own, "sample.txt  · sample"]


def test_pages_hold_nothing_but_their_owner_s_view():
    """The whole store and the whole queue are named in one place."""
    whole = re.compile(r"\.whole_store\b|duckdb_store|import JobQueue|\bJobQueue\(")
    found = {path.name for path in APP.rglob("*.py") if whole.search(path.read_text("utf-8"))}
    assert found == {"access.py", "jobs.py", "jobs_view.py"}, "the others name the type only"
    assert not any("JobQueue(" in path.read_text("utf-8") for path in APP.rglob("jobs*.py"))
