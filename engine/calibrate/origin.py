"""Where measured rows come from: the header of every file that a study or ``routesparse tune`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from routesparse.engine.device.names import device_name
from routesparse.engine.provenance import git_commit, now, versions

if TYPE_CHECKING:
    from routesparse.engine.models.load import LoadedModel


def origin(loaded: LoadedModel, command: str, seed: int) -> dict[str, Any]:
    """Device, versions, model, seed, time and the command that makes the file again."""
    return {
        "command": command,
        "created_at": now(),
        "device": device_name(torch.device(loaded.device)),
        "threads": torch.get_num_threads(),
        "dtype": loaded.dtype,
        "versions": versions(),
        "git_commit": git_commit(),
        "model": loaded.name,
        "model_revision": loaded.revision,
        "seed": seed,
    }
