"""What the engine's tests make, for targets to start from."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

ENGINE_TESTS = Path(__file__).resolve().parents[2] / "engine"


def tests_module(file: str) -> Any:
    """A module of the engine's tests, such as "store/factory.py"."""
    spec = importlib.util.spec_from_file_location(f"{Path(file).stem}_for_fuzzing", ENGINE_TESTS / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
