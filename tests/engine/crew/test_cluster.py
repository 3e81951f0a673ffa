"""Work on a Ray cluster of this machine whose node is killed. CPU; all but the first tests need `make ray`."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from routesparse.engine.errors import InputError, RouteSparseError
from routesparse.engine.scale import cluster

HERE = Path(__file__).resolve().parent
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None and not cluster.FOLDER.is_dir(),
    reason="Ray is not installed; `make ray` does it",
)


def test_without_ray_the_error_says_what_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(cluster, "FOLDER", tmp_path / "none")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with pytest.raises(InputError, match="`make ray`"):
        cluster.library(loopback=False)


@needs_ray
def test_a_killed_node_loses_no_result_and_repeats_none(tmp_path):
    """Two nodes of one CPU; one is killed in the middle. Most of the time is Ray's own start."""
    command = [sys.executable, HERE / "cluster_runs.py", tmp_path]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.rpartition("RESULTS")[2])
    assert "is done again by another one" in done.stderr
    wanted = [[str(number), number * number] for number in range(48) if number != 13]
    assert sorted(found["kept"], key=lambda row: row[1]) == wanted
    assert found["failed"] == {"13": "ValueError: unlucky"}
    # What was kept was begun once; only what the killed node was doing was begun again.
    assert sum(times > 1 for times in Counter(found["begun"]).values()) <= 1
    assert found["usage"] == "0"


@needs_ray
def test_a_cluster_that_is_not_there_is_an_error_of_one_line(tmp_path):
    code = (
        "from routesparse.engine.scale import cluster\n"
        "from routesparse.engine.errors import InputError\n"
        "for address in ('ray://127.0.0.1:10001', 'auto', 'nowhere'):\n"
        "    try:\n"
        "        cluster.connected(address)\n"
        "    except InputError as error:\n"
        "        assert len(str(error).splitlines()) == 1, error\n"
        "        print(address)\n"
    )
    environment = {**os.environ, "RAY_TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stdout.split() == ["ray://127.0.0.1:10001", "auto", "nowhere"], done.stderr[-3000:]


@needs_ray
def test_a_head_that_never_answers_is_told_in_bounded_time(monkeypatch):
    """A port that takes connections and says nothing; Ray's own call would wait for ever."""
    cluster.library(loopback=True)
    monkeypatch.setattr(cluster, "CONNECT_S", 2.0)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)
        address = "127.0.0.1:" + str(deaf.getsockname()[1])
        with pytest.raises(InputError, match="did not answer within 2 seconds; check that its head runs"):
            cluster.connected(address)


class Slow:
    """Ray as the crew knows it, with actors that get no room, or room and never an answer."""

    def __init__(self, has_room):
        self.has_room = has_room

    def wait(self, references, num_returns=1, timeout=None):
        ready = [one for one in references if one == "ready" and self.has_room]
        return ready, []

    def nodes(self):
        return [{"Alive": True}, {"Alive": False}]

    def available_resources(self):
        return {"CPU": 0.5}


@pytest.mark.parametrize(
    ("has_room", "told"),
    [
        (
            False,
            "within 0 seconds: each needs 2 CPU and 0.5 GPU of one node; of 1 that are alive 0.5 CPU and 0 GPU are",
        ),
        (True, "could load its model within 0 minutes"),
    ],
)
def test_no_room_and_no_answer_are_told_apart(monkeypatch, has_room, told):
    """Without Ray: a process waits, and nobody is at work."""
    for name in ("ROOM_S", "LOADING_S", "_LOOK_S"):
        monkeypatch.setattr(cluster, name, 0.0)
    crew = cluster.Cluster.__new__(cluster.Cluster)
    crew._ray, crew._needs = Slow(has_room), {"num_cpus": 2, "num_gpus": 0.5}
    crew._asked, crew._opening = {"open": 0}, {0: cluster._Opening("ready")}
    with pytest.raises(RouteSparseError, match=told):
        crew.answer()
