"""Threads that wait at a barrier soon sleep, in a routed layer on a CPU and nowhere else. CPU only."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from routesparse.engine.device import barriers
from routesparse.engine.device.barriers import CHOSEN_BY, Barriers, short_spins

CPU = torch.device("cpu")
# CPU time of the threads that wait for the next operation, in a process that chose nothing.
SPUN = """
import time, torch
from routesparse.engine.device.barriers import short_spins
x = torch.randn(200_000)

def spun_s():
    spent = 0.0
    for _ in range(5):
        x.mul_(1.0)
        begun = time.process_time()
        time.sleep(0.1)
        spent += time.process_time() - begun
    return spent

before = spun_s()
with short_spins():
    within = spun_s()
print(before, within, spun_s())
"""


@pytest.fixture
def nothing_chosen(monkeypatch):
    for name in CHOSEN_BY:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def teams(monkeypatch):
    """The sizes of the teams that libgomp is asked for."""
    sizes = []
    gomp = SimpleNamespace(
        omp_get_num_procs=lambda: 6, free=None, GOMP_parallel=lambda _a, _b, size, _c: sizes.append(size)
    )
    monkeypatch.setattr(barriers, "_openmp", lambda: gomp)
    monkeypatch.setattr(barriers.ctypes, "cast", lambda *_: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    return sizes


def parked():
    return [one for one in threading.enumerate() if one.name == "routesparse short spins"]


@pytest.mark.skipif(sys.platform != "linux" or os.cpu_count() == 1, reason="nothing spins on one core")
def test_waiting_threads_spend_a_tenth_of_the_time_inside_and_as_before_afterwards():
    chosen_nothing = {name: value for name, value in os.environ.items() if name not in CHOSEN_BY}
    done = subprocess.run(
        [sys.executable, "-c", SPUN], capture_output=True, text=True, check=True, env=chosen_nothing
    )
    before, within, after = map(float, done.stdout.split())
    assert within < min(before, after) / 10


def test_threads_outnumber_the_cores_by_one_until_the_block_is_left(nothing_chosen, teams):
    with pytest.raises(ZeroDivisionError), short_spins():
        assert len(parked()) == 1
        raise ZeroDivisionError
    assert not parked()
    # torch's four threads, and three beside the parked one: seven for six cores.
    assert teams == [4]


def test_with_one_thread_or_where_the_user_chose_nothing_is_parked(nothing_chosen, teams, monkeypatch):
    def within():
        with short_spins():
            return parked()

    assert within()
    for name in CHOSEN_BY:
        with monkeypatch.context() as patch:
            patch.setenv(name, "10000")
            assert not within()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert not within()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(barriers, "_openmp", lambda: None)
    assert not within()


def test_a_machine_of_many_cores_or_without_a_thread_to_spare_keeps_its_spins(
    nothing_chosen, teams, monkeypatch
):
    with short_spins():
        assert parked()
    for broken in (
        lambda patch: patch.setattr(barriers, "MOST_THREADS", 3),
        lambda patch: patch.setattr(barriers.threading.Thread, "start", no_thread),
    ):
        with monkeypatch.context() as patch:
            broken(patch)
            with short_spins():
                assert not parked()
    assert teams == [4]


def no_thread(self):
    raise RuntimeError("can't start new thread")


def test_spins_are_short_after_a_layer_that_waited_for_a_core(nothing_chosen, teams, monkeypatch):
    def layer(waited_s, device=CPU):
        """Whether the spins were short in a layer of one second whose threads waited so long for a core."""
        with session.of_layer(device):
            short = bool(parked())
            clocks["wall"] += 1.0
            clocks["waited"] = None if waited_s is None else clocks["waited"] + waited_s
        clocks["waited"] = clocks["waited"] or 0.0
        return short

    session, clocks = Barriers(), {"wall": 0.0, "waited": 0.0}
    monkeypatch.setattr(barriers, "time", SimpleNamespace(perf_counter=lambda: clocks["wall"]))
    monkeypatch.setattr(barriers, "_waited_s", lambda: clocks["waited"])
    assert not layer(0.0, torch.device("cuda"))
    waits_s = [0.0, 0.04, 0.3, None, 0.3, 0.0, 0.0]
    assert [layer(waited_s) for waited_s in waits_s] == [False, False, False, True, True, True, False]


@pytest.mark.skipif(sys.platform != "linux" or os.cpu_count() == 1, reason="nothing spins on one core")
def test_a_thread_that_has_no_core_waits():
    before_s = barriers._waited_s()
    more = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    begun = time.perf_counter()
    while time.perf_counter() - begun < 2:
        pass
    for one in more:
        one.kill()
        one.wait()
    assert barriers._waited_s() - before_s > 0.2


def test_another_openmp_sleeps_at_once_and_spins_as_before_afterwards(nothing_chosen, monkeypatch):
    times_ms = [200]
    kmp = SimpleNamespace(kmp_get_blocktime=lambda: times_ms[-1], kmp_set_blocktime=times_ms.append)
    monkeypatch.setattr(barriers, "_openmp", lambda: kmp)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(ZeroDivisionError), short_spins():
        assert times_ms == [200, 0] and not parked()
        raise ZeroDivisionError
    assert times_ms == [200, 0, 200]
