"""Which processes a command works with: this one, a local pool, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from routesparse.engine.crew.pool import Here, Pool
from routesparse.engine.crew.work import Crew, Do
from routesparse.engine.errors import InputError


@dataclass(frozen=True)
class Processes:
    """count: None is one here, and on a cluster one for each GPU or node. ray: a cluster's address, None: this machine.

    Errors: InputError for no process at all.
    """

    count: int | None = None
    ray: str | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise InputError(f"--processes {self.count} does nothing; pass at least 1")

    def crew(self, opened: Callable[[int], Do]) -> tuple[Crew, int]:
        """Those that will do the work, none of them started, and how many. Errors: InputError."""
        if self.ray is not None:
            from routesparse.engine.scale.cluster import Cluster

            cluster = Cluster(opened, self.ray, self.count)
            return cluster, cluster.processes
        count = self.count or 1
        return (Here(opened) if count == 1 else Pool(opened, count)), count


ONE = Processes()
