"""Faults by the dozen: ``python tests/faults/run.py [--times 50] [--seed 1] [--patience 90] [--only NAME ...]``.

After every fault: no finished run lost or stored twice, nothing half visible, the next job works. Prints one JSON line
a kind of fault, then the table, and on stderr after every ten how far it is; exit code 1 if anything was wrong.
``make test`` injects each once (test_faults.py).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # a script, run by its path: its neighbours

import injected
import lake_injected
from injected import may_mount
from lake_stage import LakeStage, lacking
from stage import Stage, Tally

FAULTS = {**injected.FAULTS, **lake_injected.FAULTS}
FAULTS_A_HOME = 10  # a store that is rebuilt from its bundles takes longer the more there are


def inject(name: str, times: int, seed: int, folder: Path, patience_s: float = 90.0) -> Tally:
    """One kind of fault that often, ten times on one home."""
    moments, tally = random.Random(f"{name} {seed}"), Tally()
    for first in range(0, times, FAULTS_A_HOME):
        kind = LakeStage if name in lake_injected.FAULTS else Stage
        stage = kind(folder / f"home{first}", patience_s)
        wanted = min(first + FAULTS_A_HOME, times)
        before = tally.injected
        try:
            for _ in range(first, wanted):
                FAULTS[name](stage, tally, moments)
                tally.injected += 1
        except AssertionError as error:
            left = wanted - first - (tally.injected - before)
            tally.wrong.append(f"{error} ({left} faults of this home were not injected)")
        finally:
            stage.close()
        print(f"{name}: {tally.injected} of {times}, {tally}", file=sys.stderr, flush=True)
    return tally


def left_out(name: str, folder: Path) -> str | None:
    """Why this fault can't be injected here, in the words of a skipped test; None: it can."""
    if name in ("disk full", *lake_injected.MOUNTING) and not may_mount(folder):
        return "only who may mount has a small disk"
    return lacking() if name in lake_injected.FAULTS else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=90.0, help="seconds to wait for anything")
    parser.add_argument("--only", nargs="*", default=list(FAULTS), choices=list(FAULTS))
    wishes = parser.parse_args()
    lines, clean = [], True
    for name in wishes.only:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            if why := left_out(name, Path(folder)):
                print(json.dumps({"fault": name, "left out": why}), flush=True)
                continue
            tally = inject(name, wishes.times, wishes.seed, Path(folder), wishes.patience)
        clean = clean and tally.clean
        told = {key: sorted(value) if isinstance(value, set) else value for key, value in vars(tally).items()}
        print(json.dumps({"fault": name, **told, "seconds": time.monotonic() - started}), flush=True)
        lines.append(
            f"| {name} | {tally.injected} | {len(tally.lost)} | {len(tally.doubled)} | {len(tally.half)} | "
            f"{len(tally.wrong)} | {tally.slowest_s:.1f} s |"
        )
    print("| fault | injected | lost | doubled | half visible | wrong | all well within |")
    print("|---|---|---|---|---|---|---|", *lines, sep="\n")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
