"""Ray nodes of a test on this machine, of which it kills one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from routesparse.engine.scale.cluster import library

NODES = 3


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
