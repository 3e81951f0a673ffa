"""What was measured for a model: calibrations, tuned prices and the rows behind them, latency profiles."""

from __future__ import annotations

import json

from routesparse.engine import errors, paths
from routesparse.engine.calibrate.tuning_rows import read_measured
from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.method.latency import LatencyProfile
from tests.fuzz.fuzzed.target import Target, json_bytes, json_lines, written

_CALIBRATION = json.loads((paths.DATA / "calibrations" / "prose.json").read_text())
for _long in ("prompts", "documents"):
    _CALIBRATION[_long] = _CALIBRATION[_long][:3]
_STAMP = {"policy": "priced", "confidence": 0.95}
_ABOUT = {
    "model": "demo",
    "dtype": "float32",
    "device": "cpu",
    "library_hash": "0",
    "stamp": _STAMP,
    "tokens": 600,
}
_TUNED = json.loads((paths.DATA / "calibrations" / "tuned" / "prose-kl.json").read_text())
_TUNED["tested"] = [one for one in _TUNED["tested"] if 0.5 <= one["price"] <= _TUNED["price"]]
_ROW = {
    "split": "calibration",
    "index": 0,
    "price": 0.5,
    "kl": 0.1,
    "agreement": 1.0,
    "nats": 3.0,
    "nats_dense": 3.0,
}
_NAMES = dict.fromkeys(("domain", "document", "document_sha256", "cluster"), "x")
_HEADER = {**_ABOUT, "revision": "0", "command": "x", "seed": 0, "git_commit": None}
_ROWS = [_HEADER, {**_NAMES, **_ROW, "area": 0.5}]
_PROFILE = json.loads(next(iter(sorted((paths.DATA / "profiles").glob("*.json")))).read_text())
_PROFILE["cells"] = _PROFILE["cells"][:4]

TARGETS: dict[str, Target] = {
    "calibration": Target(
        json_bytes(_CALIBRATION),
        written("x.json", lambda file: load_calibration(str(file))),
        (errors.CalibrationError,),
    ),
    "tuned price": Target(
        json_bytes(_TUNED), written("x.json", lambda file: tuned.load(str(file))), (errors.CalibrationError,)
    ),
    "tuning rows": Target(
        json_lines(_ROWS), written("x.jsonl", lambda file: read_measured([file])), (errors.InputError,)
    ),
    "profile": Target(json_bytes(_PROFILE), written("x.json", LatencyProfile.load), (errors.ProfileError,)),
}
