"""Fixtures of the engine's tests: the slow twins, and real attention of the lab checkpoint. CPU only."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def _module(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def oracle():
    """The module of float64 twins (oracles.py in this folder)."""
    return _module("engine_oracles", HERE / "oracles.py")


@pytest.fixture(scope="session")
def lab():
    """Captured attention of the lab checkpoint on prose, code and a needle prompt (lab_attention.py)."""
    return _module("engine_lab_attention", HERE / "lab_attention.py").Lab.load()
