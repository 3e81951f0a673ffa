"""Work on a Ray cluster of this machine whose node is killed. CPU; all but the first tests need `make ray`."""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from routesparse.engine.crew import cluster
from routesparse.engine.errors import InputError
from routesparse.engine.evaluation.studies import node_kill

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


def test_the_comparison_notices_a_lost_a_doubled_and_an_altered_row():
    row = {"config_hash": "c", "seed": 0, "gold_nats": 1.0, "prefill_ms": 3.0}
    made = [{**row, "sample_id": str(number)} for number in range(3)]
    later = [{**one, "prefill_ms": 4.0} for one in made[::-1]]
    assert node_kill.differences(made, later) == []
    assert {name: len(node_kill.differences(made, bad)) for name, bad in node_kill.spoiled(made).items()} == {
        "one lost": 1, "one doubled": 1, "one altered": 1
    }  # fmt: skip


@needs_ray
def test_a_killed_node_loses_no_result_and_repeats_none(tmp_path):
    """Three nodes of one CPU; one is killed after 30 results. Some half a minute, most of it Ray's own start."""
    command = [sys.executable, HERE / "cluster_runs.py", tmp_path]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.rpartition("RESULTS")[2])
    pool, other = found["pool"], found["cluster"]
    assert found["killed"] and found["killed"][0] < len(other["kept"]), "a node was killed in the middle"
    assert "is done again by another one" in done.stderr
    wanted = [[str(number), number * number] for number in range(120) if number != 13]
    assert sorted(pool["kept"], key=lambda row: row[1]) == wanted
    assert sorted(other["kept"], key=lambda row: row[1]) == wanted
    assert pool["failed"] == other["failed"] == {"13": "ValueError: unlucky"}
    # What was kept was begun once; only what the killed node was doing was begun again.
    again = [number for number, times in Counter(other["begun"]).items() if times > 1]
    assert len(again) <= 1 and len(pool["begun"]) == 120
    assert found["usage"] == "0"


@needs_ray
def test_a_cluster_that_is_not_there_is_an_error_of_one_line(tmp_path):
    code = (
        "from routesparse.engine.crew import cluster\n"
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
