"""Work on three Ray nodes that all vanish, in a process of its own: it has to end, and say what to do."""

import json
import sys
import time
from pathlib import Path

from nodes import Nodes

from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import share
from routesparse.engine.crew.work import Piece, Work
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.scale import cluster


def opened(place):
    return slowly


def slowly(number):
    time.sleep(0.5)
    return number


def main(folder):
    nodes, kept = Nodes(), []

    def keep(piece, found):
        kept.append(found)
        if len(kept) == 6:
            for _ in range(3):
                nodes.kill()
            cluster.ROOM_S = 10.0
            gone.append(time.monotonic())

    gone = []
    work = Work("vanish", opened, [[Piece(str(n), n)] for n in range(200)], keep)
    try:
        crew, count = Processes(None, nodes.address).crew(opened)
        share(work, crew, count, lambda text: print(text, file=sys.stderr))
        told = None
    except RouteSparseError as error:
        told = str(error)
    waited_s = time.monotonic() - gone[0]
    nodes.stop()
    Path(folder, "found.json").write_text(json.dumps({"told": told, "kept": kept, "waited_s": waited_s}))


if __name__ == "__main__":
    main(sys.argv[1])
