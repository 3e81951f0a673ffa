"""What a device calls itself, as profiles and run records keep it."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_name(device: torch.device) -> str:
    """What the device calls itself: the GPU's name, or the CPU's model."""
    return _gpu_name(device) if device.type == "cuda" else cpu_name()


@cache
def _gpu_name(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device)


@cache
def cpu_name() -> str:
    """The CPU's model; torch is not loaded for it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()
