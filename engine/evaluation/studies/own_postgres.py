"""A PostgreSQL server for a study or a test: in a temporary folder, on a Unix socket, until the block ends.

PostgreSQL refuses to run as root: root starts it as the user ``postgres``, which Debian's package makes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from routesparse.engine.errors import InputError

_START_S = 60.0
_USER = "routesparse"
# So that the server ends with who started it, also when that is killed. SIGINT: PostgreSQL's fast way to stop.
_UNTIL_INPUT_ENDS = '"$@" </dev/null & read -r _; kill -INT $!; wait'


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
    folder = _programs()
    data = Path(tempfile.mkdtemp(prefix="routesparse-pg-"))
    if user := _user():
        shutil.chown(data, user, user)
    made = ["initdb", "-D", "db", "-A", "trust", "-U", _USER, "-E", "UTF8", "--locale=C", "--no-sync"]
    try:
        with open(data / "log", "wb") as log:
            begun = _started([folder / made[0], *made[1:]], data, log)
            begun.communicate()
        if begun.returncode:
            raise InputError(f"initdb failed: {(data / 'log').read_text('utf-8')[-400:]}")
        with served(data):
            yield f"host={data} user={_USER}"
    finally:
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def served(data: Path) -> Iterator[None]:
    """PostgreSQL on the folder of a ``server``, until the block ends; again, after that one was killed."""
    settings = ["listen_addresses=", "fsync=off", "max_connections=200", "unix_socket_permissions=0777"]
    options = [part for setting in settings for part in ("-c", setting)]
    place: list[str | Path] = [_programs() / "postgres", "-D", "db", "-k", data]
    with open(data / "log", "ab") as log:
        process = _started(["sh", "-c", _UNTIL_INPUT_ENDS, "sh", *place, *options], data, log)
    try:
        _wait(_programs(), data)
        yield
    finally:
        process.communicate()


def _programs() -> Path:
    folder = programs()
    if folder is None:
        raise InputError("PostgreSQL is not installed here; on Debian: apt-get install postgresql")
    return folder


def _user() -> str | None:
    """Whom PostgreSQL runs as, where not as who starts it."""
    return "postgres" if os.getuid() == 0 else None


def _started(command: Sequence[str | Path], folder: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    user = _user()
    return subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )


def new_database(words: str, name: str, like: str = "template0") -> str:
    """Make a database on the server; PostgreSQL's words for it."""
    host = words.partition(" ")[0].removeprefix("host=")
    sql = f'CREATE DATABASE "{name}" TEMPLATE "{like}"'
    subprocess.run(
        [_programs() / "psql", "-q", "-h", host, "-U", _USER, "-d", "postgres", "-c", sql],
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
