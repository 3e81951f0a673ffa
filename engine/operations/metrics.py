"""Metrics of a home in Prometheus' text format, and the small server of ``routesparse metrics``.

Read at each scrape: the queue, the folders, and what the web process last wrote about its runs (store/overview.py),
since nobody else may open the database. Numbers only: no name of a prompt, a person or a run.
"""

from __future__ import annotations

import errno
import json
import math
import socketserver
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from routesparse.engine import paths
from routesparse.engine.errors import ConfigError, InputError, StoreError
from routesparse.engine.files.plain_files import read_bounded
from routesparse.engine.jobs import opening
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.operations.places import free_bytes, size_bytes
from routesparse.engine.store.bundle import REJECTED

JOB_STATES = ("queued", "running", "done", "failed", "cancelled")
BUCKETS_S = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
FOLDERS = ("bundles", "spool", "trash", "prompts")
LEAST_FREE_BYTES = 256 << 20
_PLAIN = "text/plain; charset=utf-8"
_MOST_BYTES = 1 << 16
_OVERVIEW_GAUGES = {
    "units": "Routed units (head, layer, segment) of all stored runs",
    "dense_fallback_units": "Of these, units that fallback made dense",
    "uncertified_units": "Of these, units that ran without a certificate",
    "audited_certificates": "Certificates that an audit compared with exact attention",
    "held_certificates": "Of these, certificates that held; the nominal share is the run's confidence",
    "bound_violations": "Audited rows that err more than a proven bound allows; any is a defect",
}


def text(home: Path) -> str:
    """All metrics of a home. Errors: StoreError where the queue or its folder can't be read."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Home(home))
    return generate_latest(registry).decode()


class _Home:
    """Collects at each scrape."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def collect(self) -> Iterator[Metric]:
        yield from _queue(self._home)
        yield from _folders(self._home)
        yield from _runs(self._home)


def _queue(home: Path) -> Iterator[Metric]:
    if not opening.exists(home):
        return
    queue = JobQueue(home)
    try:
        tally, durations, workers = queue.tally(), queue.durations(), queue.workers()
        oldest, now = queue.waiting_since(), queue.now()
    finally:
        queue.close()
    yield _gauge(
        "jobs", "Jobs that the queue lists, by state", {s: tally.get(s, 0) for s in JOB_STATES}, "state"
    )
    yield _gauge("oldest_queued_seconds", "Age of the oldest waiting job", now - oldest if oldest else 0.0)
    yield _gauge("workers", "Workers whose process lives", len(workers))
    if workers:
        last = max(worker.seen_at for worker in workers)
        yield _gauge("worker_last_seen_timestamp_seconds", "When a worker last reported", last)
    times = {
        state: [seconds for ended, seconds in durations if ended == state] for state in ("done", "failed")
    }
    # Gauges, not a histogram: that one's counts must never fall, and these do when jobs are deleted.
    yield _gauge(
        "listed_jobs",
        "Jobs that the queue lists now whose last attempt took at most so many seconds",
        {
            (state, "+Inf" if bound == math.inf else f"{bound:g}"): sum(seconds <= bound for seconds in took)
            for state, took in times.items()
            for bound in (*BUCKETS_S, math.inf)
        },
        "state",
        "at_most_seconds",
    )
    together = {state: sum(took) for state, took in times.items()}
    yield _gauge("listed_jobs_seconds", "Seconds of these jobs' last attempts together", together, "state")


def _places(home: Path) -> dict[str, Path]:
    """The folders of FOLDERS: where all hosts share them, those."""
    places = {name: home / name for name in FOLDERS}
    if home.resolve() == paths.home():
        places |= {"spool": paths.spool(), "bundles": paths.bundles(), "trash": paths.trash()}
        places["prompts"] = paths.workplace() / "prompts"
    return places


def _folders(home: Path) -> Iterator[Metric]:
    named = _places(home)
    spool = named["spool"]
    waiting = [path for path in spool.glob("*") if not path.name.startswith(".") and path.name != REJECTED]
    yield _gauge("spool_bundles", "Finished bundles that the dashboard has not taken in", len(waiting))
    refused = [path for path in (spool / REJECTED).glob("*") if path.suffix != ".txt"]
    yield _gauge("rejected_bundles", "Bundles that the dashboard refused", len(refused))
    database = sum(path.stat().st_size for path in home.glob("routesparse.duckdb*"))
    sizes = {"database": database, **{name: size_bytes(named[name]) for name in FOLDERS}}
    yield _gauge("bytes", "Bytes on disk, by part of the home", sizes, "part")
    yield _gauge("disk_free_bytes", "Bytes free on the disk that jobs write to", free_bytes(home))


