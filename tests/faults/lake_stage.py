"""A stage whose runs go into a lake: a PostgreSQL of its own, a shared folder, a second host's dashboard ("web 2")."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # also for a script, run by its path

from stage import PATIENCE_S, Stage

from routesparse.engine.scale import ducklake
from tests import own_postgres

_END_S = 30.0


def lacking() -> str | None:
    """Why there is no such stage here, in the words of a skipped test; None: there is."""
    if not ducklake.installed():
        return "DuckLake is not installed; `make ducklake` does it"
    return None if own_postgres.programs() else "PostgreSQL is not installed"


class LakeStage(Stage):
    """The database ``lakeN`` is the Nth lake that its processes use, in the shared folder beside the home."""

    def __init__(self, home: Path, patience_s: float = PATIENCE_S, shared: Path | None = None) -> None:
        super().__init__(home, patience_s)
        self.shared = shared or home.with_name(f"{home.name} shared")
        self.spool = self.shared / "spool"
        self._lakes = 0
        self._opened = ExitStack()
        self.words = self._opened.enter_context(own_postgres.server())
        self.new_lake()

    def new_lake(self) -> None:
        """A new database for processes that start from now on."""
        self._lakes += 1
        words = own_postgres.new_database(self.words, f"lake{self._lakes}")
        self.environment = {
            "ROUTESPARSE_STORE": ducklake.PREFIX + words,
            "ROUTESPARSE_SHARED": str(self.shared),
        }

    def home_of(self, name: str) -> Path:
        """The second dashboard is another host's."""
        home = self.home.with_name(f"{self.home.name} host 2") if name == "web 2" else self.home
        home.mkdir(exist_ok=True)
        return home

    def close(self) -> None:
        super().close()
        self._opened.close()

    def end_server(self, by: int) -> None:
        """End PostgreSQL, and wait for its processes. SIGINT: its fast shutdown."""
        server = int((self._data / "db" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        os.kill(server, by)
        until = time.monotonic() + _END_S
        while any(_lives(process) for process in (server, *map(int, children))):
            if time.monotonic() > until:
                raise AssertionError(
                    f"PostgreSQL did not end within {_END_S:.0f} s of {signal.Signals(by).name}"
                )
            time.sleep(0.05)
        # Its shell, which waits for the test's end, has not buried it: PostgreSQL would take it for alive.
        for lock in (self._data / "db" / "postmaster.pid", *self._data.glob(".s.PGSQL.*")):
            lock.unlink(missing_ok=True)

    def start_server(self) -> None:
        self._opened.enter_context(own_postgres.running(self._data))

    @property
    def _data(self) -> Path:
        return Path(self.words.partition(" ")[0].removeprefix("host="))


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
