"""Latency profiles that do not depend on what else this machine does while it is tested.

One measured beside other tests may find that reading everything is cheapest.
"""

from dataclasses import replace
from pathlib import Path

import torch

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig
from routesparse.engine.device.names import device_name
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.profiles.shape import SHORT_NAMES, AttentionShape

SHIPPED = paths.DATA / "profiles" / "cpu-a4207cd0-t2-float32-d64-g2-b128x64-exact.json"
DEMO = AttentionShape(torch.device("cpu"), torch.float32, head_dim=64, heads=2, kv_heads=1)


def of(shape: AttentionShape = DEMO, config: RouterConfig | None = None) -> LatencyProfile:
    """The shipped costs of the bundled model's heads on a CPU, as what would be measured here."""
    config = config or RouterConfig()
    return replace(
        LatencyProfile.load(SHIPPED),
        name=shape.profile_name(config),
        device=device_name(shape.device),
        dtype=SHORT_NAMES[shape.dtype],
        head_dim=shape.head_dim,
        groups=shape.heads // shape.kv_heads,
        threads=torch.get_num_threads(),
        block_q=config.block_q,
        block_k=config.block_k,
    )


def keep(home: Path) -> None:
    """Put them where a home's own measurement for the bundled model would stand, in processes of one thread, too."""
    found = of()
    for threads in {1, found.threads}:
        name = found.name.replace(f"-t{found.threads}-", f"-t{threads}-")
        replace(found, name=name, threads=threads).save(home / "profiles")
