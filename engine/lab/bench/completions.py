"""One streamed completion of an OpenAI-compatible server, timed, and which model the server has.

Standard library alone. Times are of this process: from sending the request to the first event with text, and to the
stream's end.
"""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from routesparse.engine.errors import InputError, shortened

MOST_BYTES = 1 << 20  # of one line of a stream, or of a list of models


@dataclass(frozen=True)
class Server:
    """One address, and the model that is asked there."""

    name: str
    url: str  # scheme://host:port, and a path before /v1 where there is one
    model: str = ""


@dataclass(frozen=True)
class Answer:
    """What one request brought; ``error`` says why there are no times."""

    first_ms: float | None = None  # to the first event with text
    total_ms: float | None = None
    prompt_tokens: int | None = None  # as the server counted
    cached_tokens: int | None = None
    text: str = ""
    error: str | None = None


class _RequestError(Exception):
    """One request failed; the run goes on and counts it."""


def _connect(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout_s), parts.path.rstrip("/")


def parse_server(text: str) -> Server:
    """NAME=URL. Errors: InputError."""
    name, _, url = text.partition("=")
    url = url.rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not name or not known or parts.username or parts.query:
        raise InputError(f"--server {shortened(text)!r} is not NAME=URL; pass stock=http://127.0.0.1:8000")
    return Server(name, url)


def with_model(server: Server, wanted: str | None, timeout_s: float) -> Server:
    """The server with the model that it is asked for. Errors: InputError: none answers, or not that model."""
    connection, base = _connect(server.url, timeout_s)
    try:
        connection.request("GET", f"{base}/v1/models")
        response = connection.getresponse()
        content = response.read(MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"no server answers at {server.url} ({error or type(error).__name__}); start it, or correct --server"
        ) from error
    finally:
        connection.close()
    if response.status != 200:
        raise InputError(f"{server.url}/v1/models answers {response.status} {response.reason}; is it an API?")
    try:
        served = [str(entry["id"]) for entry in json.loads(content)["data"]]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{server.url}/v1/models lists no models; pass an OpenAI-compatible server"
        ) from None
    if wanted is None and len(served) == 1:
        return Server(server.name, server.url, served[0])
    if wanted not in served:
        listed = shortened(", ".join(served))
        raise InputError(f"{server.url} serves {listed or 'nothing'}, not {wanted}; pass one as --model")
    return Server(server.name, server.url, wanted)


def ask(server: Server, prompt: str, answer_tokens: int, timeout_s: float) -> Answer:
    """One streamed completion; a failure is an answer with ``error``, and ``timeout_s`` bounds it whole."""
    connection, base = _connect(server.url, timeout_s)
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": answer_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    try:
        connection.request(
            "POST", f"{base}/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        return _read(connection, began, timeout_s)
    except TimeoutError:
        return Answer(error=f"no whole answer in {timeout_s:g} s")
    except _RequestError as error:
        return Answer(error=str(error))
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        return Answer(error=f"{type(error).__name__}: {shortened(error)}")
    finally:
        connection.close()


def _read(connection: http.client.HTTPConnection, began: float, timeout_s: float) -> Answer:
    """The events of a stream. Errors: _RequestError, TimeoutError, and those of what is no stream of events."""
    socket = connection.sock
    response = connection.getresponse()
    if response.status != 200:
        said = " ".join(response.read(2000).decode("utf-8", "replace").split())
        raise _RequestError(f"HTTP {response.status}: {shortened(said)}")
    usage: dict[str, Any] = {}
    first, text = None, ""
    while True:
        left = timeout_s - (time.perf_counter() - began)
        if left <= 0:
            raise TimeoutError
        socket.settimeout(left)
        line = response.readline(MOST_BYTES)
        if not line:
            raise _RequestError("the stream broke off before [DONE]")
        if not line.startswith(b"data:"):
            continue
        event = line[5:].strip()
        if event == b"[DONE]":
            break
        told = json.loads(event)
        if "error" in told:
            raise _RequestError(f"error in the stream: {shortened(told['error'])}")
        piece = "".join(choice.get("text") or "" for choice in told.get("choices") or ())
        if piece and first is None:
            first = time.perf_counter() - began
        text += piece
        usage = told.get("usage") or usage
    if first is None:
        raise _RequestError("the answer has no text")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    total = time.perf_counter() - began
    return Answer(1e3 * first, 1e3 * total, usage.get("prompt_tokens"), cached, text)
