"""The long run of the fuzz targets.

``python tests/fuzz/run.py [TARGET ...] [--cases N] [--seconds S] [--seed N] [--processes N] [--out FOLDER]``

Each target runs until it has had so many cases or so many seconds, whichever comes first, and prints one line of
JSON: cases, how many were refused and accepted, findings. A finding is an error that the target may not raise, a step
out of its folder, more than MOST_BYTES or MOST_SECONDS for one case (``fuzzed/sandbox.py``), or the end of the
process; of each kind the shortest case is printed. So is a target that accepts less than LEAST_ACCEPTED of its cases,
or refuses less: then what it is fed tests nothing behind the parser's first check. Exit code 1 where there was one.

A target runs in a process of its own, which writes down each case before it begins it. So a case that ends the process
has a name, and one that no signal reaches any more, in native code, is ended from outside. The next process goes on
with other cases. With ``--out`` a target's line so far, and each finding's case as a pickle, lie in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from targets import TARGETS, Sandbox, Target

BATCH = 1_000
PACK = 20  # cases an example: what hypothesis does around an example takes longer than most parsers
LEAST_ACCEPTED = 0.02  # share of the cases; likewise of those refused
MOST_ENDED = 20  # processes of one target: each costs a start
PATIENCE_SECONDS = 180.0  # by the clock, of a case that no signal ends; a bounded child may take 135
NOW = "now"  # the file with what a process does now
# Threads, and arenas of memory, that are not the case's.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}


@dataclass
class Found:
    """What a target's cases have come to so far."""

    counts: Counter[str] = field(default_factory=lambda: Counter(cases=0, refused=0, accepted=0))
    findings: Counter[str] = field(default_factory=Counter)
    shortest: dict[str, tuple[str, Any]] = field(default_factory=dict)  # by finding: its words, and a case

    def add(self, finding: str, words: str, case: Any) -> None:
        """One case more of a finding."""
        self.findings[finding] += 1
        if len(repr(case)) <= len(repr(self.shortest.setdefault(finding, (words, case))[1])):
            self.shortest[finding] = words, case

    def told(self) -> list[str]:
        """A line for each finding, and for what the counts say of the cases themselves."""
        told = [
            f"{finding}, {times} times, such as {self.shortest[finding]!r}"[:600]
            for finding, times in self.findings.most_common()
        ]
        for name in ("refused", "accepted"):
            if self.counts[name] < LEAST_ACCEPTED * self.counts["cases"]:
                told.append(f"only {self.counts[name]} cases were {name}: change what it is fed")
        return told


