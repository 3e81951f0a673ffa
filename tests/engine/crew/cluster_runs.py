"""Light work by two Ray nodes of which one is killed, in a process of its own: prints what came of it."""

import functools
import json
import os
import sys
import threading
import time
from pathlib import Path

from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import share
from routesparse.engine.crew.work import Piece, Work
from routesparse.engine.scale.cluster import library

PIECES, KILLED_AT = 48, 10


def opened(begun, place):
    return functools.partial(square, begun)


def square(begun, number):
    with open(begun, "a") as file:
        file.write(f"{number}\n")
    time.sleep(0.1)
    if number == 13:
        raise ValueError("unlucky")
    return number * number


def main(folder):
    library(loopback=True)
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 100 << 20, "node_ip_address": "127.0.0.1", "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args={**small, "num_cpus": 0})
    workers = [nodes.add_node(num_cpus=1, **small) for _ in range(2)]
    begun, kept, killed = folder / "begun", [], []

    def keep(piece, found):
        kept.append([piece.name, found])
        if len(kept) == KILLED_AT:
            end = functools.partial(nodes.remove_node, workers.pop(), allow_graceful=False)
            killed.append(threading.Thread(target=end))
            killed[0].start()

    lots = [[Piece(str(n), n), Piece(str(n + 1), n + 1)] for n in range(0, PIECES, 2)]
    work = Work("square", functools.partial(opened, str(begun)), lots, keep)
    try:
        crew, count = Processes(None, nodes.address).crew(work.opened)
        outcome = share(work, crew, count, lambda text: print(text, file=sys.stderr))
        killed[0].join()
    finally:
        nodes.shutdown()
    found = {
        "kept": kept,
        "begun": [int(line) for line in begun.read_text().split()],
        "failed": outcome.failed,
        "usage": os.environ["RAY_USAGE_STATS_ENABLED"],
    }
    print("RESULTS" + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
