"""A PostgreSQL server for a study or a test: in a temporary folder, on a Unix socket, until the block ends.

PostgreSQL refuses to run as root: root starts it as the user ``postgres``, which Debian's package makes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from routesparse.engine.errors import InputError

_START_S = 60.0
_USER = "routesparse"


def programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs here; Debian has them in none of PATH's. None: not installed."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return debian[-1].parent if debian else None


@contextmanager
def server() -> Iterator[str]:
    """PostgreSQL's words for it, without a database's name. It writes nothing durable. Errors: InputError."""
    folder = programs()
    if folder is None:
        raise InputError("PostgreSQL is not installed here; on Debian: apt-get install postgresql")
    data = Path(tempfile.mkdtemp(prefix="routesparse-pg-"))
    alone = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    if alone:
        shutil.chown(data, "postgres", "postgres")
    quiet = {"cwd": data, "stdout": subprocess.DEVNULL, **alone}
    made = ["initdb", "-D", data / "db", "-A", "trust", "-U", _USER, "-E", "UTF8", "--locale=C", "--no-sync"]
    try:
        with open(data / "log", "wb") as log:
            subprocess.run([folder / made[0], *made[1:]], check=True, stderr=log, **quiet)
            settings = [
                "listen_addresses=",
                "fsync=off",
                "max_connections=200",
                "unix_socket_permissions=0777",
            ]
            options = [part for setting in settings for part in ("-c", setting)]
            command = [folder / "postgres", "-D", data / "db", "-k", data, *options]
            process = subprocess.Popen(command, stderr=log, **quiet)
        try:
            _wait(folder, data)
            yield f"host={data} user={_USER}"
        finally:
            process.send_signal(2)  # SIGINT: its fast way to stop
            process.wait(_START_S)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def new_database(words: str, name: str, like: str = "template0") -> str:
    """Make a database on the server; PostgreSQL's words for it."""
    folder = programs()
    assert folder is not None
    host = words.partition(" ")[0].removeprefix("host=")
    sql = f'CREATE DATABASE "{name}" TEMPLATE "{like}"'
    subprocess.run(
        [folder / "psql", "-q", "-h", host, "-U", _USER, "-d", "postgres", "-c", sql],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return f"{words} dbname={name}"


def _wait(folder: Path, data: Path) -> None:
    deadline = time.monotonic() + _START_S
    while subprocess.run([folder / "pg_isready", "-q", "-h", data], check=False).returncode:
        if time.monotonic() > deadline:
            raise InputError(f"PostgreSQL did not start: {(data / 'log').read_text('utf-8')[-400:]}")
        time.sleep(0.1)