def fuzz(target: Target, sandbox: Sandbox, folder: Path, seed: int, cases: int, end: float) -> None:
    """Run batches until there were so many cases in all, or until ``end``; what came of it lies in the file NOW."""
    now = folder / NOW
    found = (_read(now) or (Found(), None))[0]
    with now.open("r+b" if now.exists() else "w+b", buffering=0) as state:

        def note(case: Any = None) -> None:
            os.pwrite(state.fileno(), pickle.dumps((found, case)), 0)

        def pack(cases: list[Any]) -> None:
            for case in cases:
                found.counts["cases"] += 1
                note((case,))
                try:
                    with sandbox.watch():
                        target.parse(case, place)
                except target.allowed:
                    found.counts["refused"] += 1
                # Panics of native code are no Exception, and whatever a parser raises is a finding.
                except BaseException as error:
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    found.add(_named(error), str(error)[:200], case)
                else:
                    found.counts["accepted"] += 1
                note()

        with tempfile.TemporaryDirectory(dir=sandbox.folder) as name:
            place = Path(name)
            target.prepare(place)
            while found.counts["cases"] < cases and time.time() < end:
                run = settings(
                    max_examples=-(-min(BATCH, cases) // PACK),
                    database=None,
                    deadline=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )(given(st.lists(target.cases, min_size=PACK, max_size=PACK))(pack))
                hypothesis.seed(seed)(run)()
                seed += 1


def _named(error: BaseException) -> str:
    """What an error has in common with others of its kind."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}"


def supervise(name: str, asked: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """A target's line, and whether it had a finding; a process that ends, or hangs, is followed by another."""
    started, end = time.monotonic(), time.time() + asked.seconds
    found, seed, ended = Found(), asked.seed, 0
    with tempfile.TemporaryDirectory(dir=asked.home) as folder:
        now = Path(folder, NOW)
        while found.counts["cases"] < asked.cases and time.time() < end and ended < MOST_ENDED:
            command = [sys.executable, __file__, name, "--inside", folder, "--end", str(end)]
            command += ["--seed", str(seed), "--cases", str(asked.cases)]
            with open(Path(folder, "stderr"), "wb") as stderr:
                process = subprocess.Popen(
                    command, stderr=stderr, start_new_session=True, env={**os.environ, **ENVIRONMENT}
                )
                stuck = _watched(process, now, lambda found: _keep(asked, name, found, started))
            found, case = _read(now) or (found, None)
            if process.returncode:
                last = Path(folder, "stderr").read_text(errors="replace").strip().split("\n")[-1]
                how = "hung in native code" if stuck else f"ended the process with {process.returncode}"
                found.add(how, last[:200], None if case is None else case[0])
                now.write_bytes(pickle.dumps((found, None)))
                ended += 1
            # Never one that a process before has had.
            seed += 1_000
    return _keep(asked, name, found, started), bool(found.told())


def _watched(process: subprocess.Popen[bytes], now: Path, keep: Any) -> bool:
    """Wait for the end of a process; whether it had to be ended because one case took too long."""
    while process.poll() is None:
        time.sleep(0.5)
        told = _read(now)
        if told is None:
            continue
        keep(told[0])
        if told[1] is not None and time.time() - now.stat().st_mtime > PATIENCE_SECONDS:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
    return False


def _read(now: Path) -> tuple[Found, Any] | None:
    """What a process does; None where it has not begun, or is writing it down."""
    try:
        # Written by a process of this script alone.
        found, case = pickle.loads(now.read_bytes())  # noqa: S301
    except (OSError, pickle.UnpicklingError, EOFError, ValueError, IndexError, AttributeError):
        return None
    return found, case


def _keep(asked: argparse.Namespace, name: str, found: Found, started: float) -> dict[str, Any]:
    """The line so far, kept in the folder for it."""
    line = {
        "target": name,
        **found.counts,
        "seconds": round(time.monotonic() - started, 1),
        "findings": found.told(),
    }
    if asked.out is not None:
        (asked.out / f"{name}.json").write_text(json.dumps(line) + "\n")
        (asked.out / f"{name}.pickle").write_bytes(pickle.dumps(found.shortest))
    return line


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=[])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="targets at once")
    parser.add_argument(
        "--out", type=Path, help="folder for each target's line so far and its findings' cases"
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--end", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    unknown = sorted(set(asked.targets) - set(TARGETS))
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; known are {', '.join(TARGETS)}")
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
    return asked


def main() -> int:
    """Run the named targets, or all."""
    asked = _arguments()
    if asked.inside is not None:
        set_hypothesis_home_dir(asked.inside.parent)  # what it makes once, for all processes
        sandbox = Sandbox(asked.inside)
        sandbox.install()
        fuzz(TARGETS[asked.targets[0]], sandbox, asked.inside, asked.seed, asked.cases, asked.end)
        return 0
    found = False
    with tempfile.TemporaryDirectory() as asked.home, ThreadPoolExecutor(asked.processes) as pool:
        lines = [pool.submit(supervise, name, asked) for name in asked.targets or TARGETS]
        for one in as_completed(lines):
            line, finding = one.result()
            print(json.dumps(line), flush=True)
            found |= finding
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
