"""Errors inside timed fragments end in words on the page, as those of a page do. No GPU, no browser."""

from __future__ import annotations

import json
from pathlib import Path

from streamlit.testing.v1 import AppTest

from routesparse.engine.jobs.database import QueueBusyError
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest

APP = Path(__file__).resolve().parents[3] / "app"


def test_a_locked_queue_is_said_in_the_job_s_own_words_and_nothing_is_lost(home, queue, open_page, failing):
    job_id = queue.submit(RunRequest(label="ledger.txt"), "The ledger of the harbour.")
    with failing(JobQueue, "requeue_lost", QueueBusyError("the job queue is in use; try again")):
        page = open_page("runs", job=job_id)
        assert "This part of the page can&#x27;t be drawn" in page.told
        assert "the job queue is in use; try again" in page.told
        assert '"rs-title">Runs' in page.told and "No runs yet" in page.told, "the rest stands"
    page.run()
    assert "can&#x27;t be drawn" not in page.told and "waiting, next in line" in page.told
    assert queue.job(job_id).state == "queued"


def test_a_defect_in_a_fragment_is_logged_once_a_session_and_quotes_nothing(home, queue, open_page, failing):
    job_id = queue.submit(RunRequest(), "text")
    with failing(JobQueue, "requeue_lost", ValueError("the prompt says heliotrope")):
        page = open_page("runs", job=job_id)
        page.run()
        page.run()
    line, *others = (home / "logs" / "worker.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["page"], entry["error"]) == ("page_failed", "runs", "ValueError")
    assert len(others) == 1, "the job's own part and the list of jobs, each once"
    assert entry["log_id"] in page.told and "It is tried again by itself" in page.told
    assert "heliotrope" not in line + page.told


def test_a_fragment_of_the_script_itself_is_drawn():
    """Streamlit runs app/main.py as ``__main__``, which is in no package."""

    def script():
        import streamlit as st

        from routesparse.app.shell import boundary

        def part():
            st.html("drawn")

        part.__module__ = "__main__"
        boundary.timed(part, None)()

    page = AppTest.from_function(script).run()
    assert not page.exception and page.get("html")[0].proto.body == "drawn"


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
