"""The long run of the fuzz targets: ``python tests/fuzz/run.py [TARGET ...] [--cases N] [--seconds S] [--seed N]``.

Each target runs until it has had so many cases or so many seconds, whichever comes first, and prints one line of
JSON: cases, how many were refused and accepted, findings. A finding is an error that the target may not raise, or a
step out of its folder; its shortest example is printed. So is a target that accepts less than LEAST_ACCEPTED of its
cases, or refuses less: then what it is fed tests nothing behind the parser's first check. Exit code 1 where there was
one.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
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


def fuzz(target: Target, sandbox: Sandbox, cases: int, seconds: float, seed: int) -> dict[str, Any]:
    """Counts of one target."""
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
        findings += _one_sided(counts)
        return {**counts, "seconds": round(time.monotonic() - started, 1), "findings": findings}


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


def main() -> int:
    """Run the named targets, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=[])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    unknown = sorted(set(asked.targets) - set(TARGETS))
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; known are {', '.join(TARGETS)}")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    found = False
    with tempfile.TemporaryDirectory() as name:
        set_hypothesis_home_dir(name)
        sandbox = Sandbox(Path(name))
        sandbox.install()
        for target in asked.targets or TARGETS:
            result = fuzz(TARGETS[target], sandbox, asked.cases, asked.seconds, asked.seed)
            print(json.dumps({"target": target, **result}), flush=True)
            found |= bool(result["findings"])
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
