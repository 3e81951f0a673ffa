"""What other pages in the same browser could send to the dashboard is refused. No browser: plain HTTP on loopback."""

from __future__ import annotations

import base64
import http.client
import os
import socket

import pytest

from tests.e2e import serve


@pytest.fixture(scope="module")
def network():
    """A listener that the dashboard takes for its way to the network."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        yield listener


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("requests")


@pytest.fixture(scope="module")
def port(network, home):
    way = f"http://127.0.0.1:{network.getsockname()[1]}"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy"):
            patch.setenv(name, way)
        patch.setenv("no_proxy", "127.0.0.1")
        with serve.dashboard(home) as address:
            yield int(address.rsplit(":", 1)[1])


def status(port: int, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("origin", "host", "answer"),
    [
        ("http://127.0.0.1:{port}", None, 101),
        ("http://localhost:{port}", None, 101),
        ("http://127.0.0.1:{other}", None, 403),
        ("http://localhost:{other}", None, 403),
        ("http://localhost", None, 403),
        ("http://evil.example", None, 403),
        ("http://evil.example:{port}", None, 403),
        ("null", None, 403),
        # A name that its owner lets point to 127.0.0.1 carries its own name in both headers.
        ("http://evil.example:{port}", "evil.example:{port}", 403),
    ],
)
def test_only_the_dashboard_s_own_pages_open_a_session_and_nobody_asks_the_network(
    port, network, origin, host, answer
):
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Origin": origin.format(port=port, other=port + 1),
    }
    if host is not None:
        headers["Host"] = host.format(port=port)
    assert status(port, "GET", "/_stcore/stream", headers) == answer
    with pytest.raises(BlockingIOError):
        network.accept()


def test_an_upload_without_the_token_is_refused(port):
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nabc\r\n--x--\r\n'
    assert status(port, "PUT", "/_stcore/upload_file/session/file", headers, body) == 403


@pytest.mark.parametrize("path", ["/app/static/../../etc/passwd", "/static/..%2f..%2f..%2fetc/passwd"])
def test_no_file_of_the_machine_is_served(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert b"root:" not in answer.read()
    connection.close()


def test_the_start_says_where_it_is_and_nothing_of_changed_options(port, home):
    log = (home / "dashboard.log").read_text()
    assert f"http://127.0.0.1:{port}" in log
    assert "config option" not in log
