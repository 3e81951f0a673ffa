"""What other pages in the same browser could send to the dashboard is refused. No browser: plain HTTP on loopback."""

from __future__ import annotations

import base64
import http.client
import os
import socket

import pytest


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
def port(serve, network, home):
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
    ("origin", "answer"),
    [
        ("http://127.0.0.1:{port}", 101),
        ("http://localhost:{port}", 101),
        ("http://127.0.0.1:{other}", 403),
        ("http://localhost:{other}", 403),
        ("http://localhost", 403),
        ("http://evil.example", 403),
        ("http://evil.example:{port}", 403),
        ("null", 403),
    ],
)
def test_only_the_dashboard_s_own_pages_open_a_session_and_nobody_asks_the_network(
    port, network, origin, answer
):
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Origin": origin.format(port=port, other=port + 1),
    }
    assert status(port, "GET", "/_stcore/stream", headers) == answer
    with pytest.raises(BlockingIOError):
        network.accept()


def test_a_page_of_another_host_name_is_refused_though_it_leads_here(port):
    """A name that its owner lets point to 127.0.0.1 carries its own name in both headers."""
    headers = {
        "Host": f"evil.example:{port}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Origin": f"http://evil.example:{port}",
    }
    assert status(port, "GET", "/_stcore/stream", headers) == 403


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
