"""The load script against small servers of the standard library, whose delays are known. No GPU, no model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from routesparse.engine.lab.bench.serving import main


class Fake(BaseHTTPRequestHandler):
    """Serves one model; waits, then streams two pieces of text."""

    delay_s = 0.0
    status = 200
    events: tuple[str, ...] | None = None

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on stderr."""

    def do_GET(self) -> None:
        self._begin(200)
        self.wfile.write(json.dumps({"data": [{"id": "fake"}]}).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.prompts.append(asked["prompt"])
        # The warm-up is always answered.
        if self.status != 200 and "warm-up" not in asked["prompt"]:
            self._begin(self.status)
            self.wfile.write(b'{"error": "no room"}')
            return
        time.sleep(self.delay_s)
        self._begin(200)
        text = [json.dumps({"choices": [{"text": piece}]}) for piece in ("a", "b")]
        events = (*text, json.dumps({"choices": [], "usage": {"prompt_tokens": 77}}), "[DONE]")
        if self.events is not None and "warm-up" not in asked["prompt"]:
            events = self.events
        for event in events:
            self.wfile.write(f"data: {event}\n\n".encode())

    def _begin(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()


@pytest.fixture
def serve() -> Iterator[Callable[..., ThreadingHTTPServer]]:
    made: list[ThreadingHTTPServer] = []

    def start(**settings: object) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Set", (Fake,), settings))
        server.prompts = []
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        made.append(server)
        return server

    yield start
    for server in made:
        server.shutdown()
        server.server_close()


def address(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def run(tmp_path: Path, stock: str, routed: str, *more: str) -> tuple[int, dict]:
    out = tmp_path / "out.json"
    named = ["--server", f"stock={stock}/v1", "--server", f"routed={routed}"]
    code = main([*named, "--tokens", "128", "--out", str(out), *more])
    told = json.loads(out.read_text())
    return code, told | told["summary"][0]


def test_the_ratio_of_known_delays_comes_out(serve, tmp_path):
    stock, routed = serve(delay_s=0.2), serve(delay_s=0.1)
    code, told = run(tmp_path, address(stock), address(routed), "--n", "6")
    ratio = told["ratio_first_ms"]
    assert code == 0 and told["pairs"] == told["same_text"] == 6
    assert ratio["value"] == pytest.approx(0.5, abs=0.15) and ratio["high"] < 0.8
    assert told["servers"]["stock"]["prompt_tokens"] == 77
    # Both were asked the same, and nothing was asked twice or begins as anything else does.
    assert stock.prompts == routed.prompts
    assert len({prompt.splitlines()[0] for prompt in stock.prompts}) == 7
    first = [row["server"] for row in told["requests"]][::2]
    assert first == ["stock", "routed"] * 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"status": 503}, "HTTP 503"),
        ({"events": ("[DONE]",)}, "no text"),
        ({"events": ()}, "broke off"),
        ({"events": ("[]", "[DONE]")}, "AttributeError"),
        ({"events": ('{"error": "full"}',)}, "error in the stream: full"),
    ],
)
def test_failed_requests_are_counted_and_told(serve, tmp_path, capsys, settings, said):
    code, told = run(tmp_path, address(serve()), address(serve(**settings)), "--n", "2")
    assert code == 1 and told["pairs"] == 0 and told["ratio_first_ms"] is None
    (error,) = told["servers"]["routed"]["errors"]
    assert said in error and said in capsys.readouterr().out
    assert told["servers"]["stock"]["answered"] == 2


def test_a_slow_server_is_left_at_the_timeout(serve, capsys):
    slow = address(serve(delay_s=1.0))
    with pytest.raises(SystemExit, match="2"):
        main(["--server", f"slow={slow}", "--tokens", "128", "--timeout-s", "0.2"])
    assert "no whole answer in 0.2 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--server", "gone=http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1"),
        (["--server", "elsewhere"], "is not NAME=URL"),
        (["--model", "other"], "serves fake, not other"),
        (["--tokens", "many"], "is no list"),
        (["--tokens", "500000"], "fewer than --tokens 500,000"),
        (["--n", "0"], "--n 0 is out of range"),
    ],
)
def test_wrong_input_ends_in_one_line(serve, capsys, more, said):
    with pytest.raises(SystemExit, match="2"):
        main(["--server", f"here={address(serve())}", *more])
    assert said in capsys.readouterr().err
