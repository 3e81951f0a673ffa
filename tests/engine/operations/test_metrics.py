"""Metrics and health over real HTTP, of a home that a test filled: exact numbers, no names. CPU."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from routesparse.engine.errors import InputError
from routesparse.engine.jobs import presence
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.operations import metrics

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def samples(text: str) -> dict[tuple, float]:
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def ask(home):
    """ask(path): status and text of an answer of a running metrics."""
    running = metrics.server(home, "127.0.0.1", 0)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()

    def get(path):
        try:
            with DIRECT.open(f"http://127.0.0.1:{running.server_port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    yield get
    running.shutdown()
    thread.join(10)
    running.server_close()


def test_what_falls_when_jobs_are_deleted_is_a_gauge(home, ask):
    before = samples(ask("/metrics")[1])
    queue = JobQueue(home)
    for job in queue.jobs(("done",)):
        queue.delete(job.id)
    queue.close()
    text = ask("/metrics")[1]
    after = samples(text)
    fell = {name[0] for name, value in after.items() if value < before[name]}
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert "routesparse_listed_jobs" in fell and {kinds[name] for name in fell} == {"gauge"}


def test_metrics_count_what_the_home_holds(ask):
    status, text = ask("/metrics")
    found = samples(text)
    assert status == 200
    states = {state: found["routesparse_jobs", state] for state in metrics.JOB_STATES}
    assert states == {"queued": 1, "running": 0, "done": 1, "failed": 1, "cancelled": 0}
    assert (
        found["routesparse_listed_jobs", "+Inf", "done"]
        == found["routesparse_listed_jobs", "3600", "done"]
        == 1
    )
    assert (
        found["routesparse_listed_jobs", "+Inf", "failed"] == 1
        and found["routesparse_listed_jobs_seconds", "done"] >= 0
    )
    assert sum(found["routesparse_runs", level] for level in ("red", "amber", "green")) == 2
    assert found["routesparse_units",] == 8  # two runs of two layers of two heads
    assert found["routesparse_audited_certificates",] >= found["routesparse_held_certificates",] > 0
    assert found["routesparse_bytes", "database"] > 1e5 and found["routesparse_bytes", "bundles"] > 1e4
    assert found["routesparse_worker_last_seen_timestamp_seconds",] > 1.7e9


def test_metrics_name_nobody_and_no_prompt(ask, home):
    queue = JobQueue(home)
    ids = [row["id"] for row in queue.database.rows("SELECT id FROM job")]
    queue.close()
    text = ask("/metrics")[1]
    assert not [word for word in (*ids, "waits.txt", "needles", "a" * 32, "01d01d01d01d01d0") if word in text]


def test_ready_needs_a_living_worker_and_live_does_not(ask, home):
    queue = JobQueue(home)
    queue.goodbye("w1")
    assert ask("/live") == (200, "ok\n")
    assert ask("/ready") == (503, "no worker lives: start one with `routesparse worker`\n")
    with presence.present(home, "w2"):
        queue.seen("w2")
        assert ask("/ready") == (200, "ok\n")
    assert ask("/ready")[0] == 503
    queue.close()
    assert ask("/else")[0] == 404


def test_a_broken_overview_or_queue_is_an_answer_and_not_a_crash(ask, home):
    (home / "overview.json").write_text('{"verdicts": []}')
    assert ask("/metrics")[0] == 503
    (home / "overview.json").unlink()
    assert ask("/metrics")[0] == 200  # no dashboard has counted yet
    (home / "jobs.sqlite3").write_bytes(b"no database at all" * 300)
    assert ask("/ready")[0] == 503 and ask("/metrics")[0] == 503
    assert ask("/live")[0] == 200


def test_an_empty_home_has_metrics_and_is_not_ready(tmp_path):
    assert "routesparse_disk_free_bytes" in metrics.text(tmp_path)
    assert metrics.problems(tmp_path) == ["no queue yet: start the dashboard and a worker"]
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_is_the_user_s_to_mend(home):
    first = metrics.server(home, "127.0.0.1", 0)
    try:
        with pytest.raises(InputError, match="is in use; pass another --port"):
            metrics.server(home, "127.0.0.1", first.server_port)
    finally:
        first.server_close()


def test_a_spool_that_hosts_share_is_counted(home, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    (shared / "spool" / "waits").mkdir(parents=True)
    (shared / "spool" / "rejected" / "bad").mkdir(parents=True)
    before = samples(metrics.text(home))
    monkeypatch.setenv("ROUTESPARSE_SHARED", str(shared))
    after = samples(metrics.text(home))
    for name in ("routesparse_spool_bundles", "routesparse_rejected_bundles"):
        assert (before[(name,)], after[(name,)]) == (0, 1)
