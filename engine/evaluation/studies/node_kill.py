"""One evaluation by a local pool and by three Ray nodes of which one is killed: are the results equal?

    python -m routesparse.engine.evaluation.studies.node_kill --out FILE.json --n 200

The prompts are RULER's needles in noise, which need no texts; the methods dense and ours. Two runs are equal where each
has every prompt by every method once and all but the clocks is the same. Three controls spoil a copy of the cluster's
rows, by leaving one out, doubling one and altering one, and the comparison has to notice each.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.crew.cluster import VERSION, library
from routesparse.engine.crew.crews import Processes
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.runner.job import Job
from routesparse.engine.evaluation.runner.predict import predict
from routesparse.engine.evaluation.runner.predictions import key
from routesparse.engine.evaluation.runner.prepare import prepare
from routesparse.engine.evaluation.studies.selection import rows
from routesparse.engine.evaluation.studies.selection.measure import Bench
from routesparse.engine.progress import no_progress
from routesparse.engine.provenance import git_commit, versions

NODES = 3
CLOCKS = ("select_ms", "prefill_ms", "attention_ms")
TOLD = ("killed_after_lines", "pool", "cluster", "differences", "controls")
Row = dict[str, Any]


class Nodes:
    """Ray nodes on this machine: a head without work, and ``NODES`` of one CPU each."""

    def __init__(self) -> None:
        library(loopback=True)
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 100 << 20, "node_ip_address": "127.0.0.1", "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args={**small, "num_cpus": 0})
        self._workers = [self._cluster.add_node(num_cpus=1, **small) for _ in range(NODES)]
        self.address: str = self._cluster.address

    def kill(self) -> None:
        """End one node at once, with all that runs on it."""
        self._cluster.remove_node(self._workers.pop(), allow_graceful=False)

    def stop(self) -> None:
        """End the others."""
        self._cluster.shutdown()


@contextmanager
def killed_at(nodes: Nodes, file: Path, lines: int) -> Iterator[list[int]]:
    """Inside the block a node is killed as soon as the file has so many lines; yields how many it had then."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            seen = file.read_bytes().count(b"\n") if file.exists() else 0
            if seen >= lines:
                nodes.kill()
                killed.append(seen)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield killed
    finally:
        over.set()
        watcher.join()


def differences(one: Sequence[Row], other: Sequence[Row]) -> list[str]:
    """What two runs of a job do not have in common, by prediction; nothing where they are equal but for clocks."""
    found = []
    for name, side in (("first", one), ("second", other)):
        found += [
            f"{where} comes {n} times in the {name}" for where, n in Counter(map(key, side)).items() if n > 1
        ]
    mine, others = ({key(row): _timeless(row) for row in side} for side in (one, other))
    found += [f"{where} is in one alone" for where in mine.keys() ^ others.keys()]
    for where in sorted(mine.keys() & others.keys()):
        for name in sorted(mine[where].keys() | others[where].keys()):
            values = mine[where].get(name), others[where].get(name)
            if values[0] != values[1]:
                found.append(f"{where} differs in {name}: {values[0]} and {values[1]}")
    return found


def _timeless(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in CLOCKS}


def spoiled(made: Sequence[Row]) -> dict[str, list[Row]]:
    """The same rows with one fault each."""
    first, *rest = made
    return {
        "one lost": rest,
        "one doubled": [*made, first],
        "one altered": [{**first, "gold_nats": first["gold_nats"] + 1e-4}, *rest],
    }


def main(argv: list[str] | None = None) -> None:
    """Run both and write what came of it. Exit code 1 where they differ or a control passes."""
    parser = study.parser(__doc__)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--length", type=int, default=1_024)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        jobs = [_job(arguments, Path(scratch, name)) for name in ("pool", "cluster")]
        for job in jobs:
            prepare(job, no_progress)
        started = time.monotonic()
        predict(jobs[0], Bench, Processes(NODES))
        pool_s = time.monotonic() - started
        nodes = Nodes()
        try:
            started = time.monotonic()
            with killed_at(nodes, jobs[1].predictions, arguments.n // 2) as killed:
                predict(jobs[1], Bench, Processes(NODES, nodes.address))
            cluster_s = time.monotonic() - started
        finally:
            nodes.stop()
        pool, cluster = (list(rows.read_lines(job.predictions)) for job in jobs)
    different = differences(pool, cluster)
    controls = {name: len(differences(pool, made)) for name, made in spoiled(cluster).items()}
    found = {
        "command": study.command(),
        "created_at": study.now(),
        "git_commit": git_commit(),
        "versions": {**versions(), "ray": VERSION},
        "job": jobs[0].command,
        "nodes": NODES,
        "killed_after_lines": killed,
        "pool": {"lines": len(pool), "failed": _failed(pool), "seconds": round(pool_s)},
        "cluster": {"lines": len(cluster), "failed": _failed(cluster), "seconds": round(cluster_s)},
        "differences": different,
        "controls": controls,
    }
    paths.write_json(arguments.out, found)
    print(json.dumps({name: found[name] for name in TOLD}))
    if different or not killed or not all(controls.values()):
        raise SystemExit(1)


def _failed(made: Sequence[Row]) -> int:
    return sum("failed" in row for row in made)


def _job(arguments: Any, out: Path) -> Job:
    return Job(
        suite="ruler",
        tasks=("niah_single_1",),
        lengths=(arguments.length,),
        methods=("routesparse=0.5",),
        n=arguments.n,
        seed=arguments.seed,
        model=arguments.model,
        data=arguments.data,
        out=out,
    )


if __name__ == "__main__":
    study.run(main)
