"""Which stored latency profiles may fit a model, judged by their names. No torch: the web process asks this.

A profile's file is named ``<device>-t<threads>-<dtype>-d<head size>-g<query heads per KV head>-b<block_q>x<block_k>-
<probe>.json`` (measure.py). A profile fits where device, dtype, head size and blocks agree; the group size may differ.
"""

from __future__ import annotations

from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig


def stored_for(head_dim: int, config: RouterConfig) -> list[Path]:
    """Profiles of any device for this head size, these blocks and this probe; this machine's own ones first."""
    ending = f"*-d{head_dim}-g*-b{config.block_q}x{config.block_k}-{config.probe}.json"
    return [
        file for folder in (paths.profiles(), paths.DATA / "profiles") for file in sorted(folder.glob(ending))
    ]
