"""A PostgreSQL server for a test: in a temporary folder, on a Unix socket, until the block ends.

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
    with cluster() as data, running(data) as words:
        yield words


@contextmanager
def cluster() -> Iterator[Path]:
    """The folder of a server that does not run yet. Errors: InputError."""
    folder = _programs()
    data = Path(tempfile.mkdtemp(prefix="routesparse-pg-"))
    try:
        if (owner := _owner()) is not None:
            shutil.chown(data, owner, owner)
        made = ["-D", "db", "-A", "trust", "-U", _USER, "-E", "UTF8", "--locale=C", "--no-sync"]
        begun = _started([folder / "initdb", *made], data)
        begun.communicate()
        if begun.returncode:
            raise InputError(f"initdb failed: {(data / 'log').read_text('utf-8')[-400:]}")
        yield data
    finally:
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def running(data: Path) -> Iterator[str]:
    """The server of a ``cluster`` while the block lasts; it may be entered again. Its words. Errors: InputError."""
    folder = _programs()
    settings = ["listen_addresses=", "fsync=off", "max_connections=200", "unix_socket_permissions=0777"]
    options = [part for setting in settings for part in ("-c", setting)]
    server: list[str | Path] = [folder / "postgres", "-D", "db", "-k", data, *options]
    process = _started(["sh", "-c", _UNTIL_INPUT_ENDS, "sh", *server], data)
    try:
        _wait(folder, data)
        yield f"host={data} user={_USER}"
    finally:
        process.communicate()


def _programs() -> Path:
    folder = programs()
    if folder is None:
        raise InputError("PostgreSQL is not installed here; on Debian: apt-get install postgresql")
    return folder


def _owner() -> str | None:
    """Whom PostgreSQL runs as, where not as who starts it."""
    return "postgres" if os.getuid() == 0 else None


def _started(command: Sequence[str | Path], folder: Path) -> subprocess.Popen[bytes]:
    user = _owner()
    with open(folder / "log", "ab") as log:
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
