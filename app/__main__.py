"""``python -m routesparse.app``: serve the dashboard, after refusing what would be unsafe or could not work.

Options are those of ``streamlit run``. One line on stderr and exit code 2 for a bind that others reach without a login
(guard.py), for a port in use, and for an unknown option. Run it in the repository, whose ``.streamlit/config.toml``
holds the dashboard's limits.

On a loopback bind, sessions open under loopback names only. Files are written with umask 077. A page waits for a
few new bundles of the spool; many come in behind it (access.py).
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import streamlit as st
from streamlit import config, net_util
from streamlit.web import bootstrap, cli
from streamlit.web.server.server_util import is_allowed_origin
from streamlit.web.server.starlette import starlette_websocket

from routesparse.app.shell import guard
from routesparse.engine import paths
from routesparse.engine.errors import InputError
from routesparse.engine.terminal import escaped

MAIN = Path(__file__).with_name("main.py")
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@escaped()
def main(arguments: Sequence[str]) -> int:
    """Serve until stopped; the exit code."""
    # Runs hold prompts: what is written is for this user only.
    os.umask(0o077)
    try:
        with cli.main_run.make_context("python -m routesparse.app", [str(MAIN), *arguments]) as context:
            options = {
                name: value for name, value in context.params.items() if name not in ("target", "args")
            }
            bootstrap.load_config_options(options)
            problem = guard.refusal() or _port_problem() or _home_problem()
            if problem is not None:
                print(f"error: {problem}", file=sys.stderr)
                return 2
            _keep_to_this_machine(options)
            # We start the server ourselves: the command would read the configuration again and take ours for a change.
            bootstrap.run(str(MAIN), False, list(context.params["args"]), options)
    except click.exceptions.Exit as ended:  # --help
        return ended.exit_code
    except click.UsageError as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        return 2
    return 0


def _keep_to_this_machine(options: dict[str, Any]) -> None:
    """Close what Streamlit leaves open to a page of another site in the visitor's browser.

    On loopback a session is opened under loopback names only: a foreign name that its owner lets point here is not
    ours. A page of another port is another program's, whatever its host is called. And a foreign page's try must not
    make this process ask the network for its own address.
    """
    address = str(st.get_option("server.address"))
    if guard.is_loopback(address) and not st.get_option("server.allowedHosts"):
        # Also as an option, for when Streamlit reads a changed file again.
        options["server_allowedHosts"] = (*_LOOPBACK_NAMES, address.strip("[]"))
        config.set_option("server.allowedHosts", list(options["server_allowedHosts"]))
    starlette_websocket.is_url_from_allowed_origins = _is_ours
    net_util.get_external_ip = lambda: None


def _is_ours(url: str) -> bool:
    """Whether a page of this origin, which is not the address that it calls, may open a session."""
    return is_allowed_origin(url) or guard.is_loopback_origin(url, int(st.get_option("server.port")))


def _port_problem() -> str | None:
    """Why our port can't be had, when it is taken or does not exist; Streamlit reports other problems itself."""
    address, port = str(st.get_option("server.address") or "0.0.0.0"), int(st.get_option("server.port"))
    if port not in range(65_536):
        return f"port {port} does not exist; choose one from 1024 to 65535"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Like the server: a port that was in use a moment ago is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.strip("[]"), port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return (
                    f"port {port} is in use, perhaps by another RouteSparse; stop that, or take another port: "
                    f"make run PORT={port + 1}"
                )
    return None


def _home_problem() -> str | None:
    """Why runs can't be stored where the environment says."""
    try:
        paths.home(), paths.shared()
    except InputError as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
