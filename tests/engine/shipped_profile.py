"""A latency profile that does not depend on what else this machine does while it is tested."""

from dataclasses import replace
from pathlib import Path

import torch

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.profiles.shape import AttentionShape

SHIPPED = paths.DATA / "profiles" / "cpu-a4207cd0-t2-float32-d64-g2-b128x64-exact.json"


def keep(home: Path) -> None:
    """Put the shipped costs of the bundled model's heads on a CPU where a home's own measurement would stand.

    One measured beside other tests may find that reading everything is cheapest.
    """
    shape = AttentionShape(torch.device("cpu"), torch.float32, head_dim=64, heads=2, kv_heads=1)
    replace(LatencyProfile.load(SHIPPED), name=shape.profile_name(RouterConfig())).save(home / "profiles")
