"""Who may enter, and what is not served at all: exit code 2 with one line, before anything listens."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from routesparse.app.shell import guard
from tests.app.conftest import AUTH, LOGIN
from tests.e2e.serve import free_port

REPOSITORY = Path(__file__).resolve().parents[3]
PUBLIC = ["--server.address", "0.0.0.0"]
# The real start with its last step, listening, replaced by a word: tests open no public port.
START = """
import sys
from streamlit.web import bootstrap
bootstrap.run = lambda *arguments: print("served")
from routesparse.app.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def start(tmp_path):
    """Start the dashboard as the Procfile does, without listening; (exit code, stdout, lines of stderr)."""

    def call(*options, secrets=None):
        if secrets is not None:
            (tmp_path / ".streamlit").mkdir()
            (tmp_path / ".streamlit" / "secrets.toml").write_text(secrets)
        environment = {**os.environ, "HOME": str(tmp_path), "ROUTESPARSE_HOME": str(tmp_path / "home")}
        ended = subprocess.run(
            [sys.executable, "-c", START, *options],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return ended.returncode, ended.stdout, ended.stderr.splitlines()

    return call


@pytest.mark.parametrize(
    ("address", "local"),
    [
        *((address, True) for address in ("127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8")),
        *((address, False) for address in (None, "", "::", "192.168.1.4", "example.org", "127.1")),
    ],
)
def test_loopback_needs_no_login(address, local):
    assert guard.is_loopback(address) == local


@pytest.mark.parametrize("address", [None, "0.0.0.0"])
def test_public_page_without_login_shows_nothing(filled, open_dashboard, monkeypatch, address):
    """Should somebody serve app/main.py in another way."""
    option = guard.st.get_option
    monkeypatch.setattr(
        guard.st, "get_option", lambda name: address if name == "server.address" else option(name)
    )
    page = open_dashboard()
    assert not page.exception
    assert "no login is configured" in " ".join(block.value for block in page.get("html"))
    assert "RouteSparse reads" not in " ".join(block.value for block in page.get("html"))


@pytest.mark.parametrize(
    ("secrets", "reason"),
    [
        (None, "no login is configured"),
        ('[database]\nuser = "x"\n', "no login is configured"),
        ('[auth]\ncookie_secret = "x"\n', "the login can't work"),
        (LOGIN.replace(AUTH["cookie_secret"], "guess"), "fewer than 32 characters"),
    ],
    ids=["no secrets", "other secrets", "half a login", "a short secret"],
)
def test_public_bind_without_a_working_login_is_refused(start, secrets, reason):
    code, out, errors = start(*PUBLIC, "--server.port", str(free_port()), secrets=secrets)
    assert (code, out, len(errors)) == (2, "", 1)
    assert errors[0].startswith("error: the dashboard is bound to 0.0.0.0")
    assert reason in errors[0]
    assert "--server.address 127.0.0.1" in errors[0]


def test_public_bind_with_a_login_is_served(start):
    assert start(*PUBLIC, "--server.port", str(free_port()), secrets=LOGIN) == (0, "served\n", [])


def test_loopback_is_served(start):
    assert start("--server.port", str(free_port())) == (0, "served\n", [])


def test_a_port_in_use_is_refused_with_another_to_take(start):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, out, errors = start("--server.port", str(port))
    assert (code, out, len(errors)) == (2, "", 1)
    assert errors[0].startswith(f"error: port {port} is in use")
    assert f"make run PORT={port + 1}" in errors[0]


@pytest.mark.parametrize("options", [("--server.nonsense", "1"), ("--server.port", "70000")])
def test_a_wrong_option_is_one_line(start, options):
    code, out, errors = start(*options)
    assert (code, out, len(errors)) == (2, "", 1)
    assert errors[0].startswith("error: ")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("server.address", "127.0.0.1"),
        ("server.enableXsrfProtection", True),
        ("server.enableCORS", True),
        ("server.enableStaticServing", False),
        ("client.showErrorDetails", "none"),
        ("client.showErrorLinks", False),
        ("browser.gatherUsageStats", False),
    ],
)
def test_the_repository_s_configuration_is_closed(option, value, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert guard.st.get_option(option) == value
