"""The small HTTP server of ``routesparse metrics``: /metrics, /live and /ready."""

from __future__ import annotations

import errno
import socketserver
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST

from routesparse.engine.errors import ConfigError, InputError, StoreError
from routesparse.engine.jobs import opening
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.operations import metrics
from routesparse.engine.operations.places import free_bytes

LEAST_FREE_BYTES = 256 << 20
_PLAIN = "text/plain; charset=utf-8"


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
                kind, body = CONTENT_TYPE_LATEST, metrics.text(home)
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
