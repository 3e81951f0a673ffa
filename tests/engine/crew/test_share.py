"""Who does which piece, and what is kept. No Ray; the pool's processes are real, in a script of its own."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections import deque
from pathlib import Path

import pytest

from routesparse.engine.crew import crews, work
from routesparse.engine.crew.crews import Here, Pool, Processes, _Child
from routesparse.engine.crew.share import Team, share
from routesparse.engine.crew.work import Done, Failed, Lost, Opened, Piece, Refused, Work
from routesparse.engine.errors import (
    DiskFullError,
    InputError,
    OutOfMemoryError,
    RouteSparseError,
    is_out_of_memory,
)


class Scripted:
    """A crew whose processes answer at once; ``lose`` says which asked piece costs its process, how often."""

    def __init__(self, lose=(), starts=(), refuse=None):
        self.lose, self.starts, self.refuse = list(lose), deque(starts), refuse
        self.answers, self.log, self.closed = deque(), [], False

    def start(self, place):
        self.log.append(f"start {place}")
        if self.refuse is not None:
            self.answers.append((place, Refused(self.refuse)))
        elif self.starts and self.starts.popleft() == "lost":
            self.answers.append((place, Lost("killed")))
        else:
            self.answers.append((place, Opened()))

    def ask(self, place, given):
        self.log.append(f"{place}: {given}")
        if given in self.lose:
            self.lose.remove(given)
            self.answers.append((place, Lost("killed")))
        else:
            self.answers.append((place, Failed("bad") if given == "bad" else Done(given.upper())))

    def answer(self):
        return self.answers.popleft()

    def arrived(self):
        return self.answers.popleft() if self.answers else None

    def close(self):
        self.closed = True


def run(crew, lots, processes=2, **options):
    kept, said = [], []
    lots = [[Piece(name, name) for name in lot] for lot in lots]
    work = Work("test", lambda place: None, lots, lambda piece, found: kept.append((piece.name, found)))
    outcome = share(work, crew, processes, said.append, **options)
    return outcome, kept, said


def test_a_lot_stays_with_one_process_and_every_piece_is_kept_once():
    crew = Scripted()
    outcome, kept, said = run(crew, [["a", "b", "c"], ["d", "e"]])
    assert sorted(kept) == [(name, name.upper()) for name in "abcde"] and crew.closed
    by_place = {place: [line[3:] for line in crew.log if line.startswith(f"{place}:")] for place in (0, 1)}
    assert sorted(by_place.values()) == [["a", "b", "c"], ["d", "e"]]
    assert (outcome.done, outcome.failed, outcome.left) == (5, {}, 0) and said[-1].startswith("test 5/5")


def test_what_a_lost_process_was_doing_is_done_again_and_what_it_had_done_is_not():
    crew = Scripted(lose=["b"])
    outcome, kept, said = run(crew, [["a", "b", "c"]], processes=1)
    assert crew.log == ["start 0", "0: a", "0: b", "start 0", "0: b", "0: c"]
    assert kept == [("a", "A"), ("b", "B"), ("c", "C")] and outcome.done == 3
    assert any("b is done again by another one" in line for line in said)


@pytest.mark.parametrize(
    ("crew", "failed"),
    [(Scripted(lose=["a"] * 5), {"a": "3 processes ended over it: killed"}), (Scripted(), {"bad": "bad"})],
)
def test_a_piece_that_fails_or_ends_three_processes_is_told_and_the_others_go_on(crew, failed):
    (name,) = failed
    outcome, kept, said = run(crew, [[name, "b"]], processes=1)
    assert kept == [("b", "B")] and outcome.failed == failed and any(line.startswith(name) for line in said)


def test_processes_that_end_before_they_begin_are_replaced_twice_and_then_told():
    assert run(Scripted(starts=["lost", "lost"]), [["a"]])[1] == [("a", "A")]
    crew = Scripted(starts=["lost"] * 3)
    with pytest.raises(RouteSparseError, match="3 processes in a row ended before they had begun: killed"):
        run(crew, [["a"]])
    assert crew.closed
    with pytest.raises(InputError, match="no such model"):
        run(Scripted(refuse=InputError("no such model")), [["a"]])


def test_nothing_is_begun_when_the_time_is_up():
    outcome, kept, said = run(Scripted(), [["a"], ["b"]], deadline=time.time() - 1)
    assert kept == [] and outcome.left == 2 and "goes on from here" in said[-1]


def test_this_process_alone_does_the_work_where_no_other_is_asked_for():
    def opened(place):
        return {"a": place, "b": os.getpid()}.__getitem__

    kept = []
    work = Work("t", opened, [[Piece(n, n) for n in "abz"]], lambda piece, found: kept.append(found))
    crew, count = Processes().crew(opened)
    assert isinstance(crew, Here) and count == 1
    outcome = share(work, crew, count, kept.append)
    assert kept[:2] == [0, os.getpid()] and outcome.failed == {"z": "KeyError: 'z'"}
    with pytest.raises(InputError, match="at least 1"):
        Processes(0)


POOL = """
import functools, json, os, signal, sys
from pathlib import Path
import torch
from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import share
from routesparse.engine.crew.work import Piece, Work

