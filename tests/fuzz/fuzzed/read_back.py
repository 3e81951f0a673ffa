"""What is read back long after it was written: a backup's manifest, scores of evaluations."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from routesparse.engine import errors
from routesparse.engine.operations import backup
from routesparse.engine.results import evaluations, report
from tests.engine.results import values
from tests.fuzz.fuzzed.target import Target, json_bytes, written

_BACKED_UP = {"jobs.sqlite3": b"a queue", "prompts/job.txt": b"a prompt", "logs/worker.jsonl": b"{}"}


def shown(found: list[evaluations.Evaluation]) -> str:
    """Whatever is read can be shown."""
    return report.page(found, "fuzz") + report.markdown(found, "fuzz")


def _fill_backup(folder: Path) -> None:
    """The files that the backup's manifest names."""
    for name, content in _BACKED_UP.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def _restored(file: Path) -> None:
    """A backup with this manifest, into a home that is new each time."""
    home = file.parent / "home"
    shutil.rmtree(home, ignore_errors=True)
    backup.restore(file.parent, home)


TARGETS: dict[str, Target] = {
    "backup": Target(
        json_bytes(
            {
                **{"version": backup.VERSION, "made_at": "2026-11-23T12:00:00+00:00", "runs": 0, "jobs": 1},
                "files": {name: hashlib.sha256(content).hexdigest() for name, content in _BACKED_UP.items()},
            },
            6,  # digits: what was backed up itself may have a million files
        ),
        written(backup.MANIFEST, _restored),
        (errors.InputError, errors.StoreError),
        _fill_backup,
    ),
    "evaluations": Target(
        json_bytes(values.scores()),
        written("scores.json", lambda file: shown(evaluations.read(file))),
        (errors.ResultsError,),
    ),
}
