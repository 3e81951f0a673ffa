"""Which stored latency profiles may fit a model, judged by their names. No torch: the web process asks this.

A profile's file is named ``<device>-t<threads>-<dtype>-d<head size>-g<query heads per KV head>-b<block_q>x<block_k>-
<probe>.json`` (measure.py). A profile fits where device, dtype, head size and blocks agree; the group size may differ.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import ProfileError
from routesparse.engine.files.plain_files import state_of
from routesparse.engine.method.latency import LatencyProfile


def folders() -> tuple[Path, Path]:
    """Where profiles lie: those of this machine, then those that ship."""
    return paths.profiles(), paths.DATA / "profiles"


def stored_for(head_dim: int, config: RouterConfig) -> list[Path]:
    """Profiles of any device for this head size, these blocks and this probe; this machine's own ones first."""
    ending = f"*-d{head_dim}-g*-b{config.block_q}x{config.block_k}-{config.probe}.json"
    return [file for folder in folders() for file in sorted(folder.glob(ending))]


def load_profile(name: str) -> LatencyProfile:
    """A stored profile by its name, or by the path of its .json file. Errors: ProfileError."""
    if name.endswith(".json"):
        return LatencyProfile.load(Path(name))
    for folder in folders():
        if (folder / f"{name}.json").exists():
            return LatencyProfile.load(folder / f"{name}.json")
    raise ProfileError(f"no latency profile is called {name!r}; pass auto, or run `routesparse profile`")


def fitting(path: Path) -> LatencyProfile | None:
    """The profile that a file is named after; None where there is none, or none that can be read.

    Then another one is taken, or a new one measured in its place: nobody asked for this file. ``routesparse doctor``
    names it.
    """
    try:
        found = _read(path, state_of(path))
    except ProfileError:
        return None
    return found if found.name == path.stem else None


@lru_cache(maxsize=16)
def _read(path: Path, state: tuple[int, ...] | None) -> LatencyProfile:
    """A profile, read once for each state of its file: each ``route`` block asks while its first prompt waits."""
    return LatencyProfile.load(path)