def opened(folder, place):
    return functools.partial(do, folder)

def do(folder, n):
    try:
        Path(folder, str(n)).touch(exist_ok=False)
    except FileExistsError:
        return -n
    if torch.get_num_threads() > max(1, os.cpu_count() // 2):
        raise RuntimeError(f"{torch.get_num_threads()} threads")
    if n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return n

if __name__ == "__main__":
    kept = []
    work = Work("t", functools.partial(opened, sys.argv[1]), [[Piece(str(n), n)] for n in range(1, 9)],
                lambda piece, found: kept.append(found))
    crew, count = Processes(2).crew(work.opened)
    outcome = share(work, crew, count, lambda text: print(text, file=sys.stderr))
    print(json.dumps([sorted(kept), outcome.failed]))
"""


def test_a_process_of_the_pool_that_is_killed_costs_nothing_but_its_piece_twice(tmp_path):
    """Piece 3 kills its process; the one that does it again finds the file and says -3. They share the cores."""
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    folder = tmp_path / "done"
    folder.mkdir()
    command = [sys.executable, script, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[-3, 1, 2, 4, 5, 6, 7, 8], {}]
    assert "exit code -9); 3 is done again" in done.stderr


def test_an_answer_that_ctrl_c_came_into_is_not_read_on():
    """The rest of a message would be taken for the length of the next one, and waited for without end."""
    crew = Pool(lambda place: None, 2)
    theirs = []
    for place in range(2):
        ours, other = multiprocessing.Pipe()
        theirs.append(other)
        crew._children[place] = _Child(types.SimpleNamespace(kill=lambda: None, join=lambda: None), ours)
    # The first of four bytes of a length, and then nothing more.
    os.write(theirs[0].fileno(), b"\0")
    timer = threading.Timer(0.3, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            crew.answer()
    finally:
        signal.signal(signal.SIGINT, before)
    theirs[1].send(Done("b"))
    os.write(theirs[0].fileno(), b"\0\0\0\2ab")
    assert crew.arrived() == (1, Done("b"))
    assert crew.arrived() is None
    crew.close()


def test_a_broken_gpu_ends_its_process_and_the_piece_is_done_by_another(monkeypatch):
    """A fake: in place 0 a kernel fails, and then every call to the GPU does. Nobody's GPU is needed."""
    broken = set()
    monkeypatch.setattr(work, "broken_device", lambda: "CUDA error: illegal address" if broken else None)

    class Fresh(Here):
        """As if each start were a new process: nothing is broken in it."""

        def start(self, place):
            broken.clear()
            super().start(place)

    def do(piece):
        if piece == "c" and not asked.count("c"):
            broken.add(piece)
        asked.append(piece)
        if broken:
            raise RuntimeError("CUDA error: illegal address")
        return piece.upper()

    asked, starts = [], []
    crew = Fresh(lambda place: starts.append(place) or do)
    outcome, kept, said = run(crew, [["a", "b", "c", "d"]], processes=1)
    assert asked == ["a", "b", "c", "c", "d"] and len(starts) == 2 and outcome.failed == {}
    assert kept == [(name, name.upper()) for name in "abcd"]
    assert any(
        "its GPU answers no more: CUDA error: illegal address); c is done again" in line for line in said
    )


def test_a_broken_gpu_of_this_process_alone_ends_the_command_with_what_to_do(monkeypatch):
    """A fake of a broken GPU: opening the work again in the same process would not mend it."""
    for module in (work, crews):
        monkeypatch.setattr(module, "broken_device", lambda: "CUDA error: illegal address")
    starts = []

    def do(piece):
        raise RuntimeError("CUDA error")

    with pytest.raises(RouteSparseError, match="answers no more: CUDA error: illegal address; give the same"):
        run(Here(lambda place: starts.append(place) or do), [["a", "b"]], processes=1)
    assert starts == [0]


def test_a_process_that_did_pieces_and_then_fails_all_of_them_is_replaced_and_one_that_never_did_is_not():
    """A fake of what wears out, such as a GPU's memory in pieces too small to use."""
    worn = {"after": 1, "done": 0}

    def opened(place):
        worn["done"] = 0
        return do

    def do(piece):
        if piece.startswith("bad") or worn["done"] >= worn["after"]:
            raise MemoryError(piece)
        worn["done"] += 1
        return piece

    outcome, kept, said = run(Here(opened), [["a", "b", "c", "d", "e"]], processes=1)
    assert [name for name, _ in kept] == ["a", "d"] and set(outcome.failed) == {"b", "c", "e"}
    assert any("3 failures in a row, the last MemoryError: d); d is done again" in line for line in said)
    worn["after"] = 9
    outcome, kept, said = run(Here(opened), [[f"bad{number}" for number in range(5)]], processes=1)
    assert len(outcome.failed) == 5 and not any("again" in line for line in said)

    def refuse(piece):
        if piece != "a":
            raise InputError(f"{piece} is too long")
        return piece

    outcome, kept, said = run(Here(lambda place: refuse), [["a", "b", "c", "d", "e"]], processes=1)
    assert set(outcome.failed) == set("bcde") and not any("again" in line for line in said)


@pytest.mark.parametrize("answer", [Refused(RouteSparseError("no GPU")), Lost("killed")])
def test_a_place_where_none_can_begin_is_given_up_and_the_others_go_on(answer):
    class OneDoesNot(Scripted):
        """Place 1 is of no use once place 0 could begin; each of its processes ends before 0 has done a piece."""

        def start(self, place):
            super().start(place)
            if place == 1:
                self.answers.pop()
                self.answers.insert(min(1, len(self.answers)), (1, answer))

    crew = OneDoesNot()
    outcome, kept, said = run(crew, [["a"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"], ["h"]])
    assert len(kept) == 8 and outcome.failed == {} and crew.log.count("start 1") == 3
    assert any(line.startswith("process 1 is given up, the others go on: 3 processes") for line in said)
    kept = []
    with Team(OneDoesNot(), 2, said.append) as team:
        for names in ("abcdef", "gh"):
            lots = [[Piece(name, name)] for name in names]
            team.do(Work("test", lambda place: None, lots, lambda piece, found: kept.append(found)))
    assert len(kept) == 8

    class BothEnd(OneDoesNot):
        """Place 0 too, after its first piece."""

        def start(self, place):
            super().start(place)
            if place == 0 and self.log.count("start 0") > 1:
                self.answers[-1] = (0, Lost("killed too"))

    with pytest.raises(RouteSparseError, match="3 processes in a row ended before they had begun: "):
        run(BothEnd(lose=["a", "b", "c"]), [["a"], ["b"], ["c"], ["d"], ["e"]])


def test_of_a_whole_work_the_first_failure_is_raised_as_it_is():
    def opened(place):
        return do

    def do(piece):
        raise InputError("layer 3: NaN") if piece == "b" else ZeroDivisionError(piece)

    lots = [[Piece(name, name)] for name in "bc"]
    for first, kind, told in (
        ("b", InputError, "^layer 3: NaN$"),
        ("c", RouteSparseError, "^c failed: Zero"),
    ):
        chosen = [lot for lot in lots if lot[0].name == first]
        whole = Work("test", opened, chosen, lambda piece, found: None, whole=True)
        with pytest.raises(kind, match=told):
            share(whole, Here(opened), 1, lambda text: None)


@pytest.mark.parametrize("where", ["opening", "piece"])
@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (MemoryError("no 9 GiB"), OutOfMemoryError, "MemoryError: no 9 GiB"),
        (OSError(errno.ENOSPC, "full", "x.json"), DiskFullError, "the disk is full: x.json was not written"),
    ],
)
def test_memory_and_disk_that_ran_out_are_told_as_such_from_any_process(where, error, kind, told):
    """So that the command line says their cure; what a process of a pool answers is pickled."""

    class Pickled(Here):
        def answer(self):
            ours, theirs = multiprocessing.Pipe()
            theirs.send(super().answer())
            return ours.recv()

    def fail(given):
        raise error

    whole = Work("test", lambda place: fail, [[Piece("a", "a")]], lambda piece, found: None, whole=True)
    with pytest.raises(kind, match=told) as raised:
        share(whole, Pickled(fail if where == "opening" else lambda place: fail), 1, lambda text: None)
    assert is_out_of_memory(raised.value) == (kind is OutOfMemoryError)
    assert isinstance(raised.value, InputError) == (kind is DiskFullError), "exit code 2"


def test_ctrl_c_waits_for_what_is_being_kept_and_loses_nothing_that_has_arrived():
    class Slow(Scripted):
        """All of them have answered when the first result is being kept."""

        def answer(self):
            while len(self.answers) > 1 and isinstance(self.answers[0][1], Done):
                return self.answers.popleft()
            return super().answer()

    kept = []

    def keep(piece, found):
        if not kept:
            signal.raise_signal(signal.SIGINT)
        kept.append(found)

    lots = [[Piece(name, name)] for name in "abcd"]
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        share(Work("test", lambda place: None, lots, keep), Slow(), 2, lambda text: None)
    assert len(kept) == 2, "the one that was being kept, and the other that had arrived"
    assert signal.getsignal(signal.SIGINT) is before