def _runs(home: Path) -> Iterator[Metric]:
    """Nothing where no dashboard has written yet; its age is a metric of its own."""
    try:
        found: dict[str, Any] = json.loads(read_bounded(paths.overview(home), _MOST_BYTES))
        verdicts, written = dict(found["verdicts"]), float(found["written_at"])
        values = {name: float(found[name]) for name in _OVERVIEW_GAUGES}
        levels = {str(level): float(count) for level, count in verdicts.items()}
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(
            f"{paths.overview(home)} can't be read ({error}); delete it, the dashboard writes it anew"
        ) from error
    yield _gauge("runs", "Stored runs by verdict, bundled samples left out", levels, "verdict")
    for name, about in _OVERVIEW_GAUGES.items():
        yield _gauge(name, about, values[name])
    yield _gauge("runs_written_timestamp_seconds", "When the dashboard last counted its runs", written)


def _gauge(name: str, about: str, value: float | Mapping[Any, float], *labels: str) -> Metric:
    """value: with labels, by the label's value, or by those of all labels."""
    if not isinstance(value, Mapping):
        return GaugeMetricFamily(f"routesparse_{name}", about, value=value)
    made = GaugeMetricFamily(f"routesparse_{name}", about, labels=labels)
    for key, number in value.items():
        made.add_metric([key] if isinstance(key, str) else list(key), number)
    return made


def problems(home: Path) -> list[str]:
    """Why a job submitted now would not be run, in words without names; empty: ready."""
    if not opening.exists(home):
        return ["no queue yet: start the dashboard and a worker"]
    found = []
    try:
        queue = JobQueue(home)
        try:
            workers = queue.workers()
        finally:
            queue.close()
    except (StoreError, ConfigError) as error:
        return [f"the queue can't be read ({type(error).__name__})"]
    if not workers:
        found.append("no worker lives: start one with `routesparse worker`")
    try:
        if free_bytes(home) < LEAST_FREE_BYTES:
            found.append(f"less than {LEAST_FREE_BYTES >> 20} MiB free")
    except StoreError:
        found.append("the folder that jobs write to is not there")
    return found


def application(home: Path) -> Callable[..., Iterable[bytes]]:
    """The WSGI application: 200 or 503, in plain text; 404 for every other path."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        kind, status, body = _PLAIN, "200 OK", "ok\n"
        path = environ.get("PATH_INFO")
        if path == "/ready":
            found = problems(home)
            if found:
                status, body = "503 Service Unavailable", "".join(f"{line}\n" for line in found)
        elif path == "/metrics":
            try:
                kind, body = CONTENT_TYPE_LATEST, text(home)
            except (StoreError, ConfigError) as error:
                kind, status, body = _PLAIN, "503 Service Unavailable", f"{type(error).__name__}\n"
        elif path != "/live":
            status, body = "404 Not Found", "/metrics, /live or /ready\n"
        content = body.encode()
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(content)))])
        return [content]

    return answer


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    timeout = 10  # seconds for a client to say what it wants

    def log_message(self, format: str, *arguments: object) -> None:
        """Scrapes come every few seconds; nothing is logged."""


def server(home: Path, address: str, port: int) -> WSGIServer:
    """A bound server. Errors: InputError for an address or a port that can't be had."""
    try:
        return make_server(address, port, application(home), server_class=_Server, handler_class=_Quiet)
    except (OSError, OverflowError) as error:
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        why = "is in use" if taken else f"can't be had ({error})"
        raise InputError(f"port {port} of {address} {why}; pass another --port or --address") from error


def serve(home: Path, address: str, port: int) -> None:
    """Serve until Ctrl-C. Errors: InputError."""
    with server(home, address, port) as running:
        print(f"http://{address}:{running.server_port}/metrics (Ctrl-C stops)", flush=True)
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            return
