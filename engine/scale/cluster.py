"""Processes on a Ray cluster, one actor each. `make ray` puts Ray into a folder that only this module looks into.

``local`` starts Ray on this machine, bound to 127.0.0.1, until the command ends; ``auto`` joins the cluster that runs
here, HOST:PORT the one with that head node, of which this machine is a node. Ray's report of its use and its dashboard
are off. A lost actor is not restarted by Ray but by ``share``, which knows what it was doing.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from routesparse.engine.crew.work import Answer, Do, Lost, Member, Refused
from routesparse.engine.errors import InputError, RouteSparseError

VERSION = "2.60.0"  # the one that was tried
FOLDER = Path(sys.prefix, "ray")
LOCAL, AUTO = "local", "auto"
# While no process is at work: that one may take to be given room, and then to load its model.
ROOM_S, LOADING_S = 300.0, 900.0
CONNECT_S = 60.0  # that a cluster may take to answer
_LOOK_S = 5.0
_STORE_BYTES = 200 << 20  # results wait in it for this process, which takes them at once
_KINDS = {"num_cpus": "CPU", "num_gpus": "GPU"}


@dataclass
class _Opening:
    """A process that has not begun. ready: done when a node has made its actor."""

    ready: Any
    has_room: bool = False


class Cluster:
    """Actors on the nodes of a Ray cluster."""

    def __init__(self, opened: Callable[[int], Do], address: str, processes: int | None) -> None:
        """processes: None is one for each GPU of the cluster, or without any for each node.

        Errors: InputError where Ray or the cluster is not there.
        """
        self._ray = connected(address)
        self._opened = opened
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        gpus = int(sum(node.get("GPU", 0) for node in nodes))
        able = [node for node in nodes if node.get("CPU", 0) >= 1 and (node.get("GPU", 0) or not gpus)]
        cores = [int(node["CPU"]) for node in able]
        if not cores:
            self.close()
            raise InputError(f"no node of the Ray cluster {address} has a CPU for work; add one to it")
        self.processes = processes or gpus or len(cores)
        a_node = -(-self.processes // len(cores))
        # Ray hands an actor as many OpenMP threads as it asks for CPUs.
        self._needs = {"num_cpus": max(1, min(cores) // a_node), "num_gpus": _share(gpus, self.processes)}
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, int] = {}
        self._opening: dict[int, _Opening] = {}

    def start(self, place: int) -> None:
        """See ``Crew``. Where no node has room, the actor waits for one and the others go on."""
        made = self._ray.remote(Member).options(**self._needs, max_restarts=0, scheduling_strategy="SPREAD")
        actor = self._actors[place] = made.remote()
        self._opening[place] = _Opening(actor.__ray_ready__.remote())
        self._asked[actor.open.remote(self._opened, place)] = place

    def ask(self, place: int, given: Any) -> None:
        """See ``Crew``."""
        self._asked[self._actors[place].do.remote(given)] = place

    def answer(self) -> tuple[int, Answer]:
        """See ``Crew``. Errors: RouteSparseError where no process is at work and none can begin."""
        quiet = time.monotonic()
        while (found := self._next(_LOOK_S)) is None:
            if len(self._opening) == len(self._asked):
                self._check_opening(time.monotonic() - quiet)
        return found

    def arrived(self) -> tuple[int, Answer] | None:
        """See ``Crew``."""
        return self._next(0.0)

    def _next(self, wait_s: float) -> tuple[int, Answer] | None:
        if not self._asked:
            return None
        ready, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=wait_s)
        if not ready:
            return None
        place = self._asked.pop(ready[0])
        self._opening.pop(place, None)
        try:
            answer: Answer = self._ray.get(ready[0])
        # An actor, its worker or its node that ended, or a result that was on it. The member itself never raises.
        except self._ray.exceptions.RayError as error:
            answer = Lost(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
        if isinstance(answer, Lost | Refused):
            self._ray.kill(self._actors.pop(place))
        return place, answer

    def _check_opening(self, waited_s: float) -> None:
        """waited_s: since the last answer of any process. Errors: RouteSparseError."""
        for opening in self._opening.values():
            ready, _ = self._ray.wait([opening.ready], timeout=0)
            opening.has_room |= bool(ready)
        if not any(opening.has_room for opening in self._opening.values()):
            if waited_s > ROOM_S:
                raise RouteSparseError(self._no_room())
        elif waited_s > LOADING_S:
            raise RouteSparseError(
                f"no process on the Ray cluster could load its model within {LOADING_S / 60:.0f} minutes; look at its "
                "nodes' memory and at whether --model is there, then pass the same command again"
            )

    def _no_room(self) -> str:
        """What the cluster has, and what to do."""
        alive = sum(node["Alive"] for node in self._ray.nodes())
        free = self._ray.available_resources()
        wanted = " and ".join(
            f"{self._needs[name]:g} {kind}" for name, kind in _KINDS.items() if self._needs[name]
        )
        has = " and ".join(f"{free.get(kind, 0):g} {kind}" for kind in _KINDS.values())
        return (
            f"no node of the Ray cluster had room for a process within {ROOM_S:.0f} seconds: each needs {wanted} of "
            f"one node; of {alive} that are alive {has} are free together. End other work there, add a node, or pass "
            "fewer --processes, and the same command again"
        )

    def close(self) -> None:
        """See ``Crew``."""
        self._ray.shutdown()


def _share(gpus: int, processes: int) -> float:
    """Of a GPU, so that as many processes fit on the cluster: an actor's part lies on one GPU."""
    return 1 / -(-processes // gpus) if gpus else 0.0


def connected(address: str) -> Any:
    """Ray, of which this process is a driver now. Errors: InputError."""
    ray = library(address == LOCAL)
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "configure_logging": False}
    if address == LOCAL:
        options |= {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    elif "://" in address:
        raise InputError(
            f"Ray address {address!r} is a client's; pass {LOCAL}, auto or HOST:PORT of the head"
        )
    elif address != AUTO:
        _check_answers(address)
    try:
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"no Ray cluster at {address[:80]!r} ({told[:200]}); start its head with `ray start --head` and join "
            f"this machine to it, or pass --ray {LOCAL}"
        ) from None
    return ray


def _check_answers(address: str) -> None:
    """Ask the head from a process that can be ended: Ray's own call waits for ever where nothing answers."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONNECT_S)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"the Ray cluster at {address[:80]!r} did not answer within {CONNECT_S:.0f} seconds; check that its head "
            f"runs, that this machine reaches the port, or pass --ray {LOCAL}"
        ) from None
    if done.returncode:
        raise InputError(
            f"no Ray cluster answers at {address[:80]!r}; start its head with `ray start --head` and join this "
            f"machine to it, or pass --ray {LOCAL}"
        )


def library(loopback: bool) -> Any:
    """Ray itself. loopback: bound to 127.0.0.1, for a cluster of this machine alone. Errors: InputError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if loopback:
        # Ray's own switch for machines without a cluster; elsewhere it listens on the host's address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if importlib.util.find_spec("ray") is None and FOLDER.is_dir():
        sys.path.append(str(FOLDER))
        # Ray's own processes look for it, too.
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*([others] if others else []), str(FOLDER)])
    try:
        import ray
    except ImportError as error:
        raise InputError(f"Ray is not installed ({error}); `make ray` does it, or leave --ray out") from None
    found = metadata.version("ray")
    if found != VERSION:
        raise InputError(f"Ray is {found}, only {VERSION} was tried; `make ray` installs it")
    return ray
