"""The log of kept targets: a JSON line a request, in a folder of the home. Its last line holds the keeper's state."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.calibration.fitted import name_for
from routesparse.engine.calibration.keeping import Kept, State
from routesparse.engine.errors import CalibrationError
from routesparse.engine.schema import FieldError, checked, from_json

MOST_BYTES = 4 * 2**20  # of a log; the one before it is kept, as .before


def log_of(model: str, target: float) -> Path:
    """Of a model and a target, nats a token."""
    return paths.home() / "keeping" / f"{name_for(model)}-{target:g}.jsonl"


def logs() -> list[Path]:
    """All of this home."""
    return sorted((paths.home() / "keeping").glob("*.jsonl"))


def append(path: Path, kept: Kept) -> None:
    """Add a line. Errors: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > MOST_BYTES:
        path.replace(path.with_suffix(".before"))
    with path.open("a") as file:
        # The line's end stands before it, so that a torn line spoils no other.
        file.write("\n" + json.dumps(asdict(kept)))


def read(path: Path) -> list[Kept]:
    """All lines but torn ones, which a killed server leaves; none without a file. Errors: OSError, CalibrationError."""
    try:
        lines = path.read_text().split("\n") if path.exists() else []
        return [checked(Kept, from_json(line)) for line in lines if line.endswith("}}}")]
    except (FieldError, ValueError) as error:
        raise CalibrationError(f"{path.name}: {error}; move the file away") from None


def resumed(path: Path, revision: str, target: float) -> State | None:
    """The state that a log ends with, where it is of these weights and this target. Errors: as ``read``."""
    last = next(reversed(read(path)), None)
    return last.state if last and (last.revision, last.target) == (revision, target) else None
