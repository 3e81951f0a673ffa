"""A GPU that is not here: launchers believe in it, and Triton compiles for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch


def stand_in_gpu(monkeypatch: pytest.MonkeyPatch, capability: int, compiles: bool = False) -> None:
    """Until the test ends. capability: 80, 90, ...; compiles: Triton asks it what to compile for."""
    found = {
        (torch.cuda, "get_device_capability"): lambda device=None: divmod(capability, 10),
        (torch.cuda, "is_current_stream_capturing"): lambda: False,
        (torch.cuda, "get_device_properties"): lambda device=None: SimpleNamespace(multi_processor_count=132),
    }
    if compiles:
        triton = pytest.importorskip("triton")
        target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
        driver = SimpleNamespace(
            get_current_device=lambda: capability,
            get_current_stream=lambda device: 0,
            get_current_target=lambda: target,
        )
        found |= {(triton.runtime.driver, "_active"): driver, (torch.version, "cuda"): "12.8"}
    for (owner, name), value in found.items():
        monkeypatch.setattr(owner, name, value)
