"""The long run of the fuzz targets.

``python tests/fuzz/run.py [TARGET ...] [--cases N] [--seconds S] [--seed N] [--processes N] [--out FOLDER]``

Each target runs until it has had so many cases or so many seconds, whichever comes first, and prints one line of
JSON: cases, how many were refused and accepted, findings. A finding is an error that the target may not raise, or a
step out of its folder; its shortest example is printed. So is a target that accepts less than LEAST_ACCEPTED of its
cases, or refuses less: then what it is fed tests nothing behind the parser's first check. Exit code 1 where there was
one. With ``--out`` a target's line so far lies in FOLDER after every batch, so that a run that is cut off keeps it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from targets import TARGETS, Sandbox, Target

BATCH = 1_000
PACK = 20  # cases an example: what hypothesis does around an example takes longer than most parsers
LEAST_ACCEPTED = 0.02  # share of the cases; likewise of those refused
MEMORY_BYTES = 8 << 30  # more than that, and a case has unpacked what it should have refused

Line = dict[str, Any]


def fuzz(
    target: Target,
    sandbox: Sandbox,
    cases: int,
    seconds: float,
    seed: int,
    so_far: Callable[[Line], object] = lambda line: None,
) -> Line:
    """Counts of one target; ``so_far`` is told them after every batch."""
    counts: Counter[str] = Counter(cases=0, refused=0, accepted=0)
    findings: list[str] = []
    with tempfile.TemporaryDirectory(dir=sandbox.folder) as name:
        folder = Path(name)
        target.prepare(folder)

        def one(case: Any) -> None:
            counts["cases"] += 1
            try:
                with sandbox.watch():
                    target.parse(case, folder)
            except target.allowed:
                counts["refused"] += 1
            except Exception as error:
                error.add_note(f"for the case {case!r}"[:300])
                raise
            else:
                counts["accepted"] += 1

        def pack(cases: list[Any]) -> None:
            for case in cases:
                one(case)

        def line() -> Line:
            found = [*findings, *_one_sided(counts)]
            return {**counts, "seconds": round(time.monotonic() - started, 1), "findings": found}

        started = time.monotonic()
        while counts["cases"] < cases and time.monotonic() - started < seconds:
            run = settings(
                max_examples=-(-min(BATCH, cases) // PACK),
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )(given(st.lists(target.cases, min_size=PACK, max_size=PACK))(pack))
            try:
                hypothesis.seed(seed)(run)()
            # The boundary of a batch: whatever it is, it is a finding.
            except Exception as error:  # noqa: BLE001
                findings += _told(error)
            seed += 1
            so_far(line())
        return line()


def _one_sided(counts: Counter[str]) -> list[str]:
    """What the counts say of the cases themselves."""
    few = [name for name in ("refused", "accepted") if counts[name] < LEAST_ACCEPTED * counts["cases"]]
    return [
        f"only {counts[name]} of {counts['cases']} cases were {name}: change what it is fed" for name in few
    ]


def _told(error: BaseException) -> list[str]:
    """What hypothesis found, one line for each distinct failure with its shortest example."""
    if isinstance(error, BaseExceptionGroup):
        return [line for part in error.exceptions for line in _told(part)]
    at = traceback.extract_tb(error.__traceback__)[-1]
    notes = " ".join(getattr(error, "__notes__", ()))
    return [f"{type(error).__name__}: {error} at {Path(at.filename).name}:{at.lineno} {notes}"[:500]]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=[])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="targets at once, each in a process")
    parser.add_argument("--out", type=Path, help="folder for each target's line so far")
    asked = parser.parse_args()
    unknown = sorted(set(asked.targets) - set(TARGETS))
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; known are {', '.join(TARGETS)}")
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
    return asked


def _in_turn(asked: argparse.Namespace) -> bool:
    """Whether a target had a finding."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    found = False
    with tempfile.TemporaryDirectory() as name:
        set_hypothesis_home_dir(name)
        sandbox = Sandbox(Path(name))
        sandbox.install()
        for target in asked.targets or TARGETS:

            def keep(line: Line, target: str = target) -> None:
                if asked.out is not None:
                    (asked.out / f"{target}.json").write_text(json.dumps({"target": target, **line}) + "\n")

            line = fuzz(TARGETS[target], sandbox, asked.cases, asked.seconds, asked.seed, keep)
            print(json.dumps({"target": target, **line}), flush=True)
            found |= bool(line["findings"])
    return found


def _at_once(asked: argparse.Namespace) -> bool:
    """Whether a target had a finding, or its process ended without a line."""
    options = ["--cases", str(asked.cases), "--seconds", str(asked.seconds), "--seed", str(asked.seed)]
    options += [] if asked.out is None else ["--out", str(asked.out)]
    found = False
    with ThreadPoolExecutor(asked.processes) as pool:
        ended = {
            pool.submit(
                subprocess.run, [sys.executable, __file__, target, *options], capture_output=True, text=True
            ): target
            for target in asked.targets or TARGETS
        }
        for one in as_completed(ended):
            process = one.result()
            if not process.stdout:
                line = {"target": ended[one], "ended": process.returncode, "stderr": process.stderr[-2_000:]}
                process.stdout = json.dumps(line) + "\n"
            print(process.stdout, end="", flush=True)
            found |= process.returncode != 0
    return found


def main() -> int:
    """Run the named targets, or all."""
    asked = _arguments()
    return int(_in_turn(asked) if asked.processes == 1 else _at_once(asked))


if __name__ == "__main__":
    sys.exit(main())
