"""Who does which piece, and what is kept. No Ray; the pool's processes are real, in a script of its own."""

import json
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import pytest

from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.pool import Here
from routesparse.engine.crew.share import share
from routesparse.engine.crew.work import Done, Failed, Lost, Opened, Piece, Refused, Work
from routesparse.engine.errors import InputError, RouteSparseError


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


def test_a_piece_that_ends_three_processes_is_given_up_and_named():
    outcome, kept, _ = run(Scripted(lose=["a"] * 5), [["a", "b"]], processes=1)
    assert kept == [("b", "B")] and outcome.failed == {"a": "3 processes ended over it: killed"}


def test_a_piece_that_fails_is_told_and_the_others_go_on():
    outcome, kept, said = run(Scripted(), [["bad", "a"]])
    assert kept == [("a", "A")] and outcome.failed == {"bad": "bad"} and "bad failed: bad" in said


def test_processes_that_end_before_they_begin_are_replaced_twice_and_then_told():
    assert run(Scripted(starts=["lost", "lost"]), [["a"]])[1] == [("a", "A")]
    crew = Scripted(starts=["lost"] * 3)
    with pytest.raises(RouteSparseError, match="3 processes in a row ended before they had begun: killed"):
        run(crew, [["a"]])
    assert crew.closed


def test_what_keeps_a_process_from_beginning_is_raised_as_it_is():
    with pytest.raises(InputError, match="no such model"):
        run(Scripted(refuse=InputError("no such model")), [["a"]])


def test_nothing_is_begun_when_the_time_is_up():
    outcome, kept, said = run(Scripted(), [["a"], ["b"]], deadline=time.time() - 1)
    assert kept == [] and outcome.left == 2 and "goes on from here" in said[-1]


def test_ctrl_c_closes_the_crew():
    class Interrupted(Scripted):
        def answer(self):
            raise KeyboardInterrupt

    crew = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run(crew, [["a"]])
    assert crew.closed


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


def test_an_idle_process_that_ends_is_not_asked_when_another_one_ends():
    class IdleEnds(Scripted):
        """Who did "a" ends with nothing to do; then who does "c" ends over it."""

        ended = None

        def answer(self):
            place, answer = super().answer()
            if answer == Done("A"):
                self.ended = place
                self.answers.appendleft((place, Lost("killed")))
            return place, answer

        def ask(self, place, given):
            assert place != self.ended, "nobody is there any more"
            super().ask(place, given)

    crew = IdleEnds(lose=["c"])
    outcome, kept, _ = run(crew, [["a"], ["b", "c"]])
    assert sorted(kept) == [("a", "A"), ("b", "B"), ("c", "C")] and outcome.failed == {}
    assert crew.ended is not None
