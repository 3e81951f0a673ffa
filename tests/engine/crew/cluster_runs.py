"""The same light work by a pool and by three Ray nodes of which one is killed, in a process of its own."""

import functools
import json
import os
import sys
import time
from pathlib import Path

from nodes import Nodes, killed_at

from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import share
from routesparse.engine.crew.work import Piece, Work


def opened(begun, place):
    return functools.partial(square, begun)


def square(begun, number):
    with open(begun, "a") as file:
        file.write(f"{number}\n")
    time.sleep(0.1)
    if number == 13:
        raise ValueError("unlucky")
    return number * number


def run(folder, processes):
    begun, kept = folder / "begun", folder / "kept"
    folder.mkdir()
    with kept.open("a", buffering=1) as out:

        def keep(piece, found):
            out.write(json.dumps([piece.name, found]) + "\n")

        lots = [[Piece(str(n), n), Piece(str(n + 1), n + 1)] for n in range(0, 120, 2)]
        work = Work("square", functools.partial(opened, str(begun)), lots, keep)
        crew, count = processes.crew(work.opened)
        outcome = share(work, crew, count, lambda text: print(text, file=sys.stderr))
    return {
        "kept": [json.loads(line) for line in kept.read_text().splitlines()],
        "begun": [int(line) for line in begun.read_text().split()],
        "failed": outcome.failed,
        "done": outcome.done,
    }


def main(folder):
    pool = run(folder / "pool", Processes(3))
    nodes = Nodes()
    try:
        with killed_at(nodes, folder / "cluster" / "kept", 30) as killed:
            cluster = run(folder / "cluster", Processes(None, nodes.address))
    finally:
        nodes.stop()
    found = {
        "pool": pool,
        "cluster": cluster,
        "killed": killed,
        "usage": os.environ["RAY_USAGE_STATS_ENABLED"],
    }
    print("RESULTS" + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
