"""Errors inside timed fragments end in words on the page, as those of a page do. No GPU, no browser."""

from __future__ import annotations

import json
from pathlib import Path

from streamlit.testing.v1 import AppTest

from routesparse.engine.errors import StoreError
from routesparse.engine.jobs.database import QueueBusyError
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest

APP = Path(__file__).resolve().parents[3] / "app"


def text_of(page) -> str:
    return " ".join(str(element.proto.body) for element in page.get("html"))


def failing(error):
    def fail(*arguments):
        raise type(error)(*error.args)

    return fail


def test_a_locked_queue_is_said_in_the_job_s_own_words_and_nothing_is_lost(
    home, queue, open_page, monkeypatch
):
    job_id = queue.submit(RunRequest(label="ledger.txt"), "The ledger of the harbour.")
    with monkeypatch.context() as patch:
        patch.setattr(JobQueue, "requeue_lost", failing(QueueBusyError("the job queue is in use; try again")))
        page = open_page("runs", job=job_id)
        assert not page.exception
        assert "This part of the page can&#x27;t be drawn" in text_of(page)
        assert "the job queue is in use; try again" in text_of(page)
        assert '"rs-title">Runs' in text_of(page) and "No runs yet" in text_of(page), "the rest stands"
    page.run()
    assert "can&#x27;t be drawn" not in text_of(page) and "waiting, next in line" in text_of(page)
    assert queue.job(job_id).state == "queued"


def test_the_list_of_jobs_has_the_same_boundary(home, queue, open_page, monkeypatch):
    queue.submit(RunRequest(), "text")
    monkeypatch.setattr(JobQueue, "requeue_lost", failing(StoreError("the disk is full")))
    page = open_page("runs")
    assert not page.exception and "the disk is full" in text_of(page)


def test_a_look_into_the_spool_that_fails_leaves_the_runs_readable(filled, open_page, monkeypatch):
    from routesparse.app.screens.runs import page as runs
    from routesparse.app.shell.access import Access

    page = open_page("runs")
    look = Access.look_into_spool

    def fails_in_the_fragment(self):
        import sys

        if sys._getframe(1).f_code is runs._refresh_when_changed.__code__:
            raise StoreError("the spool can't be read")
        look(self)

    monkeypatch.setattr(Access, "look_into_spool", fails_in_the_fragment)
    page.run()
    assert not page.exception and "the spool can&#x27;t be read" in text_of(page)
    assert len(page.dataframe[0].value) == 2


def test_a_defect_in_a_fragment_is_logged_once_a_session_and_quotes_nothing(
    home, queue, open_page, monkeypatch
):
    job_id = queue.submit(RunRequest(), "text")
    monkeypatch.setattr(JobQueue, "requeue_lost", failing(ValueError("the prompt says heliotrope")))
    page = open_page("runs", job=job_id)
    page.run()
    page.run()
    assert not page.exception
    line, *others = (home / "logs" / "worker.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["page"], entry["error"]) == ("page_failed", "runs", "ValueError")
    assert len(others) == 1, "the job's own part and the list of jobs, each once"
    assert entry["log_id"] in text_of(page) and "It is tried again by itself" in text_of(page)
    assert "heliotrope" not in line + text_of(page)


def test_no_page_has_a_fragment_without_a_boundary():
    files = [path for path in APP.rglob("*.py") if "st.fragment" in path.read_text("utf-8")]
    assert [path.name for path in files] == ["boundary.py"]


def test_a_broken_store_tells_kept_and_lost_the_steps_and_the_database_last(tmp_path):
    database = tmp_path / "a home" / "routesparse.duckdb"
    cause = "IO Error: <b>not a valid DuckDB file"
    page = AppTest.from_function(_broken, kwargs={"database": str(database), "cause": cause}).run()
    html = [str(element.proto.body) for element in page.get("html")]
    assert "Lost: names, notes, tags and pins" in html[0] and "1. Stop the dashboard. 2." in html[0]
    assert page.code[0].value.startswith(f"mkdir -p '{database.parent}/damaged' && mv '{database}'*")
    assert "&lt;b&gt;not a valid DuckDB file" in html[-1]


def _broken(database: str, cause: str):
    from pathlib import Path

    from routesparse.app.ui import states
    from routesparse.engine.errors import StoreDamagedError

    states.damaged_store(StoreDamagedError("damaged", Path(database), cause))
