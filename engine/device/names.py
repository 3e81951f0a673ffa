"""What a device calls itself, as profiles and run records keep it."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch


@cache
def device_name(device: torch.device) -> str:
    """What the device calls itself: the GPU's name, or the CPU's model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()
